//! Opens the database, and starts the private Postgres if necessary.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_kit::Lifecycle;
use evenkeel_pg::{Options, PrivatePostgres};
use evenkeel_store::{SchemaCheck, Store, StoreOptions, find_database_role};
use tokio::time::timeout;

use crate::config::{Config, DatabaseConfig};
use crate::service_manager;

/// Maximum wait for open transactions on close. A streamed list keeps its transaction open for as
/// long as its client reads, possibly for ever. Transactions that are still open end with the
/// process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) const MIGRATION_URL_ALONE: &str =
    "database.migration_url needs database.url: the URL of the role with which the server works";

/// Open database, with its private Postgres if there is one.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) store: Store,
    private: Option<PrivatePostgres>,
}

/// Use of the private Postgres if `database.url` is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrivatePostgresMode {
    /// Start it, and stop it with this process.
    Start,
    /// Use the one that another process runs. If none runs, start the existing one until this process
    /// ends.
    JoinOrStart,
    /// Use the one that another process runs.
    Join,
}

/// What to do if the schema is older than the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchemaPolicy {
    /// Migrate it, and wait for locks for at most this long.
    Migrate(Duration),
    /// Leave it as it is.
    Keep,
    /// Fail, and name the command that migrates it.
    Refuse,
}

impl Database {
    /// Opens the database and ensures that its schema and role are usable.
    pub(crate) async fn open(
        config: &Config,
        data_dir: &Path,
        otherwise: PrivatePostgresMode,
        if_older: SchemaPolicy,
    ) -> anyhow::Result<Self> {
        if let (Some(url), SchemaPolicy::Migrate(limit)) =
            (&config.database.migration_url, if_older)
        {
            migrate_as_owner(&config.database, url.reveal(), limit).await?;
        }
        let database = Self::connect(config, data_dir, otherwise).await?;
        match database.ensure_schema(if_older).await {
            Ok(()) => Ok(database),
            Err(error) => {
                database.close().await;
                Err(error)
            }
        }
    }

    async fn connect(
        config: &Config,
        data_dir: &Path,
        otherwise: PrivatePostgresMode,
    ) -> anyhow::Result<Self> {
        let dir = data_dir.join("postgres");
        let mut private = None;
        let url = if let Some(url) = &config.database.url {
            url.reveal().to_owned()
        } else if let Some(url) = find_running_postgres(&dir, otherwise)? {
            tracing::info!(dir = %dir.display(), "using the private Postgres of another process");
            url
        } else {
            tracing::info!(dir = %dir.display(), "database.url is not set, starting a private Postgres");
            let room = u16::try_from(config.database.max_connections).unwrap_or(u16::MAX);
            let options = Options::new(&dir)
                .binaries_in(&config.database.binaries)
                .max_connections(room.saturating_mul(2).clamp(50, 1_000));
            let postgres = PrivatePostgres::start(options).await;
            let postgres = postgres.context("cannot start a private Postgres")?;
            let url = postgres.url();
            private = Some(postgres);
            url
        };
        let options = StoreOptions {
            max_connections: config.database.max_connections,
            acquire_timeout: config.database.acquire_timeout,
            list_statement_timeout: config.database.list_statement_timeout,
            shares: config.connection_shares().map_err(anyhow::Error::msg)?,
            password_file: config.database.password_file.clone(),
            allow_unencrypted: config.database.allow_unencrypted,
            ..StoreOptions::default()
        };
        match Store::connect(&url, options).await {
            Ok(store) => Ok(Self { store, private }),
            Err(error) => {
                if let Some(postgres) = private {
                    postgres.stop().await;
                }
                Err(error).context("cannot connect to the database")
            }
        }
    }

    async fn ensure_schema(&self, if_older: SchemaPolicy) -> anyhow::Result<()> {
        let check = self.store.check().await.context("cannot check the database")?;
        match (check, if_older) {
            (SchemaCheck::Incompatible(why), _) => Err(why).context("the database is not usable"),
            (SchemaCheck::Current, _) => Ok(()),
            (SchemaCheck::Newer { step }, _) => {
                tracing::info!(
                    step,
                    "the database schema is newer than this program, which can still use it"
                );
                Ok(())
            }
            (SchemaCheck::Empty | SchemaCheck::Outdated, SchemaPolicy::Keep) => Ok(()),
            (SchemaCheck::Empty | SchemaCheck::Outdated, SchemaPolicy::Migrate(limit)) => {
                tracing::info!(timeout = ?limit, "migrating the database schema");
                service_manager::notify_status("migrating the database schema");
                let migrated = self.store.migrate_within(limit).await;
                migrated.context("cannot migrate the database schema")
            }
            (SchemaCheck::Empty, SchemaPolicy::Refuse) => {
                bail!("the database is empty: run `evenkeeld migrate` first")
            }
            (SchemaCheck::Outdated, SchemaPolicy::Refuse) => {
                bail!(
                    "the database schema is older than this program: run `evenkeeld migrate` first"
                )
            }
        }
    }

    /// Ends the process if the private Postgres ends unexpectedly.
    pub(crate) fn stop_if_postgres_ends(&self, life: &Lifecycle) {
        let Some(postgres) = &self.private else {
            return;
        };
        let (ended, stopping) = (postgres.wait_for_end(), life.stopping());
        life.spawn("private postgres", async move {
            tokio::select! {
                () = stopping.cancelled() => Ok(()),
                status = ended => match status {
                    Some(status) => bail!("the private Postgres ended unexpectedly: {status}"),
                    None => bail!("the private Postgres ended unexpectedly"),
                },
            }
        });
    }

    /// Closes all connections, then stops the private Postgres, which ends the remaining sessions.
    pub(crate) async fn close(self) {
        close_store(&self.store).await;
        if let Some(postgres) = self.private {
            postgres.stop().await;
        }
    }
}

/// Closes all connections, and waits only for a limited time for open transactions.
async fn close_store(store: &Store) {
    if timeout(CLOSE_TIMEOUT, store.close()).await.is_err() {
        tracing::warn!(timeout = ?CLOSE_TIMEOUT, "some transactions are still open, not waiting for them");
    }
}

/// Migrates the schema with the role of `database.migration_url`, and grants the role of `database.url` what a server needs.
/// Runs before a connection with the latter, which may not be able to read the schema yet.
async fn migrate_as_owner(
    database: &DatabaseConfig,
    url: &str,
    limit: Duration,
) -> anyhow::Result<()> {
    let service = database.url.as_ref().context(MIGRATION_URL_ALONE)?;
    let role = find_database_role(service.reveal()).context("database.url is not valid")?;
    let options = StoreOptions {
        max_connections: 2,
        acquire_timeout: database.acquire_timeout,
        allow_unencrypted: database.allow_unencrypted,
        ..StoreOptions::default()
    };
    let store = Store::connect(url, options).await;
    let store = store.context("cannot connect to the database of database.migration_url")?;
    let migrated = migrate_if_older(&store, &role, limit).await;
    close_store(&store).await;
    migrated
}

/// Migrates the schema, unless a newer program has migrated it.
async fn migrate_if_older(store: &Store, role: &str, limit: Duration) -> anyhow::Result<()> {
    let check = store.check().await.context("cannot check the database")?;
    match check {
        SchemaCheck::Newer { .. } => return Ok(()),
        SchemaCheck::Incompatible(why) => {
            return Err(why).context("the database is not usable with database.migration_url");
        }
        SchemaCheck::Current => {}
        SchemaCheck::Empty | SchemaCheck::Outdated => {
            tracing::info!(
                timeout = ?limit,
                "migrating the database schema with the role of database.migration_url"
            );
            service_manager::notify_status("migrating the database schema");
        }
    }
    let migrated = store.migrate_for_service(role, limit).await;
    migrated.context("cannot migrate the database schema with the role of database.migration_url")
}

fn find_running_postgres(
    dir: &Path,
    otherwise: PrivatePostgresMode,
) -> anyhow::Result<Option<String>> {
    if otherwise == PrivatePostgresMode::Start {
        return Ok(None);
    }
    // Only `evenkeeld all` creates a database: another command with the wrong data directory would
    // create an empty one.
    if otherwise == PrivatePostgresMode::JoinOrStart && !dir.join("data").exists() {
        bail!(
            "no database is configured, and there is no private Postgres in {}: set database.url, or \
             check --data-dir",
            dir.display()
        );
    }
    let url = PrivatePostgres::find_running(dir).context("cannot look for a private Postgres")?;
    if url.is_none() && otherwise == PrivatePostgresMode::Join {
        bail!(
            "no database is configured, and no private Postgres runs in {}: set database.url, or \
             EVENKEELD_DATABASE__URL, or check --data-dir and start `evenkeeld all`, which starts a \
             private Postgres",
            dir.display()
        );
    }
    Ok(url)
}
