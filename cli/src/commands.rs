//! One file per noun of the command line.

pub mod account;
pub mod assignment;
pub mod completion;
pub mod context;
pub mod custom_config;
pub mod explain;
pub mod host;
pub mod instance;
pub mod join_token;
pub mod location;
pub mod login;
mod names;
pub mod os;
pub mod pause;
pub mod policy;
pub mod project;
pub mod provider;
pub mod region;
pub mod run;
pub mod schedule;
pub mod settings;
pub mod site;
pub mod update;

use std::path::Path;

use evenkeel_kit::chain;
use serde::de::DeserializeOwned;

use crate::args::{Cli, Command, Globals};
use crate::client::{Client, Renewal, Target};
use crate::contexts::Contexts;
use crate::view::{Printer, harmless};
use crate::{Ending, Failure, World};
use os::OsCommand;

/// Where the server is if nobody says otherwise: `evenkeeld` listens there by default.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";
/// The project that the first start of a server makes.
const DEFAULT_PROJECT: &str = "default";

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// It could not be run to its end; [`Failure::hint`] says what to do.
    pub async fn run(self, world: &mut World<'_>) -> Result<Ending, Failure> {
        let globals = &self.globals;
        match self.command {
            Command::Context(command) => command.run(globals, world)?,
            Command::Login(login) => login.run(globals, world).await?,
            Command::Completion(completion) => completion.run(world)?,
            Command::Os(OsCommand::Moving(moving)) => {
                let printer = &mut Printer::new(world, globals.output, globals.quiet);
                return moving.run(printer).await;
            }
            Command::Version => writeln!(world.out, "evenkeel {}", env!("CARGO_PKG_VERSION"))?,
            other => return ask(other, globals, world).await,
        }
        Ok(Ending::Done)
    }
}

/// Runs a command that asks the server, and says what the next one will miss.
async fn ask(
    command: Command,
    globals: &Globals,
    world: &mut World<'_>,
) -> Result<Ending, Failure> {
    let client = Client::new(target(globals, world)?)?;
    let ending = Box::pin(answer(command, &client, globals, world)).await;
    if let Some(failure) = client.unkept() {
        let why = harmless(&chain(&failure).to_string());
        // How the command ended counts, also if nobody can be told this.
        let _ = writeln!(world.notes, "note: the new token is not kept: {why}");
    }
    ending
}

async fn answer(
    command: Command,
    client: &Client,
    globals: &Globals,
    world: &mut World<'_>,
) -> Result<Ending, Failure> {
    let now = world.clock.now();
    let printer = &mut Printer::new(world, globals.output, globals.quiet);
    match command {
        Command::Project(command) => command.run(client, printer).await?,
        Command::Region(command) => command.run(client, printer).await?,
        Command::Site(command) => command.run(client, printer).await?,
        Command::Host(command) => command.run(client, printer).await?,
        Command::Instance(command) => command.run(client, printer).await?,
        Command::Os(command) => return command.run(client, printer).await,
        Command::Policy(command) => command.run(client, printer).await?,
        Command::Assignment(command) => command.run(client, printer).await?,
        Command::Pause(pause) => pause.run(client, printer).await?,
        Command::Resume(resume) => resume.run(client, printer).await?,
        Command::Schedule(command) => command.run(client, printer, now).await?,
        Command::Provider(command) => command.run(client, printer).await?,
        Command::CustomConfig(command) => command.run(client, printer).await?,
        Command::Account(command) => command.run(client, printer).await?,
        Command::Location(command) => command.run(client, printer).await?,
        Command::JoinToken(command) => command.run(client, printer).await?,
        Command::Run(command) => return command.run(client, printer).await,
        Command::Update(command) => command.run(client, printer).await?,
        Command::Explain(explain) => explain.run(client, printer).await?,
        Command::Context(_) | Command::Login(_) | Command::Completion(_) | Command::Version => {
            unreachable!("these ask nobody")
        }
    }
    Ok(Ending::Done)
}

/// Where and as whom to ask: the command line and the environment go before the context.
fn target(globals: &Globals, world: &World<'_>) -> Result<Target, Failure> {
    let contexts = Contexts::load(&world.environment.contexts)?;
    let context = contexts.chosen(globals.context.as_deref())?;
    let server = globals.server.as_deref();
    // A token is for the server that it was stored for, and for no other.
    let same = context.filter(|context| server.is_none_or(|server| server == context.server));
    let renewal = same.and_then(|context| {
        Some(Renewal {
            login: context.login.clone()?,
            contexts: world.environment.contexts.clone(),
            context: context.name.clone(),
        })
    });
    let given = world.environment.token.clone();
    Ok(Target {
        server: server
            .or(context.map(|context| context.server.as_str()))
            .unwrap_or(DEFAULT_SERVER)
            .to_owned(),
        project: globals
            .project
            .clone()
            .or_else(|| context.and_then(|context| context.project.clone()))
            .unwrap_or_else(|| DEFAULT_PROJECT.to_owned()),
        // A token that was given is not renewed.
        renewal: renewal.filter(|_| given.is_none()),
        token: given.or_else(|| same.and_then(|context| context.token.clone())),
        ca: globals
            .ca
            .clone()
            .or_else(|| same.and_then(|context| context.ca.clone())),
        retry_for: globals.retry_for,
    })
}

/// Reads a YAML file that a person wrote.
fn read_yaml<T: DeserializeOwned>(path: &Path, expected: &'static str) -> Result<T, Failure> {
    let text = std::fs::read_to_string(path).map_err(|source| Failure::File {
        path: path.to_owned(),
        source,
    })?;
    serde_saphyr::from_str(&text).map_err(|error| Failure::Content {
        path: path.to_owned(),
        expected,
        source: Box::new(error),
    })
}
