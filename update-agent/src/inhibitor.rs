//! Prevents a shutdown or suspend of the system during a change, with an inhibitor lock of logind.

use std::sync::Arc;
use std::time::Duration;

use crate::runner::{Command, HeldProgram, Runner};

/// Owner of the lock in logind's list.
pub const LOCK_OWNER: &str = "evenkeel-agent";

const INHIBITED_ACTIONS: &str = "shutdown:sleep:idle";

/// Time limit for releasing the lock. logind notices at once; a reboot before that would be
/// refused.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes inhibitor locks of logind.
#[derive(Clone, Copy, Debug)]
pub struct Inhibitor;

impl Inhibitor {
    /// Takes a lock with the reason `why`, on the agent's own system. `None` if `systemd-inhibit`
    /// cannot be started: other changes on such a system are not protected either. Without logind
    /// the program ends by itself.
    pub fn acquire(runner: &Arc<dyn Runner>, why: &str) -> Option<InhibitorLock> {
        // The inhibited program reads from a pipe of the agent, so the lock is released whenever
        // the agent ends.
        let command = Command::new("systemd-inhibit", RELEASE_TIMEOUT).with_arguments([
            format!("--what={INHIBITED_ACTIONS}"),
            format!("--who={LOCK_OWNER}"),
            format!("--why={why}"),
            "--mode=block".to_owned(),
            "cat".to_owned(),
        ]);
        match runner.start_held(&command) {
            Ok(program) => Some(InhibitorLock { program }),
            Err(error) => {
                tracing::debug!(%error, "cannot take an inhibitor lock");
                None
            }
        }
    }
}

/// An inhibitor lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct InhibitorLock {
    program: Box<dyn HeldProgram>,
}

impl InhibitorLock {
    /// Releases the lock and waits until it is gone. Necessary before the agent's own reboot, which
    /// the lock would block.
    pub async fn release(mut self) {
        self.program.end(RELEASE_TIMEOUT).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::runner::{Output, RunError};

    type CommandLog = Arc<Mutex<Vec<String>>>;

    /// Records the started and the ended programs.
    struct RecordingRunner(CommandLog);

    #[derive(Debug)]
    struct RecordedProgram(CommandLog);

    #[async_trait::async_trait]
    impl Runner for RecordingRunner {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            panic!("{command} must not be waited for")
        }

        fn start_held(&self, command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
            self.0.lock().unwrap().push(command.to_string());
            Ok(Box::new(RecordedProgram(Arc::clone(&self.0))))
        }
    }

    #[async_trait::async_trait]
    impl HeldProgram for RecordedProgram {
        async fn end(&mut self, _wait: Duration) {
            self.0.lock().unwrap().push("ended".to_owned());
        }
    }

    #[tokio::test]
    async fn the_lock_names_its_owner_and_reason_and_is_released_before_a_reboot() {
        let commands = CommandLog::default();
        let runner: Arc<dyn Runner> = Arc::new(RecordingRunner(Arc::clone(&commands)));
        let lock = Inhibitor::acquire(&runner, "packages are changed").unwrap();
        lock.release().await;
        assert_eq!(
            *commands.lock().unwrap(),
            [
                "systemd-inhibit --what=shutdown:sleep:idle --who=evenkeel-agent \
                 --why=packages are changed --mode=block cat",
                "ended",
            ]
        );
    }

    /// Cannot start held programs.
    struct RunnerWithoutHold;

    #[async_trait::async_trait]
    impl Runner for RunnerWithoutHold {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            panic!("{command} must not be run")
        }
    }

    #[test]
    fn a_system_without_inhibitor_locks_is_supported() {
        let runner: Arc<dyn Runner> = Arc::new(RunnerWithoutHold);
        assert!(Inhibitor::acquire(&runner, "packages are changed").is_none());
    }
}
