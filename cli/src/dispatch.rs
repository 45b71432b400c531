//! Runs the command of a command line.

use clap::CommandFactory as _;
use evenkeel_kit::chain;

use crate::args::{Cli, Command};
use crate::client::{Client, DEFAULT_PROJECT, DEFAULT_SERVER, Renewal, Target};
use crate::commands::logout::log_out;
use crate::commands::os::OsCommand;
use crate::commands::token::TokenCommand;
use crate::commands::user::UserCommand;
use crate::commands::whoami::print_caller;
use crate::contexts::Contexts;
use crate::options::GlobalOptions;
use crate::output::Printer;
use crate::page::sanitize_text;
use crate::{Ending, Failure, System};

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// The command failed; [`Failure::hint`] says what to do.
    pub async fn run(self, system: &mut System<'_>) -> Result<Ending, Failure> {
        let globals = &self.globals;
        match self.command {
            Command::Context(command) => command.run(globals, system)?,
            Command::Login(login) => login.run(globals, system).await?,
            Command::Logout => log_out(globals, system).await?,
            Command::Completion(completion) => completion.run(&mut Cli::command(), system)?,
            Command::Configuration(command) => return command.run(globals, system),
            Command::Group(command) => return command.run(globals, system),
            Command::Os(OsCommand::Transfer(moving)) => {
                let printer = &mut Printer::new(system, globals.output, globals.ids_only);
                return moving.run(printer).await;
            }
            Command::Version => {
                let printer = &mut Printer::new(system, globals.output, globals.ids_only);
                let version = env!("CARGO_PKG_VERSION");
                if globals.ids_only {
                    printer.print_text(version)?;
                } else if globals.output.is_table() {
                    printer.print_text(&format!("evenkeel {version}"))?;
                } else {
                    printer.print_data(&serde_json::json!({ "version": version }))?;
                }
            }
            other => return run_with_server(other, globals, system).await,
        }
        Ok(Ending::Done)
    }
}

/// Runs a command that needs a server. Prints a note if a renewed token could not be saved.
async fn run_with_server(
    command: Command,
    globals: &GlobalOptions,
    system: &mut System<'_>,
) -> Result<Ending, Failure> {
    let client = Client::new(client_target(globals, system)?)?;
    let contexts = &system.environment.contexts;
    if Contexts::are_exposed(contexts) {
        let path = sanitize_text(&contexts.display().to_string());
        // The result of the command counts, even if this note cannot be written.
        let _ = writeln!(
            system.notes,
            "note: other users of this machine can read the tokens in {path}; run `chmod 600 {path}`"
        );
    }
    client.renew_expiring_token(system.clock.now()).await;
    let ending = Box::pin(dispatch(command, &client, globals, system)).await;
    if let Some(failure) = client.take_save_error() {
        let why = sanitize_text(&chain(&failure).to_string());
        // The result of the command counts, even if this note cannot be written.
        let _ = writeln!(system.notes, "note: cannot save the new token: {why}");
    }
    ending.map_err(|error| explain_token_of_variable(error, system))
}

/// Adds a hint to the error of a token that the server refuses, if it is that of the variable: a
/// login would not replace it.
fn explain_token_of_variable(error: Failure, system: &System<'_>) -> Failure {
    match error {
        Failure::Refused { status: 401, message, .. } if system.environment.token.is_some() => {
            Failure::usage_with(
                message,
                "the token of the variable EVENKEEL_TOKEN was used, not that of `evenkeel login`: unset \
                 the variable, or set it to a valid token",
            )
        }
        error => error,
    }
}

async fn dispatch(
    command: Command,
    client: &Client,
    globals: &GlobalOptions,
    system: &mut System<'_>,
) -> Result<Ending, Failure> {
    let now = system.clock.now();
    if let Some(note) = globals.project.as_ref().and_then(|_| project_note(&command)) {
        Printer::new(system, globals.output, globals.ids_only).print_note(note)?;
    }
    let command = match command {
        // These read passwords.
        Command::User(command) => {
            command.run(client, globals, system).await?;
            return Ok(Ending::Done);
        }
        Command::Passwd(command) => {
            command.run(client, globals, system).await?;
            return Ok(Ending::Done);
        }
        other => other,
    };
    let printer = &mut Printer::new(system, globals.output, globals.ids_only);
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
        Command::Token(command) => command.run(client, printer).await?,
        Command::NotificationTarget(command) => command.run(client, printer).await?,
        Command::Notification(command) => command.run(client, printer).await?,
        Command::Whoami => print_caller(client, printer).await?,
        Command::Run(command) => return command.run(client, printer).await,
        Command::Update(command) => command.run(client, printer).await?,
        Command::Audit(audit) => audit.run(client, printer).await?,
        Command::Explain(explain) => explain.run(client, printer).await?,
        Command::User(_)
        | Command::Passwd(_)
        | Command::Context(_)
        | Command::Login(_)
        | Command::Logout
        | Command::Completion(_)
        | Command::Configuration(_)
        | Command::Group(_)
        | Command::Version => {
            unreachable!("these commands have run before, or need no server")
        }
    }
    Ok(Ending::Done)
}

/// Note that a command does not use the project of the command line or of the environment. Both look
/// the same here, so it is no error.
fn project_note(command: &Command) -> Option<&'static str> {
    match command {
        Command::User(UserCommand::List) => {
            Some("this lists users of all projects; --project and EVENKEEL_PROJECT are not used")
        }
        Command::Token(TokenCommand::List) => {
            Some("this lists tokens of all projects; --project and EVENKEEL_PROJECT are not used")
        }
        Command::Audit(audit) if audit.has_project_uuid() => {
            Some("--project-uuid selects the project; --project and EVENKEEL_PROJECT are not used")
        }
        _ => None,
    }
}

/// Server and credentials: the command line and the environment override the context.
fn client_target(globals: &GlobalOptions, system: &System<'_>) -> Result<Target, Failure> {
    let contexts = Contexts::load(&system.environment.contexts)?;
    let context = contexts.select(globals.context.as_deref())?;
    let server = globals.server.as_deref();
    // A token is only sent to the server that it was stored for.
    let stored = context.filter(|context| server.is_none_or(|server| server == context.server));
    let renewal = stored.and_then(|context| {
        Some(Renewal {
            login: context.login.clone()?,
            contexts: system.environment.contexts.clone(),
            context: context.name.clone(),
        })
    });
    let env_token = system.environment.token.clone();
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
        // A token from the environment is not renewed.
        renewal: renewal.filter(|_| env_token.is_none()),
        token: env_token.or_else(|| stored.and_then(|context| context.token.clone())),
        ca: globals.ca.clone().or_else(|| stored.and_then(|context| context.ca.clone())),
        retry_for: globals.retry_for,
    })
}
