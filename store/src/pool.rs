//! The database handle.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use futures_util::TryFutureExt as _;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, QueryResult, RuntimeErr};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres, SqlSafeStr};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::address::{DatabaseAddress, HostAttempt};
use crate::bounded::{BoundedTransaction, with_timeout};
use crate::cancellation::StatementCanceller;
use crate::check::IncompatibleDatabase;
use crate::error::{StoreError, read_only_error};
use crate::ids;
use crate::log::LastHeartbeat;
use crate::pending_begin::{PendingBegin, UnansweredBegins};
use crate::pools::{PoolUsage, Pools, pool_sizes};
use crate::session::{
    SessionError, SessionSettings, await_answers, connect_options, connection_error, open_session,
    select_texts, timeout_error,
};
use crate::shares::{ConnectionShare, ConnectionShares, SharePermit, ShareSizes, ShareUsage};
use crate::tx::{Actor, FleetTx, ProjectKey, TransactionMode, Tx};

/// Settings of the database connection.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Maximum number of connections.
    pub max_connections: u32,
    /// How long a request waits for a connection before the database counts as unreachable.
    pub acquire_timeout: Duration,
    /// How long the first connection may take if it takes longer than `acquire_timeout`.
    pub first_connection_timeout: Duration,
    /// The longest duration of a statement.
    pub statement_timeout: Duration,
    /// The longest duration of a statement that reads a list.
    pub list_statement_timeout: Duration,
    /// The longest wait of a statement for a lock.
    pub lock_timeout: Duration,
    /// Shares of the connections; without them all work takes them from the same pool.
    pub shares: Option<ShareSizes>,
    /// A file whose first line is the password. It is read again when the database cannot be
    /// reached.
    pub password_file: Option<PathBuf>,
    /// Whether a connection to another machine may be without TLS.
    pub allow_unencrypted: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            max_connections: 20,
            acquire_timeout: Duration::from_secs(3),
            first_connection_timeout: FIRST_CONNECTION_TIMEOUT,
            statement_timeout: Duration::from_secs(10),
            list_statement_timeout: Duration::from_secs(3),
            lock_timeout: Duration::from_secs(5),
            shares: None,
            password_file: None,
            allow_unencrypted: false,
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
    pools: Arc<Pools>,
    pub(crate) address: DatabaseAddress,
    /// The settings of each connection of the pool.
    pub(crate) settings: SessionSettings,
    /// Whether the database was read-only when it was used last. While it is, the pool keeps no
    /// connection, because another server may be the primary by now.
    is_read_only: Arc<AtomicBool>,
    unanswered_begins: UnansweredBegins,
    /// How long to wait for an answer of the database.
    pub(crate) answer_timeout: Duration,
    /// Notified after a commit that may have written to the change log.
    pub(crate) committed: Arc<Notify>,
    pub(crate) last_heartbeat: LastHeartbeat,
    pub(crate) canceller: StatementCanceller,
    /// In milliseconds.
    pub(crate) list_statement_timeout_ms: Arc<str>,
    shares: Option<Arc<ConnectionShares>>,
    /// The share whose connections this handle takes, and the caller for whom it does.
    share: ConnectionShare,
    caller: Option<Arc<str>>,
    /// A deliberate fault, for tests.
    #[cfg(feature = "testing")]
    pub(crate) mixup: Option<crate::testing::TenantMixup>,
    /// Shown instead of the clock of the database, for tests.
    #[cfg(feature = "testing")]
    pub(crate) database_clock: Option<Arc<dyn evenkeel_kit::Clock>>,
}

/// A connection of the pool that was idle for this long is tested before it is used.
const IDLE_TEST_AGE: Duration = Duration::from_secs(5);

/// Limit for the first connection of a process. On a busy machine, and while a database starts, it
/// takes longer than a request may wait.
pub(crate) const FIRST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Limit for the test of a released connection.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of errors that a returned connection has not read: of its last statement and of
/// its rollback.
const MAX_PENDING_ERRORS: u32 = 2;

/// Tests a connection that was returned to the pool. The pool also tests connections, but without a
/// timeout, and every dead connection would occupy a slot of the pool.
async fn test_released(
    connection: &mut PgConnection,
    unanswered_begins: &UnansweredBegins,
) -> Result<bool, sqlx::Error> {
    let testing = async {
        read_pending_answers(connection).await?;
        if unanswered_begins.are_recent() { is_idle(connection).await } else { Ok(true) }
    };
    match timeout(RELEASE_TIMEOUT, testing).await {
        Ok(tested) => tested,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

/// Reads the answers to the statements of a dropped request.
async fn read_pending_answers(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    // The error of a statement is only read here.
    for _ in 0..MAX_PENDING_ERRORS {
        match connection.ping().await {
            Err(sqlx::Error::Database(_)) => {}
            answered => return answered,
        }
    }
    connection.ping().await
}

/// Whether no transaction is open. The transaction of a single statement begins with the statement.
async fn is_idle(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let is_alone = "(now() = statement_timestamp())::text".to_owned();
    let is_alone = select_texts(connection, vec![is_alone]).await?;
    Ok(is_alone.iter().flatten().any(|is_alone| is_alone == "true"))
}

/// SQL condition: the database cannot be written. It holds on a standby and after
/// `default_transaction_read_only` was set, also in a transaction that only reads itself.
pub(crate) const IS_READ_ONLY: &str =
    "pg_is_in_recovery() OR current_setting('default_transaction_read_only')::boolean";

/// Opens a pool whose connections have the settings. A restored database assigns no ID twice. Makes
/// no further attempt after `limit`; each attempt of the pool takes at most its own timeout.
pub(crate) async fn connect_pool(
    pool: PgPoolOptions,
    address: &DatabaseAddress,
    settings: SessionSettings,
    limit: Duration,
) -> Result<DatabaseConnection, StoreError> {
    // The pool drops the reason why it refuses a connection.
    let refusal = Arc::<Mutex<Option<IncompatibleDatabase>>>::default();
    let last_refusal = Arc::clone(&refusal);
    let pool_settings = settings.clone();
    let pool = pool.after_connect(move |connection, _| {
        let (settings, refusal) = (pool_settings.clone(), Arc::clone(&refusal));
        Box::pin(async move {
            let applied = settings.apply(connection).await;
            if let Err(SessionError::Incompatible(why)) = &applied {
                *refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.clone());
            }
            applied?;
            ids::protect(connection).await
        })
    });
    let deadline = Instant::now() + limit;
    let mut attempts = address.host_count();
    loop {
        let attempt = address.begin_attempt();
        let error = match pool.clone().connect_with(connect_options(address)?).await {
            Ok(pool) => return Ok(pool.into()),
            Err(error) => error,
        };
        if attempts > 1 {
            address.record_failure(attempt);
            attempts -= 1;
            continue;
        }
        let refusal = last_refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(refusal) = refusal {
            return Err(StoreError::Incompatible(refusal));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if !matches!(error, sqlx::Error::PoolTimedOut) || left.is_zero() {
            return Err(connection_error(error));
        }
        // The pool does not say why, and drops a slow connection at its timeout.
        let mut session = open_session(address, &settings, left).await?;
        let checking = async move {
            ids::protect(&mut session).await?;
            // An error while closing has no consequences.
            session.close().await.ok();
            Ok::<_, sqlx::Error>(())
        };
        let checking = checking.map_err(connection_error);
        let deadline = deadline.max(Instant::now() + RELEASE_TIMEOUT);
        await_answers(deadline, "check whether the database was restored", checking).await?;
    }
}

/// The settings of each connection.
fn session_settings(options: &StoreOptions) -> SessionSettings {
    SessionSettings::new([
        ("statement_timeout", options.statement_timeout.as_millis().to_string()),
        ("lock_timeout", options.lock_timeout.as_millis().to_string()),
        // Compiling a statement takes longer than running any of ours, whatever the planner
        // estimates.
        ("jit", "off".to_owned()),
        // Every lookup has an index. Plans are cached: one made while a table was short would
        // later read the whole table for each row (docs/adr/0023).
        ("enable_seqscan", "off".to_owned()),
        // Parallel workers would take the processors that the statements of nodes need.
        ("max_parallel_workers_per_gather", "0".to_owned()),
        ("idle_in_transaction_session_timeout", IDLE_TRANSACTION_TIMEOUT_MS.to_owned()),
    ])
}

impl Store {
    /// Connects to a Postgres by its URL (`postgres://…`).
    ///
    /// # Errors
    /// The URL is invalid, or the database cannot be reached or used.
    pub async fn connect(url: &str, options: StoreOptions) -> Result<Self, StoreError> {
        let address = DatabaseAddress::parse(url, options.allow_unencrypted);
        let address = address.map_err(IncompatibleDatabase::from)?;
        let settings = session_settings(&options);
        let address = address.with_password_file(options.password_file);
        let is_read_only = Arc::<AtomicBool>::default();
        let unanswered_begins = UnansweredBegins::default();
        let pool = PgPoolOptions::new()
            .acquire_timeout(options.acquire_timeout)
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    if meta.idle_for >= IDLE_TEST_AGE {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .after_release({
                let is_read_only = Arc::clone(&is_read_only);
                let unanswered_begins = unanswered_begins.clone();
                move |connection, _| {
                    let is_read_only = is_read_only.load(Ordering::Relaxed);
                    let unanswered = unanswered_begins.clone();
                    Box::pin(async move {
                        Ok(!is_read_only && test_released(connection, &unanswered).await?)
                    })
                }
            });
        let acquire_timeout = options.acquire_timeout;
        let first_connection_timeout = options.first_connection_timeout;
        let shares = options.shares.map(|sizes| ConnectionShares::new(sizes, acquire_timeout));
        let list_statement_timeout_ms = options.list_statement_timeout.as_millis().to_string();
        let answer_timeout = options.statement_timeout + options.acquire_timeout;
        let connect = |max_connections| {
            let pool = pool.clone().max_connections(max_connections);
            connect_pool(pool, &address, settings.clone(), first_connection_timeout)
        };
        let (nodes, rest) = pool_sizes(options.max_connections, options.shares);
        let nodes = connect(nodes).await?;
        // At once, because a request does not wait as long as a first connection may take.
        let rest = match rest {
            Some(rest) => Some(connect(rest).await?),
            None => None,
        };
        let store = Self {
            pools: Arc::new(Pools { nodes, rest }),
            canceller: StatementCanceller::new(address.clone(), settings.clone(), answer_timeout),
            address,
            settings,
            answer_timeout,
            is_read_only,
            unanswered_begins,
            committed: Arc::default(),
            last_heartbeat: LastHeartbeat::default(),
            list_statement_timeout_ms: list_statement_timeout_ms.into(),
            shares: shares.map(Arc::new),
            share: ConnectionShare::default(),
            caller: None,
            #[cfg(feature = "testing")]
            mixup: None,
            #[cfg(feature = "testing")]
            database_clock: None,
        };
        // Of several hosts, the one that can be written.
        for _ in 1..store.address.host_count() {
            if store.ping().await.is_ok() {
                break;
            }
        }
        Ok(store)
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
        Ok(self.db().execute_unprepared("ANALYZE").await.map(drop)?)
    }

    /// Checks that the database answers and can be written.
    ///
    /// # Errors
    /// The database does not answer, or is read-only.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let row = self.query_alone(AssertSqlSafe(format!("SELECT {IS_READ_ONLY}"))).await?;
        self.note_read_only(row.try_get_by_index(0)?)
    }

    /// Runs a statement that returns one row, without a transaction. Counters of statements do not
    /// see it.
    pub(crate) async fn query_alone(
        &self,
        sql: impl SqlSafeStr + Send,
    ) -> Result<QueryResult, StoreError> {
        let attempt = self.address.begin_attempt();
        let pool = self.db().get_postgres_connection_pool();
        let answer = async {
            let mut connection = pool.acquire().await.map_err(connection_error)?;
            let row = sqlx::query::<Postgres>(sql).fetch_one(&mut *connection).await;
            let row = row.map_err(|error| DbErr::Query(RuntimeErr::SqlxError(Arc::new(error))))?;
            Ok::<_, StoreError>(QueryResult::from(row))
        };
        let answer = timeout(self.answer_timeout, answer).await;
        self.record_result(attempt, answer.unwrap_or_else(|_| Err(timeout_error())))
    }

    /// The same store, for work of another share, and for a caller who may use only a part of it.
    #[must_use]
    pub fn with_share(&self, share: ConnectionShare, caller: Option<&str>) -> Self {
        Self { share, caller: caller.map(Arc::from), ..self.clone() }
    }

    /// How the shares are used; empty if there are none.
    #[must_use]
    pub fn share_usage(&self) -> Vec<ShareUsage> {
        self.shares.as_ref().map(|shares| shares.usage()).unwrap_or_default()
    }

    /// The pool of the share.
    pub(crate) fn db(&self) -> &DatabaseConnection {
        self.pools.of(self.share)
    }

    /// Calls a function for each statement, for tests.
    #[cfg(feature = "testing")]
    pub(crate) fn observe_statements(
        &mut self,
        observe: impl Fn(&sea_orm::metric::Info<'_>) + Send + Sync + 'static,
    ) {
        self.pools = Arc::new(self.pools.observed(observe));
    }

    /// How the connections of all pools are used.
    #[must_use]
    pub fn pool_usage(&self) -> PoolUsage {
        self.pools.usage()
    }

    /// Waits until a transaction may take a connection of its share.
    pub(crate) async fn acquire_share(
        &self,
        project: Option<&ProjectKey>,
    ) -> Result<Option<SharePermit>, StoreError> {
        match &self.shares {
            None => Ok(None),
            Some(shares) => {
                shares.acquire(self.share, project, self.caller.as_ref()).await.map(Some)
            }
        }
    }

    /// Remembers the id of a project that was found by its name.
    pub(crate) fn note_project(&self, project: &ProjectKey, tenant: TenantId) {
        if let Some(shares) = &self.shares {
            shares.note_project(project, tenant);
        }
    }

    /// Begins a transaction on a connection of the pool.
    pub(crate) async fn begin(
        &self,
        permit: Option<SharePermit>,
    ) -> Result<BoundedTransaction, StoreError> {
        let attempt = self.address.begin_attempt();
        let within = self.answer_timeout;
        let pending = PendingBegin::new(self.db(), permit, within, &self.unanswered_begins);
        let result = with_timeout(within, pending).await.map_err(StoreError::from);
        let open = self.record_result(attempt, result)?;
        Ok(BoundedTransaction::new(open, self.canceller.clone(), self.answer_timeout))
    }

    /// Records whether the database is read-only.
    ///
    /// # Errors
    /// It is.
    pub(crate) fn note_read_only(&self, is_read_only: bool) -> Result<(), StoreError> {
        // Written only if it changes, because every transaction reads it.
        if self.is_read_only.load(Ordering::Relaxed) != is_read_only {
            self.is_read_only.store(is_read_only, Ordering::Relaxed);
        }
        let result = if is_read_only { Err(read_only_error()) } else { Ok(()) };
        self.record_result(self.address.begin_attempt(), result)
    }

    /// If the database was not reached, the next connections use the next host and the current
    /// password.
    fn record_result<T>(
        &self,
        attempt: HostAttempt,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match &result {
            Ok(_) => self.address.record_success(),
            Err(StoreError::Unreachable(_)) if self.address.is_variable() => {
                self.address.record_failure(attempt);
                for pool in self.pools.all() {
                    pool.set_connect_options(connect_options(&self.address)?);
                }
            }
            Err(_) => {}
        }
        result
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.canceller.close().await;
        for pool in self.pools.all() {
            pool.close().await;
        }
    }
}
