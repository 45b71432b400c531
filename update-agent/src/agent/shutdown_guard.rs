//! Prevents a shutdown of the system during a change.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::inhibitor::{Inhibitor, InhibitorLock};
use crate::runner::Runner;

/// Holds at most one inhibitor lock.
pub struct ShutdownGuard {
    /// Starts programs of the agent's own system; `None` if no lock is to be taken.
    runner: Option<Arc<dyn Runner>>,
    lock: Mutex<Option<InhibitorLock>>,
}

impl fmt::Debug for ShutdownGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownGuard").finish_non_exhaustive()
    }
}

impl ShutdownGuard {
    /// Creates a guard for the system that the agent runs on.
    pub fn new(runner: Arc<dyn Runner>) -> Self {
        Self { runner: Some(runner), lock: Mutex::new(None) }
    }

    /// Creates a guard that takes no lock. A change of another root does not depend on the system
    /// around it.
    pub fn disabled() -> Self {
        Self { runner: None, lock: Mutex::new(None) }
    }

    /// Takes the lock. The change goes on even if the lock cannot be taken.
    pub fn acquire(&self, why: &str) {
        let Some(runner) = &self.runner else { return };
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = Inhibitor::acquire(runner, why);
        }
    }

    /// Releases the lock. When this returns, the system may shut down.
    pub async fn release(&self) {
        let held = {
            let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            held.take()
        };
        if let Some(lock) = held {
            lock.release().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::runner::{Command, HeldProgram, Output, RunError};

    /// Counts the programs that hold a lock.
    #[derive(Clone, Debug, Default)]
    struct ProgramCounter(Arc<AtomicUsize>);

    #[async_trait::async_trait]
    impl HeldProgram for ProgramCounter {
        async fn end(&mut self, _wait: Duration) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[async_trait::async_trait]
    impl Runner for ProgramCounter {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            panic!("{command} is not to be run")
        }

        fn start_held(&self, _command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(self.clone()))
        }
    }

    #[tokio::test]
    async fn only_one_lock_is_taken_and_it_is_released() {
        let count = ProgramCounter::default();
        let guard = ShutdownGuard::new(Arc::new(count.clone()));
        guard.acquire("a test");
        guard.acquire("a test");
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        guard.release().await;
        guard.release().await;
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        ShutdownGuard::disabled().acquire("nothing");
    }
}
