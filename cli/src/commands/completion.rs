//! `evenkeel completion`: shell completion scripts.

use clap::Args;
use clap_complete::Shell;

use crate::{Failure, System};

/// Print a shell completion script.
#[derive(Debug, Args)]
pub struct Completion {
    /// Shell to complete for.
    pub shell: Shell,
}

impl Completion {
    pub fn run(self, command: &mut clap::Command, system: &mut System<'_>) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "evenkeel", &mut script);
        Ok(system.out.write_all(&script)?)
    }
}
