//! Keeps the system from being shut down or put to sleep in the middle of a change.

use std::sync::Arc;
use std::time::Duration;

use crate::runner::{Command, HeldProgram, Runner};

/// Whose lock it is, in logind's list.
pub const WHO: &str = "evenkeel-agent";

/// What is kept away.
const WHAT: &str = "shutdown:sleep:idle";

/// How long the lock may take to go. logind notices at once; a reboot that comes too early would be refused.
const RELEASE: Duration = Duration::from_secs(5);

/// The way to a lock of logind.
#[derive(Clone, Copy, Debug)]
pub struct Inhibitor;

impl Inhibitor {
    /// Takes a lock that says `why`, for a system that the agent runs on itself. `None` if there is no program to take it
    /// with: a change is not worse off than any other change on such a system. Without logind the program ends by itself.
    pub fn take(runner: &Arc<dyn Runner>, why: &str) -> Option<Held> {
        // The inhibited program reads from the agent: the lock goes with the agent, however it ends.
        let command = Command::new("systemd-inhibit", RELEASE).with([
            format!("--what={WHAT}"),
            format!("--who={WHO}"),
            format!("--why={why}"),
            "--mode=block".to_owned(),
            "cat".to_owned(),
        ]);
        match runner.hold(&command) {
            Ok(program) => Some(Held { program }),
            Err(error) => {
                tracing::debug!(%error, "nothing keeps the system from being shut down");
                None
            }
        }
    }
}

/// A lock. It is let go when this is dropped.
#[derive(Debug)]
pub struct Held {
    program: Box<dyn HeldProgram>,
}

impl Held {
    /// Lets go and waits until the lock is gone: before the agent's own reboot, which the lock would stop.
    pub async fn release(mut self) {
        self.program.end(RELEASE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::runner::{Output, RunError};

    type Said = Arc<Mutex<Vec<String>>>;

    /// Remembers what is held and what was let go.
    struct Holder(Said);

    #[derive(Debug)]
    struct Program(Said);

    #[async_trait::async_trait]
    impl Runner for Holder {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            panic!("{command} is not to be waited for")
        }

        fn hold(&self, command: &Command) -> Result<Box<dyn HeldProgram>, RunError> {
            self.0.lock().unwrap().push(command.to_string());
            Ok(Box::new(Program(Arc::clone(&self.0))))
        }
    }

    #[async_trait::async_trait]
    impl HeldProgram for Program {
        async fn end(&mut self, _wait: Duration) {
            self.0.lock().unwrap().push("ended".to_owned());
        }
    }

    #[tokio::test]
    async fn the_lock_says_whose_it_is_and_why_and_is_let_go_before_a_reboot() {
        let said = Said::default();
        let runner: Arc<dyn Runner> = Arc::new(Holder(Arc::clone(&said)));
        let held = Inhibitor::take(&runner, "packages are changed").unwrap();
        held.release().await;
        assert_eq!(
            *said.lock().unwrap(),
            [
                "systemd-inhibit --what=shutdown:sleep:idle --who=evenkeel-agent \
                 --why=packages are changed --mode=block cat",
                "ended",
            ]
        );
    }

    /// Cannot hold anything.
    struct Bare;

    #[async_trait::async_trait]
    impl Runner for Bare {
        async fn run(&self, command: &Command) -> Result<Output, RunError> {
            panic!("{command} is not to be run")
        }
    }

    #[test]
    fn a_system_that_has_no_such_locks_does_without() {
        let runner: Arc<dyn Runner> = Arc::new(Bare);
        assert!(Inhibitor::take(&runner, "packages are changed").is_none());
    }
}
