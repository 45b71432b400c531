//! Runs a command; starts and stops the services.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use evenkeel_kit::telemetry::{self, LogFormat};
use evenkeel_kit::{Clock, Lifecycle, SystemClock, chain};
use evenkeel_store::DEFAULT_MIGRATION_TIMEOUT;

use crate::app_context::AppContext;
use crate::cli::{AuditCommand, Cli, Command, TokenCommand};
use crate::config::Config;
use crate::database::{Database, PrivatePostgresMode, SchemaPolicy};
use crate::first_start::RestEndpoint;
use crate::services::{Addresses, Listeners, ServiceSelection};
use crate::shared_keys::KeyFolders;
use crate::{
    audit, check, data_dir, first_start, operator_tokens, service_manager, support_bundle, tools,
};

/// Runs the command. Errors are written to standard error.
pub async fn run(cli: Cli) -> ExitCode {
    let config = Config::load(&cli).and_then(|config| {
        telemetry::init(&config.log)?;
        Ok(config)
    });
    let config = match config {
        Ok(config) => config,
        Err(error) => return print_error(LogFormat::Text, &error),
    };
    let format = config.log.format;
    match Box::pin(dispatch(cli, config)).await {
        Ok(exit) => exit,
        Err(error) => print_error(format, &error),
    }
}

fn print_error(format: LogFormat, error: &anyhow::Error) -> ExitCode {
    let message = chain(error.as_ref());
    match format {
        LogFormat::Json => tracing::error!(error = %message, "evenkeeld failed"),
        // Keeps the line breaks of the message.
        LogFormat::Text => _ = writeln!(std::io::stderr(), "evenkeeld: {message}"),
    }
    ExitCode::FAILURE
}

async fn dispatch(cli: Cli, config: Config) -> anyhow::Result<ExitCode> {
    let ready_file = cli.ready_file.as_deref();
    match cli.command {
        Command::All => run_services(config, ServiceSelection::ALL, ready_file).await,
        Command::Inventory => run_services(config, ServiceSelection::INVENTORY, ready_file).await,
        Command::MaintenanceManager => {
            run_services(config, ServiceSelection::MAINTENANCE_MANAGER, ready_file).await
        }
        Command::OsResourceManager => {
            run_services(config, ServiceSelection::OS_RESOURCE_MANAGER, ready_file).await
        }
        Command::Check(args) => check::print_faults(&config, args.online).await,
        Command::SupportBundle(args) => support_bundle::write(&config, &args).await,
        Command::Migrate(args) => tools::migrate(&config, &args).await,
        Command::Openapi => tools::print_openapi(),
        Command::Ca => tools::print_ca(&config),
        Command::Token(TokenCommand::Operator(args)) => {
            tools::print_operator_token(&config, &args).await
        }
        Command::Audit(AuditCommand::Verify(args)) => audit::verify(&config, &args).await,
        Command::AcceptKeys => tools::accept_keys(&config).await,
        Command::HashPassword => tools::print_password_hash(),
    }
}

/// Runs services until the process receives a stop signal or one of its tasks fails.
async fn run_services(
    config: Config,
    selection: ServiceSelection,
    ready_file: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::open(&config.data_dir)?;
    // Everything that needs no database is checked before a database is started.
    selection.check(&config)?;
    let listeners = Listeners::bind(&config, selection)?;
    let (otherwise, if_older) = if selection == ServiceSelection::ALL {
        (PrivatePostgresMode::Start, SchemaPolicy::Migrate(DEFAULT_MIGRATION_TIMEOUT))
    } else {
        (PrivatePostgresMode::Join, SchemaPolicy::Refuse)
    };
    service_manager::notify_status("opening the database");
    let database = Database::open(&config, data_dir, otherwise, if_older).await?;
    let life = Lifecycle::new();
    service_manager::notify_when_stopping(&life);
    let shutdown_timeout = config.shutdown_timeout;
    let start = Box::pin(start_services(config, data_dir, listeners, &database, &life));
    let outcome = start_unless_stopped(&life, ready_file, start).await;
    if outcome.is_err() {
        life.stop();
    }
    let exit = life.run_until_stopped(shutdown_timeout).await;
    database.close().await;
    tracing::info!("stopped");
    outcome.map(|()| exit)
}

/// Waits for the start of the services and reports them ready. A signal ends the wait.
async fn start_unless_stopped(
    life: &Lifecycle,
    ready_file: Option<&Path>,
    start: impl Future<Output = anyhow::Result<StartedServices>>,
) -> anyhow::Result<()> {
    life.stop_on_signals().context("cannot listen to signals")?;
    let started = tokio::select! {
        started = start => started?,
        () = life.stopping().cancelled_owned() => return Ok(()),
    };
    if let Some(path) = ready_file {
        started.addresses.write_ready_file(path)?;
    }
    service_manager::notify_ready(&started.status());
    Ok(())
}

/// Running services.
#[derive(Debug)]
struct StartedServices {
    addresses: Addresses,
    endpoint: RestEndpoint,
}

impl StartedServices {
    /// State for the service manager. The script of the package reads the options of `evenkeel login`
    /// from it.
    fn status(&self) -> String {
        match self.addresses.rest {
            Some(_) => format!("ready; log in with: evenkeel login {}", self.endpoint.options()),
            None => "ready".to_owned(),
        }
    }
}

async fn start_services(
    config: Config,
    data_dir: &Path,
    listeners: Listeners,
    database: &Database,
    life: &Lifecycle,
) -> anyhow::Result<StartedServices> {
    database.stop_if_postgres_ends(life);
    let folders = KeyFolders::new(&config, data_dir);
    folders.check(&database.store, SystemClock.now()).await?;
    let context = AppContext::open(&config, data_dir, database.store.clone())?;
    operator_tokens::load_revocations(&context.store, &context.authority)
        .await
        .context("cannot read the revoked tokens")?;
    if context.authority.has_external_issuers() {
        operator_tokens::load_project_names(&context.store, &context.authority)
            .await
            .context("cannot read the names of the projects")?;
    }
    let addresses = listeners.addresses();
    let token_for = config.auth.first_token_ttl;
    let security = config.rest_tls().security().map_err(anyhow::Error::msg)?;
    let endpoint = RestEndpoint::new(addresses.rest, security, &folders.ca);
    first_start::run_first_start(&context, data_dir, token_for, &endpoint)
        .await
        .context("the first start failed")?;
    listeners.serve(config, data_dir, &context, life)?;
    tracing::info!(
        rest = addresses.rest.map(tracing::field::display),
        southbound = addresses.southbound.map(tracing::field::display),
        files = addresses.files.map(tracing::field::display),
        admin = %addresses.admin,
        "ready"
    );
    Ok(StartedServices { addresses, endpoint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_ends_a_start_that_waits() {
        let life = Lifecycle::new();
        life.stop();
        let outcome = start_unless_stopped(&life, None, std::future::pending()).await;
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}
