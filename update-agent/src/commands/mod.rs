//! What the commands of the command line do.

mod completion;
pub mod doctor;
mod enroll;
mod history;
mod image;
pub mod images;
pub mod plan;
mod run;
mod status;
mod text;
pub mod workshop;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

use crate::cli::{Cli, Command, Where};
use crate::config::Config;
use crate::place::Place;

/// Does what the command line asks for and says how it went.
pub fn execute(cli: Cli) -> ExitCode {
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(error) => {
            // Nothing can be done about an error stream that is gone.
            writeln!(io::stderr(), "evenkeel-agent: {error:#}").ok();
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command) -> anyhow::Result<ExitCode> {
    let out = || io::stdout().lock();
    match command {
        Command::Enroll(arguments) => enroll::enroll(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Status(arguments) => status::status(&arguments, &mut out()),
        Command::Plan(arguments) => plan::plan(&arguments, &mut out()),
        Command::History(arguments) => history::history(&arguments, &mut out()),
        Command::Doctor(arguments) => doctor::doctor(&arguments, &mut out()),
        Command::Image(arguments) => image::image(&arguments, &mut out()),
        Command::Trial(arguments) => image::trial(&arguments),
        Command::Completion(arguments) => completion::completion(&arguments, &mut out()),
        #[cfg(feature = "halt-points")]
        Command::Steps => run::steps(&mut out()),
    }
}

/// The configuration and the place that the command line names; the command line wins.
fn settle(given: &Where) -> anyhow::Result<(Config, Place)> {
    let config = Config::load(given.config.as_deref()).context("read the configuration")?;
    let root = given.root.as_ref().unwrap_or(&config.root);
    let root =
        std::fs::canonicalize(root).with_context(|| format!("find the root {}", root.display()))?;
    let state = given.state_dir.as_ref().or(config.state_dir.as_ref());
    let state = state
        .map(std::path::absolute)
        .transpose()
        .context("find the state directory")?;
    let place = Place::new(root, state);
    Ok((config, place))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}
