//! The handle on the database.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Secret;
use evenkeel_migrations::Migrator;
use sea_orm::sqlx::{self, Connection as _, PgConnection};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, TransactionTrait};
use sea_orm_migration::MigratorTrait;
use tokio::sync::Notify;

use crate::bounded::within;
use crate::error::StoreError;
use crate::tx::{Actor, Entry, FleetTx, ProjectKey, Tx};

/// How the database is used.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The most connections that are held at once.
    pub max_connections: u32,
    /// How long a request waits for a connection before the database counts as away.
    pub acquire_timeout: Duration,
    /// How long one statement may take.
    pub statement_timeout: Duration,
    /// How long one statement may wait for a lock.
    pub lock_timeout: Duration,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            max_connections: 20,
            acquire_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(5),
        }
    }
}

/// How long a transaction may be left alone, in milliseconds: whoever reads the change log waits for those that write. Only
/// a snapshot holds up nobody and may wait longer (see [`Entry::Snapshot`]).
const IDLE_TRANSACTION: &str = "3000";

/// A handle on the database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) db: DatabaseConnection,
    pub(crate) url: Secret,
    /// How long an answer of the database may be waited for.
    pub(crate) patience: Duration,
    /// Told when something was committed that may be read in the change log.
    pub(crate) written: Arc<Notify>,
    /// What the program is wrong about, in a test.
    #[cfg(feature = "testing")]
    pub(crate) mistake: Option<crate::testing::Mistake>,
}

/// How long a connection may take to come to rest that nobody uses any more.
const REST_WITHIN: Duration = Duration::from_secs(5);

/// Whether a connection that was given back still leads somewhere. The pool asks it as well, but waits without limit, and
/// each that leads nowhere would keep its place.
async fn test_released(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match tokio::time::timeout(REST_WITHIN, connection.ping()).await {
        Ok(answered) => answered.map(|()| true),
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Connections beside those of the store, for what needs settings of its own.
struct Aside {
    /// How many.
    connections: u32,
    /// How long to wait for one.
    patience: Duration,
    /// The settings of each, by name and value.
    settings: &'static [(&'static str, &'static str)],
}

impl Store {
    /// Connects to a Postgres by its URL (`postgres://…`).
    ///
    /// # Errors
    /// The URL is not one, or the database cannot be reached.
    pub async fn connect(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        let limits = [
            (
                "statement_timeout",
                options.statement_timeout.as_millis().to_string(),
            ),
            ("lock_timeout", options.lock_timeout.as_millis().to_string()),
            // To compile a statement takes longer than any of ours, however dear the planner thinks it.
            ("jit", "off".to_owned()),
            // What is looked for has an index. A plan that was made while a table was short is kept while it grows, and would
            // read all of it for each row (docs/adr/0023).
            ("enable_seqscan", "off".to_owned()),
            (
                "idle_in_transaction_session_timeout",
                IDLE_TRANSACTION.to_owned(),
            ),
        ];
        let mut connect = ConnectOptions::new(url);
        connect
            .max_connections(options.max_connections)
            .acquire_timeout(options.acquire_timeout)
            .connect_timeout(options.acquire_timeout)
            .test_before_acquire_if_idle_for(Duration::from_secs(5))
            .sqlx_logging(false)
            .map_sqlx_postgres_pool_opts(|pool| {
                pool.after_release(|connection, _| Box::pin(test_released(connection)))
            })
            .map_sqlx_postgres_opts(move |connection| {
                connection
                    .application_name("evenkeel")
                    .options(limits.clone())
            });
        Ok(Self {
            db: Database::connect(connect).await?,
            url: Secret::new(url),
            patience: options.statement_timeout + options.acquire_timeout,
            written: Arc::default(),
            #[cfg(feature = "testing")]
            mistake: None,
        })
    }

    /// Connects once more, apart from the store's own connections.
    async fn connect_aside(&self, aside: Aside) -> Result<DatabaseConnection, StoreError> {
        let mut connect = ConnectOptions::new(self.url.reveal());
        connect
            .max_connections(aside.connections)
            .acquire_timeout(aside.patience)
            .connect_timeout(aside.patience)
            .test_before_acquire(false)
            .sqlx_logging(false)
            .map_sqlx_postgres_opts(move |connection| {
                connection
                    .application_name("evenkeel")
                    .options(aside.settings.iter().copied())
            });
        Ok(Database::connect(connect).await?)
    }

    /// Brings the schema up to date. Safe to call from several processes at once.
    /// Takes two connections of its own: one holds the lock, one migrates.
    ///
    /// # Errors
    /// The database cannot be reached, or a step fails; nothing of that step is kept.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        // A step may take as long as it needs, and sees every project: one that fills a column must not miss any.
        let aside = Aside {
            connections: 2,
            patience: Duration::from_secs(10),
            settings: &[
                ("statement_timeout", "0"),
                ("lock_timeout", "0"),
                ("idle_in_transaction_session_timeout", "0"),
                ("evenkeel.tenant", "*"),
            ],
        };
        let db = self.connect_aside(aside).await?;
        let alone = db.begin().await?;
        // Waited for as long as a migration takes elsewhere.
        alone
            .execute_unprepared("SELECT pg_advisory_xact_lock(7030)")
            .await?;
        let done = Migrator::up(&db, None).await;
        alone.commit().await?;
        db.close().await?;
        Ok(done?)
    }

    /// Opens a transaction that sees one project, which is looked up in the same statement; none if there is no such
    /// project. Whether the caller may enter it is for the caller to look at.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn enter(&self, project: &ProjectKey, how: &Entry) -> Result<Option<Tx>, StoreError> {
        Tx::enter(self, project, how).await
    }

    /// Opens a transaction that sees one project, to read or for the program's own writes.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn tenant(&self, tenant: TenantId) -> Result<Tx, StoreError> {
        Tx::open(self, tenant, &Entry::Read).await
    }

    /// Opens a transaction that sees one project, for what a person changes: the change log keeps who and what.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn tenant_as(&self, tenant: TenantId, actor: &Actor) -> Result<Tx, StoreError> {
        Tx::open(self, tenant, &Entry::Write(actor.clone())).await
    }

    /// Opens a transaction that only reads one project, and sees all the time what was there when it began: what is counted
    /// and what is read agree.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn snapshot(&self, tenant: TenantId) -> Result<Tx, StoreError> {
        Tx::open(self, tenant, &Entry::Snapshot).await
    }

    /// Opens a transaction that sees all projects.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn fleet(&self) -> Result<FleetTx, StoreError> {
        FleetTx::open(self, None).await
    }

    /// Opens a transaction that sees all projects, for what a person changes.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn fleet_as(&self, actor: &Actor) -> Result<FleetTx, StoreError> {
        FleetTx::open(self, Some(actor)).await
    }

    /// Lets Postgres see how the data lies, after much was written at once.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn analyze(&self) -> Result<(), StoreError> {
        Ok(self.db.execute_unprepared("ANALYZE").await.map(drop)?)
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<(), StoreError> {
        Ok(within(self.patience, self.db.ping()).await?)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        // A pool that cannot be closed has nothing left to lose.
        let _ = self.db.clone().close().await;
    }
}
