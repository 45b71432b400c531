//! `evenkeel-agent completion`.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionArgs};

pub fn print_completion(
    arguments: &CompletionArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    let mut command = Cli::command();
    clap_complete::generate(arguments.shell, &mut command, "evenkeel-agent", &mut script);
    out.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    use super::*;

    #[test]
    fn every_shell_gets_a_script_with_the_commands() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let mut out = Vec::new();
            print_completion(&CompletionArgs { shell }, &mut out).unwrap();
            let script = String::from_utf8(out).unwrap();
            assert!(script.contains("doctor"), "{shell}");
        }
    }
}
