//! Completion scripts.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::{Failure, World};

/// Print a completion script for a shell.
#[derive(Debug, Args)]
pub struct Completion {
    /// The shell.
    pub shell: Shell,
}

impl Completion {
    pub fn run(self, world: &mut World<'_>) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "evenkeel", &mut script);
        Ok(world.out.write_all(&script)?)
    }
}
