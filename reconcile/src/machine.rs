//! The machine that is checked.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A machine: its files, and how programs run on it.
pub struct Machine {
    /// The folder whose content is the machine's `/`.
    pub root: PathBuf,
    /// Runs programs of the machine.
    pub programs: Box<dyn ProgramRunner>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("root", &self.root).finish_non_exhaustive()
    }
}

/// Runs programs of the machine, with limits for their duration and output.
pub trait ProgramRunner: Send + Sync {
    /// Runs a program and waits for its end.
    ///
    /// # Errors
    /// It cannot be started, or has not ended in time.
    fn run(&self, program: &Program) -> Result<ProgramOutput, ProgramError>;
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name, searched for in `PATH`, or an absolute path on the machine.
    pub name: String,
    /// Arguments; no shell interprets them.
    pub arguments: Vec<String>,
    /// After this time the program is killed with its process group.
    pub timeout: Duration,
}

/// What a program has written, and its exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramOutput {
    /// The exit status; 128 + the number of the signal that ended the program.
    pub status: i32,
    pub stdout: Vec<u8>,
    /// The end of a long output.
    pub stderr: Vec<u8>,
}

/// A program gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    #[error("cannot run {program}: {reason}")]
    NotStarted { program: String, reason: String },
    #[error("{program} has not ended after {} s and was killed", timeout.as_secs())]
    TimedOut { program: String, timeout: Duration },
}
