//! Rebooting the node. The engine decides when. The agent never reboots a node whose root is not
//! its own system.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;

use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Runner};

/// Time limit for the command that requests a reboot, not for the reboot itself.
const REBOOT_COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// Time limit for the warning of logged-in users: a terminal may be blocked.
const WALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Default command that reboots the node.
pub const DEFAULT_REBOOT_COMMAND: [&str; 2] = ["systemctl", "reboot"];

/// Time that passes before a reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebootTiming {
    /// How long the machine may delay a reboot. After that an attempt ends without it.
    pub max_delay: Duration,
    /// How long before a reboot logged-in users are warned; zero for no warning.
    pub warning_time: Duration,
}

impl Default for RebootTiming {
    fn default() -> Self {
        Self { max_delay: Duration::from_mins(30), warning_time: Duration::from_mins(1) }
    }
}

/// Why the agent must not reboot the node now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebootObjection {
    /// Reason, for a person.
    pub reason: String,
    /// Whether the reason will pass by itself.
    pub is_temporary: bool,
}

impl RebootObjection {
    /// An objection that will pass by itself.
    pub fn temporary(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_temporary: true }
    }

    /// An objection that only a person can remove.
    pub fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_temporary: false }
    }
}

/// Reboots the node.
#[async_trait::async_trait]
pub trait RebootControl: Send + Sync {
    /// Why the node cannot be rebooted; `None` if it can.
    fn obstacle(&self) -> Option<String>;

    /// Requests a reboot and returns while the system goes down. Success does not prove that the
    /// node reboots: only another boot ID does.
    async fn request_reboot(&self) -> Result<(), Failure>;

    /// Shows a message to all logged-in users. A failure is logged: it does not stop the reboot.
    async fn warn_users(&self, _message: &str) {}
}

/// Reboots with a command.
pub struct SystemReboot {
    runner: Arc<dyn Runner>,
    command: Vec<String>,
}

impl fmt::Debug for SystemReboot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemReboot").field("command", &self.command).finish_non_exhaustive()
    }
}

impl SystemReboot {
    /// Reboots with `command` (the program first), started by a runner of the system that the agent
    /// runs on.
    pub fn new(runner: Arc<dyn Runner>, command: Vec<String>) -> Self {
        Self { runner, command }
    }
}

#[async_trait::async_trait]
impl RebootControl for SystemReboot {
    fn obstacle(&self) -> Option<String> {
        let empty = self.command.is_empty();
        empty.then(|| "no reboot command is configured".to_owned())
    }

    async fn request_reboot(&self) -> Result<(), Failure> {
        let failed = |reason: String| Failure::new(FailureKind::Reboot, reason);
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(failed("no reboot command is configured".to_owned()));
        };
        let command = Command::new(program.as_str(), REBOOT_COMMAND_TIMEOUT)
            .with_arguments(arguments.iter().cloned());
        let output =
            self.runner.run(&command).await.map_err(|error| failed(chain(&error).to_string()))?;
        if output.succeeded() {
            return Ok(());
        }
        let reason = format!("{command} {}", output.describe_status());
        Err(Failure::with_log(FailureKind::Reboot, reason, &output.combined_output()))
    }

    async fn warn_users(&self, message: &str) {
        warn_users(self.runner.as_ref(), message).await;
    }
}

/// The warning for logged-in users.
pub fn warning_message(warning_time: Duration, why: &str) -> String {
    let seconds = warning_time.as_secs();
    let time = match (seconds / 60, seconds % 60) {
        (minutes, 0) => format!("{minutes} min"),
        _ => format!("{seconds} s"),
    };
    format!(
        "evenkeel-agent: this machine reboots in {time}, because an update needs it: {why}. To \
         delay the reboot, create the file /run/evenkeel-agent/inhibit."
    )
}

/// Shows a message on the terminals of all logged-in users. A failure is logged: it does not stop
/// the reboot.
pub async fn warn_users(runner: &dyn Runner, message: &str) {
    let command = Command::new("wall", WALL_TIMEOUT).with_arguments([message]);
    match runner.run(&command).await {
        Ok(output) if output.succeeded() => {}
        Ok(output) => {
            let (status, text) = (output.describe_status(), output.combined_output());
            tracing::warn!(status, output = text, "cannot warn the logged-in users");
        }
        Err(error) => {
            tracing::warn!(error = %chain(&error), "cannot warn the logged-in users");
        }
    }
}

/// Never reboots: the managed root is not the system that the agent runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReboot;

const FOREIGN_ROOT: &str = "the managed root is not the system that the agent runs on";

#[async_trait::async_trait]
impl RebootControl for NoReboot {
    fn obstacle(&self) -> Option<String> {
        Some(FOREIGN_ROOT.to_owned())
    }

    async fn request_reboot(&self) -> Result<(), Failure> {
        Err(Failure::new(FailureKind::Reboot, FOREIGN_ROOT))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::hooks::fake::FakeRunner;
    use crate::runner::HostRunner;

    fn reboot(command: &[&str]) -> SystemReboot {
        let command = command.iter().map(|&argument| argument.to_owned()).collect();
        SystemReboot::new(Arc::new(HostRunner::new(Path::new("/"))), command)
    }

    #[tokio::test]
    async fn a_failed_command_is_reported_with_its_output() {
        reboot(&["true"]).request_reboot().await.unwrap();
        let refused = reboot(&["sh", "-c", "echo inhibited by backup; exit 1"]);
        let failure = refused.request_reboot().await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Reboot);
        assert!(failure.reason.ends_with("ended with status 1"), "{failure:?}");
        assert_eq!(failure.log, "inhibited by backup\n");
        let missing = reboot(&["no-such-program"]).request_reboot().await.unwrap_err();
        assert!(missing.reason.starts_with("cannot start no-such-program"), "{missing}");
    }

    #[test]
    fn the_warning_contains_the_time_and_the_reason() {
        let text = warning_message(Duration::from_mins(2), "app requires it");
        assert!(text.contains("reboots in 2 min, because an update needs it: app requires it."));
        assert!(warning_message(Duration::from_secs(90), "").contains("in 90 s"));
    }

    #[tokio::test(start_paused = true)]
    async fn users_are_warned_on_their_terminals_and_a_failure_does_not_matter() {
        for runner in [
            FakeRunner::default().returns("wall", 0, ""),
            FakeRunner::default().returns("wall", 1, "no terminals"),
            FakeRunner::default().hangs("wall"),
            FakeRunner::default(),
        ] {
            let runner = Arc::new(runner);
            let reboot = SystemReboot::new(Arc::clone(&runner) as Arc<dyn Runner>, Vec::new());
            reboot.warn_users("this machine reboots soon").await;
            assert_eq!(runner.commands(), ["wall this machine reboots soon"]);
        }
        NoReboot.warn_users("nothing happens").await;
    }

    #[tokio::test]
    async fn a_missing_reboot_command_is_an_obstacle() {
        assert_eq!(reboot(&["true"]).obstacle(), None);
        assert!(reboot(&[]).obstacle().is_some());
        reboot(&[]).request_reboot().await.unwrap_err();
        assert_eq!(NoReboot.obstacle().as_deref(), Some(FOREIGN_ROOT));
        assert_eq!(NoReboot.request_reboot().await.unwrap_err().reason, FOREIGN_ROOT);
    }
}
