//! The database handle.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Secret;
use evenkeel_migrations::Migrator;
use sea_orm::sqlx::{self, Connection as _, PgConnection};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, TransactionTrait};
use sea_orm_migration::MigratorTrait;
use tokio::sync::Notify;

use crate::bounded::with_timeout;
use crate::error::StoreError;
use crate::tx::{Actor, FleetTx, ProjectKey, TransactionMode, Tx};

/// Settings of the database connection.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Maximum number of connections.
    pub max_connections: u32,
    /// How long a request waits for a connection before the database counts as unreachable.
    pub acquire_timeout: Duration,
    /// The longest duration of a statement.
    pub statement_timeout: Duration,
    /// The longest wait of a statement for a lock.
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

/// Limit for idle transactions, in milliseconds: readers of the change log wait for open write
/// transactions. Only a snapshot may stay idle longer, because it delays no reader (see
/// [`TransactionMode::Snapshot`]).
const IDLE_TRANSACTION_TIMEOUT_MS: &str = "3000";

/// A database handle. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) db: DatabaseConnection,
    pub(crate) url: Secret,
    /// How long to wait for an answer of the database.
    pub(crate) answer_timeout: Duration,
    /// Notified after a commit that may have written to the change log.
    pub(crate) committed: Arc<Notify>,
    /// A deliberate fault, for tests.
    #[cfg(feature = "testing")]
    pub(crate) mixup: Option<crate::testing::TenantMixup>,
    /// Shown instead of the clock of the database, for tests.
    #[cfg(feature = "testing")]
    pub(crate) database_clock: Option<Arc<dyn evenkeel_kit::Clock>>,
}

/// Limit for the test of a released connection.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Tests a connection that was returned to the pool. The pool also tests connections, but without a
/// timeout, and every dead connection would occupy a slot of the pool.
async fn test_released(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match tokio::time::timeout(RELEASE_TIMEOUT, connection.ping()).await {
        Ok(answered) => answered.map(|()| true),
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Connections outside of the pool, for work that needs its own settings.
struct ExtraConnections {
    connections: u32,
    /// How long to wait for a connection.
    timeout: Duration,
    /// The session settings, by name and value.
    settings: &'static [(&'static str, &'static str)],
}

impl Store {
    /// Connects to a Postgres by its URL (`postgres://…`).
    ///
    /// # Errors
    /// The URL is invalid, or the database cannot be reached.
    pub async fn connect(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        let limits = [
            ("statement_timeout", options.statement_timeout.as_millis().to_string()),
            ("lock_timeout", options.lock_timeout.as_millis().to_string()),
            // Compiling a statement takes longer than running any of ours, whatever the planner
            // estimates.
            ("jit", "off".to_owned()),
            // Every lookup has an index. Plans are cached: one made while a table was short would
            // later read the whole table for each row (docs/adr/0023).
            ("enable_seqscan", "off".to_owned()),
            ("idle_in_transaction_session_timeout", IDLE_TRANSACTION_TIMEOUT_MS.to_owned()),
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
                connection.application_name("evenkeel").options(limits.clone())
            });
        Ok(Self {
            db: Database::connect(connect).await?,
            url: Secret::new(url),
            answer_timeout: options.statement_timeout + options.acquire_timeout,
            committed: Arc::default(),
            #[cfg(feature = "testing")]
            mixup: None,
            #[cfg(feature = "testing")]
            database_clock: None,
        })
    }

    /// Opens connections outside of the pool.
    async fn connect_extra(
        &self,
        extra: ExtraConnections,
    ) -> Result<DatabaseConnection, StoreError> {
        let mut connect = ConnectOptions::new(self.url.reveal());
        connect
            .max_connections(extra.connections)
            .acquire_timeout(extra.timeout)
            .connect_timeout(extra.timeout)
            .test_before_acquire(false)
            .sqlx_logging(false)
            .map_sqlx_postgres_opts(move |connection| {
                connection.application_name("evenkeel").options(extra.settings.iter().copied())
            });
        Ok(Database::connect(connect).await?)
    }

    /// Migrates the schema to the current version. Safe to call from several processes at once.
    /// Uses two extra connections: one holds the lock, one migrates.
    ///
    /// # Errors
    /// The database cannot be reached, or a migration fails. A failed migration leaves no changes.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        // A migration has no timeout and sees every project: one that fills a column must not miss
        // any.
        let extra = ExtraConnections {
            connections: 2,
            timeout: Duration::from_secs(10),
            settings: &[
                ("statement_timeout", "0"),
                ("lock_timeout", "0"),
                ("idle_in_transaction_session_timeout", "0"),
                ("evenkeel.tenant", "*"),
            ],
        };
        let db = self.connect_extra(extra).await?;
        let lock_tx = db.begin().await?;
        // Waits as long as a migration of another process takes.
        lock_tx.execute_unprepared("SELECT pg_advisory_xact_lock(7030)").await?;
        let done = Migrator::up(&db, None).await;
        lock_tx.commit().await?;
        db.close().await?;
        Ok(done?)
    }

    /// Opens a transaction for one project, which is looked up in the same statement; none if the
    /// project does not exist. The caller must check the permissions of the user.
    pub async fn enter(
        &self,
        project: &ProjectKey,
        mode: &TransactionMode,
    ) -> Result<Option<Tx>, StoreError> {
        Tx::enter(self, project, mode).await
    }

    /// Opens a transaction for one project, to read or for writes of the server itself.
    pub async fn tenant(&self, tenant: TenantId) -> Result<Tx, StoreError> {
        Tx::open(self, tenant, &TransactionMode::Read).await
    }

    /// Opens a transaction for one project, for changes by a user: the change log records user and
    /// rows.
    pub async fn tenant_as(&self, tenant: TenantId, actor: &Actor) -> Result<Tx, StoreError> {
        Tx::open(self, tenant, &TransactionMode::Write(actor.clone())).await
    }

    /// Opens a read-only snapshot of one project: all statements see the same state, so counts and
    /// rows agree.
    pub async fn snapshot(&self, tenant: TenantId) -> Result<Tx, StoreError> {
        Tx::open(self, tenant, &TransactionMode::Snapshot).await
    }

    /// Opens a transaction for all projects.
    pub async fn fleet(&self) -> Result<FleetTx, StoreError> {
        FleetTx::open(self, None).await
    }

    /// Opens a transaction for all projects, for changes by a user.
    pub async fn fleet_as(&self, actor: &Actor) -> Result<FleetTx, StoreError> {
        FleetTx::open(self, Some(actor)).await
    }

    /// Updates the planner statistics of Postgres after bulk writes.
    pub async fn analyze(&self) -> Result<(), StoreError> {
        Ok(self.db.execute_unprepared("ANALYZE").await.map(drop)?)
    }

    /// Checks that the database answers.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn ping(&self) -> Result<(), StoreError> {
        Ok(with_timeout(self.answer_timeout, self.db.ping()).await?)
    }

    /// Closes all connections.
    pub async fn close(&self) {
        // An error while closing has no consequences.
        let _ = self.db.clone().close().await;
    }
}
