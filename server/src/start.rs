//! From a command to a running process, and back.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use evenkeel_kit::Lifecycle;
use evenkeel_kit::telemetry::{self, LogFormat};

use crate::cli::{Cli, Command, Token};
use crate::config::Config;
use crate::database::{Database, IfOlder, Otherwise};
use crate::house::House;
use crate::services::{Addresses, Listeners, Wanted};
use crate::{data_dir, first_start, tools};

/// Does what the command line says. Why it cannot is said on standard error.
pub async fn run(cli: Cli) -> ExitCode {
    let config = Config::load(&cli).and_then(|config| {
        telemetry::init(&config.log)?;
        Ok(config)
    });
    let config = match config {
        Ok(config) => config,
        Err(error) => return complain(LogFormat::Text, &error),
    };
    let format = config.log.format;
    match obey(cli, config).await {
        Ok(exit) => exit,
        Err(error) => complain(format, &error),
    }
}

fn complain(format: LogFormat, error: &anyhow::Error) -> ExitCode {
    match format {
        LogFormat::Json => tracing::error!(error = format!("{error:#}"), "cannot go on"),
        // With its line breaks, for a person to read.
        LogFormat::Text => _ = writeln!(std::io::stderr(), "evenkeeld: {error:#}"),
    }
    ExitCode::FAILURE
}

async fn obey(cli: Cli, config: Config) -> anyhow::Result<ExitCode> {
    let ready_file = cli.ready_file.as_deref();
    match cli.command {
        Command::All => serve(config, Wanted::ALL, ready_file).await,
        Command::Inventory => serve(config, Wanted::INVENTORY, ready_file).await,
        Command::MaintenanceManager => serve(config, Wanted::MAINTENANCE_MANAGER, ready_file).await,
        Command::OsResourceManager => serve(config, Wanted::OS_RESOURCE_MANAGER, ready_file).await,
        Command::Migrate => tools::migrate(&config).await,
        Command::Openapi => tools::openapi(),
        Command::Token(Token::Operator(wanted)) => tools::operator_token(&config, &wanted).await,
        Command::HashPassword => tools::hash_password(),
    }
}

/// Runs services until the process is asked to stop or one of its tasks fails.
async fn serve(
    config: Config,
    wanted: Wanted,
    ready_file: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::open(&config.data_dir)?;
    // What needs no database is checked before one is started.
    wanted.check(&config)?;
    let listeners = Listeners::bind(&config, wanted)?;
    let (otherwise, if_older) = if wanted == Wanted::ALL {
        (Otherwise::Keep, IfOlder::Migrate)
    } else {
        (Otherwise::Join, IfOlder::Refuse)
    };
    let database = Database::open(&config, data_dir, otherwise, if_older).await?;
    let life = Lifecycle::new();
    let stop_within = config.stop_within;
    let started = start(config, data_dir, listeners, &database, &life);
    let told = started.await.and_then(|addresses| match ready_file {
        Some(path) => addresses.write(path),
        None => Ok(()),
    });
    if told.is_err() {
        life.stop();
    }
    let exit = life.run_until_stopped(stop_within).await;
    database.close().await;
    tracing::info!("stopped");
    told.map(|()| exit)
}

async fn start(
    config: Config,
    data_dir: &Path,
    listeners: Listeners,
    database: &Database,
    life: &Lifecycle,
) -> anyhow::Result<Addresses> {
    database.watch(life);
    let house = House::open(&config, data_dir, database.store.clone())?;
    let addresses = listeners.addresses();
    let token_for = config.auth.first_token_for;
    first_start::welcome(&house, data_dir, token_for, addresses.rest)
        .await
        .context("the first start failed")?;
    listeners.serve(config, data_dir, &house, life)?;
    tracing::info!(
        rest = addresses.rest.map(tracing::field::display),
        southbound = addresses.southbound.map(tracing::field::display),
        files = addresses.files.map(tracing::field::display),
        admin = %addresses.admin,
        "ready"
    );
    Ok(addresses)
}
