//! `evenkeel`: the operator's command line.
//!
//! A command is a value ([`args::Cli`]); running it asks the server and writes to a writer ([`World`]). So a test is one
//! line in and one text out.

pub mod args;
mod client;
mod commands;
pub mod contexts;
mod degrees;
mod excerpt;
pub mod failure;
mod labels;
pub mod login;
mod pages;
mod resource;
mod time;
mod tree;
mod view;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use evenkeel_kit::{Clock, Secret};

pub use failure::Failure;
pub use view::harmless;

/// What a command sees of the world.
pub struct World<'a> {
    /// Where answers go.
    pub out: &'a mut dyn Write,
    /// Where remarks go that are no answers.
    pub notes: &'a mut dyn Write,
    /// Where a token or the answer to a question may come from.
    pub input: &'a mut dyn Read,
    /// Keeps what is typed from being seen, or shows it again.
    pub hide: fn(bool),
    /// The clock.
    pub clock: &'a dyn Clock,
    /// What the environment says.
    pub environment: Environment,
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("environment", &self.environment)
            .finish_non_exhaustive()
    }
}

/// What the environment says.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The file with the contexts.
    pub contexts: PathBuf,
    /// A token that goes before the one of the context.
    pub token: Option<Secret>,
    /// Whether answers are read by a person at a terminal.
    pub terminal: bool,
    /// Whether that person wants colours.
    pub colour: bool,
    /// Whether somebody is there to answer a question, and sees how far a command is.
    pub interactive: bool,
}

/// How a command ended that could be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Done,
    /// A run was watched to its end, and it did not succeed.
    RunNotSucceeded,
    /// Operating systems were synced, moved or looked at, and not all of them are as they should be.
    SyncNotGood,
}

impl Ending {
    /// As it should be, if all operating systems that it was about are good.
    const fn of(all_are_good: bool) -> Self {
        if all_are_good {
            Self::Done
        } else {
            Self::SyncNotGood
        }
    }
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Done => Self::SUCCESS,
            Ending::RunNotSucceeded | Ending::SyncNotGood => Self::from(3),
        }
    }
}
