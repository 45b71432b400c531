//! Rebooting the node. The engine says when; a node whose system is not the agent's own is never rebooted by it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;

use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Runner};

/// The command that asks for a reboot may take so long. What it asked for takes longer.
const PATIENCE: Duration = Duration::from_mins(1);

/// The command that reboots a node unless its configuration says otherwise.
pub const COMMAND: [&str; 2] = ["systemctl", "reboot"];

/// A way to reboot the node.
#[async_trait::async_trait]
pub trait Reboot: Send + Sync {
    /// Why the node cannot be rebooted at all; `None` if it can.
    fn hindrance(&self) -> Option<String>;

    /// Asks for a reboot and returns while the system goes down. That it returned well proves nothing: only another
    /// boot does.
    async fn begin(&self) -> Result<(), Failure>;
}

/// Reboots with a command.
pub struct SystemReboot {
    runner: Arc<dyn Runner>,
    command: Vec<String>,
}

impl fmt::Debug for SystemReboot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemReboot")
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl SystemReboot {
    /// Reboots with `command`, the program first, started by a runner of the system that the agent runs on.
    pub fn new(runner: Arc<dyn Runner>, command: Vec<String>) -> Self {
        Self { runner, command }
    }
}

#[async_trait::async_trait]
impl Reboot for SystemReboot {
    fn hindrance(&self) -> Option<String> {
        let empty = self.command.is_empty();
        empty.then(|| "no command to reboot is configured".to_owned())
    }

    async fn begin(&self) -> Result<(), Failure> {
        let failed = |reason: String| Failure::new(FailureKind::Reboot, reason);
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(failed("no command to reboot is configured".to_owned()));
        };
        let command = Command::new(program.as_str(), PATIENCE).with(arguments.iter().cloned());
        let output = self
            .runner
            .run(&command)
            .await
            .map_err(|error| failed(chain(&error).to_string()))?;
        if output.succeeded() {
            return Ok(());
        }
        let reason = format!("{command} {}", output.ending());
        Err(Failure::with_log(
            FailureKind::Reboot,
            reason,
            &output.words(),
        ))
    }
}

/// No way to reboot: the managed root is not the system that the agent runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReboot;

const NOT_OURS: &str = "the managed root is not the system that the agent runs on";

#[async_trait::async_trait]
impl Reboot for NoReboot {
    fn hindrance(&self) -> Option<String> {
        Some(NOT_OURS.to_owned())
    }

    async fn begin(&self) -> Result<(), Failure> {
        Err(Failure::new(FailureKind::Reboot, NOT_OURS))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::runner::HostRunner;

    fn reboot(command: &[&str]) -> SystemReboot {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        SystemReboot::new(Arc::new(HostRunner::new(Path::new("/"))), command)
    }

    #[tokio::test]
    async fn a_command_that_refuses_is_told_with_its_words() {
        reboot(&["true"]).begin().await.unwrap();
        let refused = reboot(&["sh", "-c", "echo inhibited by backup; exit 1"]);
        let failure = refused.begin().await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Reboot);
        assert!(
            failure.reason.ends_with("ended with status 1"),
            "{failure:?}"
        );
        assert_eq!(failure.log, "inhibited by backup\n");
        let missing = reboot(&["no-such-program"]).begin().await.unwrap_err();
        assert!(
            missing.reason.starts_with("cannot start no-such-program"),
            "{missing}"
        );
    }

    #[tokio::test]
    async fn where_there_is_no_way_it_is_said_why() {
        assert_eq!(reboot(&["true"]).hindrance(), None);
        assert!(reboot(&[]).hindrance().is_some());
        reboot(&[]).begin().await.unwrap_err();
        assert_eq!(NoReboot.hindrance().as_deref(), Some(NOT_OURS));
        assert_eq!(NoReboot.begin().await.unwrap_err().reason, NOT_OURS);
    }
}
