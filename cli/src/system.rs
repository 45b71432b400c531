//! What a command uses of the system, and how it ends.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use evenkeel_kit::{Clock, Secret};

/// Streams, clock and environment of a command.
pub struct System<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error, for notes and prompts.
    pub notes: &'a mut dyn Write,
    /// Standard input: tokens, passwords and confirmations.
    pub input: &'a mut dyn Read,
    /// Hides (`true`) or shows (`false`) typed characters.
    pub hide_input: fn(bool),
    /// Opens a web page in the browser of the user. Returns whether this was possible.
    pub open_browser: &'a dyn Fn(&str) -> bool,
    pub clock: &'a dyn Clock,
    /// Settings from the environment.
    pub environment: Environment,
}

impl std::fmt::Debug for System<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("System").field("environment", &self.environment).finish_non_exhaustive()
    }
}

/// Settings from the environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// File of the contexts.
    pub contexts: PathBuf,
    /// Token that overrides the token of the context.
    pub token: Option<Secret>,
    /// Number of columns of the terminal; none if standard output is no terminal or if the terminal
    /// does not know its width.
    pub width: Option<u16>,
    /// Whether to use colours.
    pub colour: bool,
    /// Whether standard input and standard error are terminals, for prompts and progress.
    pub interactive: bool,
    /// Whether a graphical desktop can show a browser.
    pub has_display: bool,
}

/// How a command ended that did not fail. Determines the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Success.
    Done,
    /// The watched run ended without success.
    RunNotSucceeded,
    /// A sync, a copy or a verification of operating systems had findings.
    ChecksFailed,
    /// The validated document is invalid.
    DocumentInvalid,
    /// The compared documents differ.
    DocumentsDiffer,
}

impl Ending {
    /// Success, if all operating systems are free of findings.
    pub(crate) const fn from_checks(all_are_good: bool) -> Self {
        if all_are_good { Self::Done } else { Self::ChecksFailed }
    }
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Done => Self::SUCCESS,
            Ending::DocumentInvalid | Ending::DocumentsDiffer => Self::from(1),
            Ending::RunNotSucceeded | Ending::ChecksFailed => Self::from(3),
        }
    }
}
