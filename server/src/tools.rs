//! `migrate`, `openapi`, `token` and `hash-password`: they do one thing and end.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use chrono::TimeDelta;
use evenkeel_auth::{Role, users};
use evenkeel_kit::{Clock, Secret, SystemClock};
use evenkeel_store::projects;
use uuid::Uuid;

use crate::cli::{Operator, Rights};
use crate::config::Config;
use crate::database::{Database, IfOlder, Otherwise};
use crate::{data_dir, house};

/// Brings the database schema up to date.
pub(crate) async fn migrate(config: &Config) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::open(&config.data_dir)?;
    let database = Database::open(config, data_dir, Otherwise::Borrow, IfOlder::Migrate).await?;
    database.close().await;
    tracing::info!("the database schema is up to date");
    Ok(ExitCode::SUCCESS)
}

/// Prints the document of the REST API.
pub(crate) fn openapi() -> anyhow::Result<ExitCode> {
    let text = evenkeel_inventory::document()
        .to_pretty_json()
        .context("cannot write the document")?;
    print(&text)
}

/// Prints a token.
pub(crate) async fn operator_token(config: &Config, wanted: &Operator) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::open(&config.data_dir)?;
    let role = match (wanted.role, &wanted.project) {
        (Rights::Admin, _) => Role::Administrator,
        (Rights::Read, Some(project)) => Role::Read(find(config, data_dir, project).await?),
        (Rights::Write, Some(project)) => Role::Write(find(config, data_dir, project).await?),
        (_, None) => anyhow::bail!("--project is needed"),
    };
    let authority = house::authority(config, data_dir)?;
    let lifetime = TimeDelta::from_std(wanted.ttl).context("--ttl is too long")?;
    let issued = authority
        .issue_operator(&wanted.subject, &[role], lifetime, SystemClock.now())
        .context("cannot make a token")?;
    tracing::info!(%role, subject = wanted.subject, expires_at = %issued.expires_at, "made a token");
    print(issued.token.reveal())
}

/// Prints the hash of the password on the first line of standard input.
pub(crate) fn hash_password() -> anyhow::Result<ExitCode> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .context("cannot read the password from standard input")?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    print(&users::hash(&Secret::new(line))?)
}

/// A UUID is taken as it is; a name is looked up in the database.
async fn find(config: &Config, data_dir: &Path, project: &str) -> anyhow::Result<Uuid> {
    if let Ok(uuid) = project.parse() {
        return Ok(uuid);
    }
    let database = Database::open(config, data_dir, Otherwise::Borrow, IfOlder::Refuse).await?;
    let found = look_up(&database, project).await;
    database.close().await;
    found.with_context(|| format!("cannot find the project {project:?}"))
}

async fn look_up(database: &Database, project: &str) -> anyhow::Result<Uuid> {
    let tx = database.store.fleet().await?;
    Ok(projects::find_by_name(&tx, project).await?.id.uuid())
}

fn print(text: &str) -> anyhow::Result<ExitCode> {
    writeln!(io::stdout(), "{text}").context("cannot print")?;
    Ok(ExitCode::SUCCESS)
}
