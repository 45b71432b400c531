//! Programs to run.

use std::fmt;
use std::time::Duration;

/// What happens to a program that has not ended by its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineAction {
    /// The program is killed with its process group.
    Kill,
    /// The scripts of packages are killed, so that apt and dpkg can end in an orderly way: killing
    /// them would leave packages half installed. If they do not end in a minute, they are killed.
    EndScripts,
    /// The program continues, because killing it at any time could damage the system.
    KeepRunning,
}

impl fmt::Display for DeadlineAction {
    /// What happened to the program, as the end of a sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill | Self::EndScripts => "was killed",
            Self::KeepRunning => "is still running",
        })
    }
}

/// A program to run, and how to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Name or path, as seen from inside the managed root.
    pub program: String,
    /// Arguments, not interpreted by a shell.
    pub arguments: Vec<String>,
    /// Environment variables in addition to the base environment.
    pub variables: Vec<(String, String)>,
    /// Time limit.
    pub deadline: Duration,
    /// What happens after the time limit.
    pub at_deadline: DeadlineAction,
    /// Whether standard error is merged into standard output, as on a terminal.
    pub merged: bool,
    /// For a script: the maximum length of each output.
    pub max_output_bytes: Option<usize>,
    /// Whether a change begins only if it could be recorded for the next process of the agent.
    pub needs_record: bool,
}

impl Command {
    /// Creates a command without arguments that is killed at its deadline.
    pub fn new(program: impl Into<String>, deadline: Duration) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            deadline,
            at_deadline: DeadlineAction::Kill,
            merged: false,
            max_output_bytes: None,
            needs_record: true,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn with_arguments<S: Into<String>>(
        mut self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Marks a script that is not part of the system. It has a session of its own without a terminal.
    /// When it ends, or is killed at its deadline, all processes of the session are killed. Longer
    /// standard output is an error, and longer standard error is cut.
    #[must_use]
    pub fn for_script(self, max_output_bytes: usize) -> Self {
        Self { max_output_bytes: Some(max_output_bytes), ..self }
    }

    /// Marks a command that changes the system: its outputs are merged in order, only the end of a
    /// long output is retained, it is not killed while it may still end by itself, and it has no
    /// terminal that a script could wait for.
    #[must_use]
    pub fn for_change(mut self) -> Self {
        self.merged = true;
        self.at_deadline = DeadlineAction::EndScripts;
        self
    }

    /// Marks a change that follows another one, and without which the system would stay half
    /// updated. It begins also if it cannot be recorded, for example because the disk is full. It
    /// remains known that the other one did not end by its deadline.
    #[must_use]
    pub fn with_optional_record(self) -> Self {
        Self { needs_record: false, ..self }
    }

    /// Marks a command that changes the system and is never killed.
    #[must_use]
    pub fn for_uninterruptible_change(self) -> Self {
        Self { at_deadline: DeadlineAction::KeepRunning, ..self.for_change() }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}
