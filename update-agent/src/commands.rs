//! The commands of the command line.

mod completion;
pub mod doctor;
mod enroll;
mod history;
mod restore_updaters;
mod run;
mod status;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

use crate::cli::{AgentCommand, Cli, PathArgs};
use crate::config::Config;
use crate::modules::MODULES;
use crate::paths::AgentPaths;

/// Runs the command and prints its error.
pub fn run_cli(cli: Cli) -> ExitCode {
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => {
            // There is no way to report that the error stream is closed.
            writeln!(io::stderr(), "evenkeel-agent: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: AgentCommand) -> anyhow::Result<ExitCode> {
    let out = || io::stdout().lock();
    match command {
        AgentCommand::Enroll(arguments) => enroll::enroll(&arguments),
        AgentCommand::Run(arguments) => run::run_agent(&arguments),
        AgentCommand::Status(arguments) => status::print_status(&arguments, &mut out()),
        AgentCommand::History(arguments) => history::print_history(&arguments, &mut out()),
        AgentCommand::Doctor(arguments) => doctor::run_doctor(&arguments, &mut out()),
        AgentCommand::RestoreUpdaters(arguments) => {
            restore_updaters::restore_updaters(&arguments, &mut out())
        }
        AgentCommand::Completion(arguments) => completion::print_completion(&arguments, &mut out()),
        #[cfg(feature = "halt-points")]
        AgentCommand::Steps => run::print_steps(&mut out()),
        own_command => {
            let mut kinds = MODULES.iter();
            let end = kinds.find_map(|kind| (kind.run_command)(&own_command, &mut out()));
            end.context("no module has this command")?
        }
    }
}

/// Loads the configuration and the paths. Options on the command line take precedence.
pub(crate) fn load_config(args: &PathArgs) -> anyhow::Result<(Config, AgentPaths)> {
    let config = Config::load(args.config.as_deref()).context("read the configuration")?;
    let root = args.root.as_ref().unwrap_or(&config.root);
    let root =
        std::fs::canonicalize(root).with_context(|| format!("find the root {}", root.display()))?;
    let state = args.state_dir.as_ref().or(config.state_dir.as_ref());
    let state = state.map(std::path::absolute).transpose().context("find the state directory")?;
    let paths = AgentPaths::new(root, state);
    Ok((config, paths))
}

pub(crate) fn build_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")
}
