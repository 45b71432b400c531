//! `migrate`, `openapi`, `ca`, `token`, `accept-keys` and `hash-password`: commands that do one thing
//! and exit.

use std::fs;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use anyhow::Context;
use evenkeel_auth::{Authority, IssuedToken, Keys, ProjectRole, Role, users};
use evenkeel_kit::{Clock, Secret, SystemClock};
use evenkeel_store::{FleetTx, Store, projects};
use uuid::Uuid;

use crate::cli::{MigrateArgs, OperatorRole, OperatorTokenArgs};
use crate::config::Config;
use crate::database::{Database, PrivatePostgresMode, SchemaPolicy};
use crate::shared_keys::KeyFolders;
use crate::{app_context, data_dir, operator_tokens};

/// Migrates the database schema, or prints what a migration would do.
pub(crate) async fn migrate(config: &Config, args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::find(&config.data_dir)?;
    let if_older =
        if args.dry_run { SchemaPolicy::Keep } else { SchemaPolicy::Migrate(args.timeout) };
    let database =
        Database::open(config, data_dir, PrivatePostgresMode::JoinOrStart, if_older).await?;
    let done = finish_migration(&database.store, args).await;
    database.close().await;
    done
}

async fn finish_migration(store: &Store, args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    if args.dry_run {
        let steps = store.describe_migration().await.context("cannot read the schema")?;
        if steps.is_empty() {
            return print_line("the database schema is up to date");
        }
        return print_line(&steps.join("\n"));
    }
    tracing::info!("the database schema is up to date");
    if args.restored {
        let epoch = store.advance_ids().await.context("cannot let the IDs jump ahead")?;
        tracing::info!(epoch, "all IDs have jumped ahead");
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the OpenAPI document of the REST API.
pub(crate) fn print_openapi() -> anyhow::Result<ExitCode> {
    let text = evenkeel_inventory::document()
        .to_pretty_json()
        .context("cannot serialize the OpenAPI document")?;
    print_line(&text)
}

/// Prints a token for the REST API.
pub(crate) async fn print_operator_token(
    config: &Config,
    args: &OperatorTokenArgs,
) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::find(&config.data_dir)?;
    let folder = KeyFolders::new(config, data_dir).keys;
    // A token of a new key would be useless: no server accepts it.
    if Keys::read(&folder).context("the signing keys are not usable")?.is_none() {
        anyhow::bail!(
            "no keys of a server in {}; is --data-dir or --config right? A server of this release creates missing \
             keys when it starts",
            folder.display()
        );
    }
    let authority = app_context::open_authority(config, data_dir)?;
    let database =
        Database::open(config, data_dir, PrivatePostgresMode::JoinOrStart, SchemaPolicy::Refuse)
            .await?;
    let issued = issue_operator_token(&database, &authority, args).await;
    database.close().await;
    print_line(issued?.token.reveal())
}

async fn issue_operator_token(
    database: &Database,
    authority: &Authority,
    args: &OperatorTokenArgs,
) -> anyhow::Result<IssuedToken> {
    let tx = database.store.fleet().await?;
    let role = match (project_role(args.role), &args.project) {
        (None, _) => Role::Administrator,
        (Some(role), Some(project)) => role.in_project(resolve_project(&tx, project).await?),
        (Some(_), None) => anyhow::bail!("--project is required"),
    };
    let roles = [role];
    let holder = (args.subject.as_str(), &roles[..]);
    let issued = operator_tokens::issue_recorded(&tx, authority, holder, args.ttl).await;
    let issued = issued.context("cannot create a token")?;
    tx.commit().await.context("cannot record the token")?;
    tracing::info!(
        %role,
        subject = args.subject,
        id = %issued.id,
        expires_at = %issued.expires_at,
        "created a token"
    );
    Ok(issued)
}

/// Prints the certificate of the server's own authority. It writes nothing, so root may run it as
/// well as the owner of the data directory.
pub(crate) fn print_ca(config: &Config) -> anyhow::Result<ExitCode> {
    let path = KeyFolders::new(config, &config.data_dir).ca.join("ca.pem");
    let pem = fs::read_to_string(&path).with_context(|| {
        let path = path.display();
        format!(
            "cannot read {path}, which the first start of a server creates; check --data-dir and --config, \
             and run this command as root or as the user of the server"
        )
    })?;
    print_line(pem.trim_end())
}

/// The role in a project; none for the role in all projects.
const fn project_role(role: OperatorRole) -> Option<ProjectRole> {
    match role {
        OperatorRole::Viewer => Some(ProjectRole::Viewer),
        OperatorRole::Operator => Some(ProjectRole::Operator),
        OperatorRole::Approver => Some(ProjectRole::Approver),
        OperatorRole::Administrator => Some(ProjectRole::Administrator),
        OperatorRole::Admin => None,
    }
}

/// Records the keys of this server in place of those that the database records.
pub(crate) async fn accept_keys(config: &Config) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir::open(&config.data_dir)?;
    let database =
        Database::open(config, data_dir, PrivatePostgresMode::JoinOrStart, SchemaPolicy::Refuse)
            .await?;
    let keys = KeyFolders::new(config, data_dir);
    let accepted = keys.accept(&database.store, SystemClock.now()).await;
    let accepted = accepted.context("cannot record the keys of this server");
    database.close().await;
    accepted?;
    tracing::info!("the database accepts the keys of this server");
    Ok(ExitCode::SUCCESS)
}

/// Prints the hash of the password on the first line of standard input. The rule for passwords is that
/// of the users of the database, without the name, which is not known here.
pub(crate) fn print_password_hash() -> anyhow::Result<ExitCode> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .context("cannot read the password from standard input")?;
    line.truncate(line.trim_end_matches(['\r', '\n']).len());
    let password = Secret::new(line);
    // An empty password has an error of its own.
    if !password.reveal().is_empty() {
        users::check_new_password("", &password)?;
    }
    print_line(&users::hash_password(&password)?)
}

/// Returns a UUID unchanged; looks up a name in the database.
pub(crate) async fn resolve_project(tx: &FleetTx, project: &str) -> anyhow::Result<Uuid> {
    if let Ok(uuid) = project.parse() {
        return Ok(uuid);
    }
    let found = projects::find_by_name(tx, project).await;
    Ok(found.with_context(|| format!("cannot find the project {project:?}"))?.id.uuid())
}

fn print_line(text: &str) -> anyhow::Result<ExitCode> {
    match writeln!(io::stdout(), "{text}") {
        // The reader of the output, such as `head`, needs no more lines.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::FAILURE),
        written => {
            written.context("cannot write to standard output")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
