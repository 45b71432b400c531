//! Calls of the tool. Only one call that changes something runs at a time.
//!
//! A call that changes something is never killed. If it exceeds its time limit, the agent stops
//! waiting, and the call continues, even after the agent ends. So the tool itself must hold the
//! lock: flock(1) acquires it and then executes the tool. The lock is released when the last
//! process of the tool ends.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_kit::chain;

use super::super::apply_failure;
use super::super::files::file_failure;
use super::{CHANGE_TIMEOUT, ImageTool};
use crate::agent_lock::{AgentLock, LockError};
use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Output};

/// Exit status of flock(1) if the lock is held: `EX_TEMPFAIL` of sysexits(3), which the tool itself
/// does not use.
const LOCK_CONFLICT_STATUS: i32 = 75;

impl ImageTool {
    /// Lock file of the calls that change something.
    pub(super) fn lock_path(&self) -> PathBuf {
        self.system.paths.state().join("image-tool.lock")
    }

    /// Fails while a call is running that changes something, whether this or an earlier agent
    /// started it.
    pub(super) fn check_no_call_running(&self) -> Result<(), Failure> {
        match AgentLock::acquire(&self.lock_path()) {
            // Released at once: the tool acquires it next.
            Ok(_) => Ok(()),
            Err(LockError::AlreadyLocked(_)) => Err(call_in_progress()),
            Err(LockError::File(error)) => Err(file_failure(error)),
        }
    }

    /// Runs a program that must succeed.
    pub(super) async fn run(&self, command: &Command) -> Result<Output, Failure> {
        self.run_named(command, &command.to_string()).await
    }

    /// Runs a program and uses `name` in error messages.
    async fn run_named(&self, command: &Command, name: &str) -> Result<Output, Failure> {
        let answer = self.runner.run(command).await;
        let output = answer.map_err(|error| apply_failure(format!("{name}: {}", chain(&error))))?;
        if output.succeeded() {
            return Ok(output);
        }
        // 1: not supported here; 3: writing or applying failed; 4: blessing failed.
        let kind = match output.status {
            Some(LOCK_CONFLICT_STATUS) => return Err(call_in_progress()),
            Some(1) => FailureKind::Unsupported,
            _ => FailureKind::Apply,
        };
        let reason = format!("{name} {}", output.describe_status());
        Err(Failure::with_log(kind, reason, &output.combined_output()))
    }

    pub(super) fn tool_command(&self, timeout: Duration, options: &[&str]) -> Command {
        Command::new(self.program.as_str(), timeout).with_arguments(options.iter().copied())
    }

    /// Runs the tool to change something. Fails if another such call is running.
    pub(super) async fn run_change(
        &self,
        timeout: Duration,
        options: &[&str],
    ) -> Result<(), Failure> {
        self.check_no_call_running()?;
        let command = self.tool_command(timeout, options).for_uninterruptible_change();
        let name = command.to_string();
        let lock = self.system.relative_to_root(&self.lock_path());
        let command = with_lock(lock.display().to_string(), command);
        self.run_named(&command, &name).await.map(drop)
    }

    /// Clears the one-shot order of the loader.
    pub(super) async fn clear_one_shot(&self) -> Result<(), Failure> {
        let command = Command::new("bootctl", CHANGE_TIMEOUT).with_arguments(["set-oneshot", ""]);
        self.run(&command.for_uninterruptible_change()).await.map(drop)
    }
}

/// The failure of a call that would run concurrently with another one. An agent that stops during a
/// call leaves it running, and the next one continues the attempt when it has ended.
fn call_in_progress() -> Failure {
    apply_failure(
        "an earlier call of the image tool is still running, and a concurrent one could damage a slot: wait until it ends; if it \
         hangs, end it or restart the machine",
    )
    .into_temporary()
}

/// Wraps a command so that it runs under the lock in the file `lock`, and does not start if the
/// lock is held.
fn with_lock(lock: String, command: Command) -> Command {
    let flock = [
        "--nonblock".to_owned(),
        "--no-fork".to_owned(),
        "--conflict-exit-code".to_owned(),
        LOCK_CONFLICT_STATUS.to_string(),
        lock,
        command.program,
    ];
    Command {
        program: "flock".to_owned(),
        arguments: flock.into_iter().chain(command.arguments).collect(),
        ..command
    }
}
