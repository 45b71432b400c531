//! Calls of the tool. Of those that change something there is one at a time.
//!
//! The tool is never killed while it changes something: a call that takes too long is not waited for any longer, and
//! goes on, also when the agent ends. So the lock is held by the tool itself: flock(1) takes it and becomes the tool,
//! and it is free when the last process of the tool has ended.

use std::path::PathBuf;
use std::time::Duration;

use evenkeel_kit::chain;

use super::super::failed;
use super::super::files::broken;
use super::{SET, Tool};
use crate::lock::{AgentLock, LockError};
use crate::model::{Failure, FailureKind};
use crate::runner::{Command, Output};

/// How flock(1) ends if the lock is held. sysexits(3) calls that a failure that passes; the tool does not end so.
const HELD: i32 = 75;

impl Tool {
    /// Held by a call that changes something.
    pub(super) fn lock(&self) -> PathBuf {
        self.system.place.state().join("image-tool.lock")
    }

    /// Fails while a call changes something, of this agent or of one before it.
    pub(super) fn must_be_free(&self) -> Result<(), Failure> {
        match AgentLock::take(&self.lock()) {
            // Let go of at once: the next to take it is the tool.
            Ok(_) => Ok(()),
            Err(LockError::Taken(_)) => Err(held()),
            Err(LockError::File(error)) => Err(broken(error)),
        }
    }

    /// Runs a program that must succeed.
    pub(super) async fn run(&self, command: &Command) -> Result<Output, Failure> {
        self.run_as(command, &command.to_string()).await
    }

    /// The same for one that people know by another name.
    async fn run_as(&self, command: &Command, name: &str) -> Result<Output, Failure> {
        let answer = self.runner.run(command).await;
        let output = answer.map_err(|error| failed(format!("{name}: {}", chain(&error))))?;
        if output.succeeded() {
            return Ok(output);
        }
        // 1: it cannot do that here; 3: it failed to write or to apply; 4: it failed to keep.
        let kind = match output.status {
            Some(HELD) => return Err(held()),
            Some(1) => FailureKind::Unsupported,
            _ => FailureKind::Apply,
        };
        let reason = format!("{name} {}", output.ending());
        Err(Failure::with_log(kind, reason, &output.words()))
    }

    pub(super) fn command(&self, patience: Duration, options: &[&str]) -> Command {
        Command::new(self.program.as_str(), patience).with(options.iter().copied())
    }

    /// Changes something with the tool: it is never killed while it does, and no second one is begun.
    pub(super) async fn change(&self, patience: Duration, options: &[&str]) -> Result<(), Failure> {
        self.must_be_free()?;
        let command = self.command(patience, options).that_changes();
        let name = command.to_string();
        let lock = self.system.as_seen(&self.lock());
        let command = under(lock.display().to_string(), command);
        self.run_as(&command, &name).await.map(drop)
    }

    /// Takes the order to start a slot once back.
    pub(super) async fn take_back(&self) -> Result<(), Failure> {
        let command = Command::new("bootctl", SET).with(["set-oneshot", ""]);
        self.run(&command.that_changes()).await.map(drop)
    }
}

/// A call is at work.
fn held() -> Failure {
    failed(
        "an earlier call of the image tool is still at work, and two at once would spoil a slot: nothing is begun before it \
         ends; if it hangs, end it or restart the machine",
    )
}

/// The command under the lock in the file `lock`. It is not begun if the lock is held.
fn under(lock: String, command: Command) -> Command {
    let flock = [
        "--nonblock".to_owned(),
        "--no-fork".to_owned(),
        "--conflict-exit-code".to_owned(),
        HELD.to_string(),
        lock,
        command.program,
    ];
    Command {
        program: "flock".to_owned(),
        arguments: flock.into_iter().chain(command.arguments).collect(),
        ..command
    }
}
