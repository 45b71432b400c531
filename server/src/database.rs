//! Which Postgres, and whether it will do.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_kit::Lifecycle;
use evenkeel_pg::{Options, PrivatePostgres};
use evenkeel_store::{Schema, Store, StoreOptions};
use tokio::time::timeout;

use crate::config::Config;

/// How long a close waits for transactions that are still open. A list that is streamed keeps its own for as long as its
/// client reads, which may be for ever; what is left then ends with the process.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// An open database, with the Postgres under it if that is ours.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) store: Store,
    private: Option<PrivatePostgres>,
}

/// What to do when no database is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// Start a private one, and keep it.
    Keep,
    /// Use the private one that another process keeps; if none does, start it for the time being.
    Borrow,
    /// Use the private one that another process keeps.
    Join,
}

/// What to do when the schema is older than the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfOlder {
    /// Bring it up to date.
    Migrate,
    /// Say who does.
    Refuse,
}

impl Database {
    /// Opens the database and makes sure that the program can work with it.
    pub(crate) async fn open(
        config: &Config,
        data_dir: &Path,
        otherwise: Otherwise,
        if_older: IfOlder,
    ) -> anyhow::Result<Self> {
        let database = Self::connect(config, data_dir, otherwise).await?;
        match database.make_fit(if_older).await {
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
        otherwise: Otherwise,
    ) -> anyhow::Result<Self> {
        let dir = data_dir.join("postgres");
        let mut private = None;
        let url = if let Some(url) = &config.database.url {
            url.reveal().to_owned()
        } else if let Some(url) = kept_elsewhere(&dir, otherwise)? {
            tracing::info!(dir = %dir.display(), "using the private Postgres that another process keeps");
            url
        } else {
            tracing::info!(dir = %dir.display(), "no database.url is set, starting a private Postgres");
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
            acquire_timeout: config.database.acquire_within,
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

    async fn make_fit(&self, if_older: IfOlder) -> anyhow::Result<()> {
        let check = self
            .store
            .check()
            .await
            .context("cannot look at the database")?;
        match (check.context("the database will not do")?, if_older) {
            (Schema::Current, _) => Ok(()),
            (Schema::Older, IfOlder::Migrate) => {
                tracing::info!("bringing the database schema up to date");
                self.store
                    .migrate()
                    .await
                    .context("cannot bring the database schema up to date")
            }
            (Schema::Older, IfOlder::Refuse) => {
                bail!(
                    "the database schema is older than this program: run `evenkeeld migrate` first"
                )
            }
        }
    }

    /// Ends the process when the private Postgres ends by itself.
    pub(crate) fn watch(&self, life: &Lifecycle) {
        let Some(postgres) = &self.private else {
            return;
        };
        let (ended, stopping) = (postgres.ended(), life.stopping());
        life.spawn("private postgres", async move {
            tokio::select! {
                () = stopping.cancelled() => Ok(()),
                status = ended => match status {
                    Some(status) => bail!("Postgres ended by itself: {status}"),
                    None => bail!("Postgres ended by itself"),
                },
            }
        });
    }

    /// Lets go of all connections, then stops the Postgres that is ours, which ends the sessions that are left.
    pub(crate) async fn close(self) {
        if timeout(CLOSE_WITHIN, self.store.close()).await.is_err() {
            tracing::warn!(patience = ?CLOSE_WITHIN, "some transactions are still open, not waiting for them");
        }
        if let Some(postgres) = self.private {
            postgres.stop().await;
        }
    }
}

fn kept_elsewhere(dir: &Path, otherwise: Otherwise) -> anyhow::Result<Option<String>> {
    if otherwise == Otherwise::Keep {
        return Ok(None);
    }
    let found =
        PrivatePostgres::kept_elsewhere(dir).context("cannot look for a private Postgres")?;
    if found.is_none() && otherwise == Otherwise::Join {
        bail!(
            "there is no database: set database.url, or EVENKEELD_DATABASE__URL. \
             Only `evenkeeld all` starts a private Postgres"
        );
    }
    Ok(found)
}
