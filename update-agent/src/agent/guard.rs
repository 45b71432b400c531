//! Keeps the system up while it is being changed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::inhibitor::{Held, Inhibitor};
use crate::runner::Runner;

/// Holds the system up, or not. At most one lock is held.
pub struct Guard {
    /// Starts programs of the agent's own system; none if nothing is to be held.
    runner: Option<Arc<dyn Runner>>,
    held: Mutex<Option<Held>>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").finish_non_exhaustive()
    }
}

impl Guard {
    /// A guard of the system that the agent runs on.
    pub fn of_system(runner: Arc<dyn Runner>) -> Self {
        Self {
            runner: Some(runner),
            held: Mutex::new(None),
        }
    }

    /// A guard that holds nothing: another root can be changed whatever becomes of the system around it.
    pub fn none() -> Self {
        Self {
            runner: None,
            held: Mutex::new(None),
        }
    }

    /// Holds the system up from now on. That it cannot is no reason not to go on.
    pub fn take(&self, why: &str) {
        let Some(runner) = &self.runner else { return };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = Inhibitor::take(runner, why);
        }
    }

    /// Lets go, and returns when the system may go down.
    pub async fn release(&self) {
        let held = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.take()
        };
        if let Some(held) = held {
            held.release().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::runner::{Command, HeldProgram, Output, RunError};

    /// Counts the programs that are held.
    #[derive(Clone, Debug, Default)]
    struct Count(Arc<AtomicUsize>);

    #[async_trait::async_trait]
    impl HeldProgram for Count {
        async fn end(&mut self, _wait: Duration) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[async_trait::async_trait]
    impl Runner for Count {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            panic!("{command} is not to be run")
        }

        fn hold(&self, _command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(self.clone()))
        }
    }

    #[tokio::test]
    async fn the_system_is_held_up_once_and_let_go() {
        let count = Count::default();
        let guard = Guard::of_system(Arc::new(count.clone()));
        guard.take("a test");
        guard.take("a test");
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        guard.release().await;
        guard.release().await;
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        Guard::none().take("nothing");
    }
}
