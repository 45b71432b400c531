//! Executable `evenkeel-agent`.

use std::process::ExitCode;

use clap::Parser;
use evenkeel_update_agent::cli::Cli;
use evenkeel_update_agent::commands;

fn main() -> ExitCode {
    commands::run_cli(Cli::parse())
}
