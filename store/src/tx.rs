//! Scoped transactions.

use std::sync::Arc;
use std::time::Instant;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::tenant::{ProjectName, TenantId};
use sea_orm::sea_query::Expr;
use sea_orm::sea_query::extension::postgres::PgFunc;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DbBackend, DeleteMany, EntityTrait, ExprTrait, QueryFilter,
    QueryResult, Select, Statement, UpdateMany, Value,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::bounded::BoundedTransaction;
use crate::error::StoreError;
use crate::pool::{IS_READ_ONLY, Store};

/// Idle timeout of a snapshot, in milliseconds: longer than the two minutes after which the
/// connection of a client that reads nothing is closed. A snapshot only reads, so it delays no
/// other transaction.
const SNAPSHOT_IDLE_TIMEOUT_MS: &str = "150000";

/// The user behind a change, for the change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The subject of the credential.
    pub name: String,
    pub request_id: String,
    /// Address of the client, without its port; empty if it is not known.
    pub client_address: String,
}

/// The key by which a project is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectKey {
    Named(ProjectName),
    Id(TenantId),
}

/// The purpose of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionMode {
    /// To read, or for writes of the server itself.
    Read,
    /// To read a consistent state: counts and rows agree.
    Snapshot,
    /// For changes by a user: the change log records the user and the rows.
    Write(Actor),
}

/// An open transaction for one project. Dropping it rolls back. A transaction that only read need
/// not be committed. Dropping does not wait: the connection returns to the pool after the rollback,
/// or is closed if the rollback fails.
#[derive(Debug)]
pub struct Tx {
    transaction: BoundedTransaction,
    tenant: TenantId,
    /// Notified after a commit; none if the transaction cannot write.
    committed: Option<Arc<Notify>>,
    clock: TransactionClock,
}

/// An open transaction for all projects. Dropping it rolls back.
#[derive(Debug)]
pub struct FleetTx {
    transaction: BoundedTransaction,
    committed: Arc<Notify>,
    clock: TransactionClock,
}

/// The clock of the database as a transaction knows it: the time that its first statement returned,
/// and the time that has passed since then. No further statement is needed to read it.
#[derive(Debug)]
struct TransactionClock {
    read: Time,
    /// When the answer with the time arrived.
    arrived: Instant,
    /// Replaces the clock of the database in tests.
    #[cfg(feature = "testing")]
    test_clock: Option<Arc<dyn evenkeel_kit::Clock>>,
}

impl TransactionClock {
    /// The current time of the database, in the microseconds that it stores.
    fn now(&self) -> Time {
        #[cfg(feature = "testing")]
        if let Some(clock) = &self.test_clock {
            return clock.now();
        }
        let passed = i64::try_from(self.arrived.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.read.checked_add_signed(TimeDelta::microseconds(passed)).unwrap_or(self.read)
    }
}

/// A table whose rows belong to a tenant.
pub(crate) trait Scoped: EntityTrait {
    const TENANT: Self::Column;
}

impl Tx {
    pub(crate) async fn open(
        store: &Store,
        tenant: TenantId,
        mode: &TransactionMode,
    ) -> Result<Self, StoreError> {
        let tx = begin(store, mode, Some(&ProjectKey::Id(tenant))).await?;
        let settings = session_settings(store, mode);
        let call = scope_call(&tenant.to_string());
        let (_, clock) = set_scope(store, &tx, call, &settings).await?;
        Ok(Self { transaction: tx, tenant, committed: commit_notifier(store, mode), clock })
    }

    /// Opens a transaction for a project that is looked up by name or id; none if it does not
    /// exist.
    pub(crate) async fn enter(
        store: &Store,
        project: &ProjectKey,
        mode: &TransactionMode,
    ) -> Result<Option<Self>, StoreError> {
        let (name, id) = match project {
            ProjectKey::Named(name) => (Some(name.to_string()), None),
            ProjectKey::Id(id) => (None, Some(id.uuid())),
        };
        let tx = begin(store, mode, Some(project)).await?;
        let call = (SET_TENANT_SCOPE_CALL, vec![name.into(), id.into()]);
        let mut settings = session_settings(store, mode);
        if *mode == TransactionMode::Read {
            // Such transactions read single resources by id. The plan is the same for every id, and
            // without this setting each connection would plan six times.
            settings.push(("plan_cache_mode", "force_generic_plan"));
        }
        let (row, clock) = set_scope(store, &tx, call, &settings).await?;
        let tenant: Option<Uuid> = row.try_get_by_index(0)?;
        let tenant = tenant.map(TenantId::new);
        if let Some(tenant) = tenant {
            store.note_project(project, tenant);
        }
        let opened = tenant.map(|tenant| Self {
            transaction: tx,
            tenant,
            committed: commit_notifier(store, mode),
            clock,
        });
        #[cfg(feature = "testing")]
        let opened = match (opened, &store.mixup) {
            (Some(opened), Some(mixup)) => Some(mixup.apply(opened).await?),
            (opened, _) => opened,
        };
        Ok(opened)
    }

    #[must_use]
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Returns the permit of the share but keeps the connection, for work that has a limit of its
    /// own.
    pub fn release_share(&mut self) {
        self.transaction.release_share();
    }

    /// Commits the changes.
    ///
    /// # Errors
    /// The database cannot be reached; then either no change or every change took effect.
    pub async fn commit(self) -> Result<(), StoreError> {
        let _notifier = self.committed.map(NotifyOnDrop);
        Ok(self.transaction.commit().await?)
    }

    /// The current time of the database, by which all replicas decide. Sends no statement.
    #[must_use]
    pub fn database_time(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn conn(&self) -> &BoundedTransaction {
        &self.transaction
    }

    /// Selects rows of the project.
    pub(crate) fn scope<E: Scoped>(&self) -> Select<E> {
        E::find().filter(E::TENANT.eq(self.tenant.uuid()))
    }

    /// Updates rows of the project.
    pub(crate) fn change<E: Scoped>(&self) -> UpdateMany<E> {
        E::update_many().filter(E::TENANT.eq(self.tenant.uuid()))
    }

    /// Deletes rows of the project.
    pub(crate) fn remove<E: Scoped>(&self) -> DeleteMany<E> {
        E::delete_many().filter(E::TENANT.eq(self.tenant.uuid()))
    }

    /// Waits for running decisions and blocks new ones until the end of the transaction. Required
    /// for changes of policies, assignments or schedules, because a row lock would not cover new
    /// rows. A caller that changes what it has read takes the lock before it reads; every write
    /// function of the store takes it as well.
    pub async fn lock_for_change(&self) -> Result<(), StoreError> {
        self.advisory_lock("pg_advisory_xact_lock").await
    }

    /// Blocks changes of policies, assignments and schedules until the end of the transaction.
    /// Required before a start is granted.
    pub async fn lock_for_decision(&self) -> Result<(), StoreError> {
        self.advisory_lock("pg_advisory_xact_lock_shared").await
    }

    /// The same transaction with queries for another project, for tests.
    #[cfg(feature = "testing")]
    pub(crate) fn with_tenant(self, tenant: TenantId) -> Self {
        Self { tenant, ..self }
    }

    /// Changes a session setting until the end of the transaction, for tests.
    #[cfg(feature = "testing")]
    pub async fn set(&self, name: &str, value: &str) -> Result<(), StoreError> {
        let sql = "SELECT set_config($1, $2, true)";
        execute(&self.transaction, sql, [name.into(), value.into()]).await.map(drop)
    }

    /// Takes a transaction id without a write, for tests.
    #[cfg(feature = "testing")]
    pub async fn assign_id(&self) -> Result<(), StoreError> {
        execute(&self.transaction, "SELECT pg_current_xact_id()", []).await.map(drop)
    }

    /// A setting of the transaction in its base unit, for tests.
    #[cfg(feature = "testing")]
    pub async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let sql = "SELECT setting FROM pg_settings WHERE name = $1";
        let row = query_one(&self.transaction, sql, [name.into()]).await?;
        Ok(row.map(|row| row.try_get_by_index(0)).transpose()?)
    }

    async fn advisory_lock(&self, function: &str) -> Result<(), StoreError> {
        advisory_lock(&self.transaction, self.tenant, function).await
    }
}

impl FleetTx {
    pub(crate) async fn open(store: &Store, actor: Option<&Actor>) -> Result<Self, StoreError> {
        let tx = begin(store, &TransactionMode::Read, None).await?;
        let settings = actor.map(actor_settings).unwrap_or_default();
        let (_, clock) = set_scope(store, &tx, scope_call("*"), &settings).await?;
        Ok(Self { transaction: tx, committed: Arc::clone(&store.committed), clock })
    }

    /// As [`Tx::database_time`].
    #[must_use]
    pub fn database_time(&self) -> Time {
        self.clock.now()
    }

    /// The time of the database at a moment after the call. [`Self::database_time`] is earlier by the
    /// time that the first answer of the transaction took to arrive.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn read_database_time(&self) -> Result<Time, StoreError> {
        #[cfg(feature = "testing")]
        if let Some(clock) = &self.clock.test_clock {
            return Ok(clock.now());
        }
        let row = query_one(&self.transaction, "SELECT clock_timestamp()", []).await?;
        let row = row.ok_or(StoreError::NotFound { what: "database" })?;
        Ok(row.try_get_by_index(0)?)
    }

    /// Commits the changes.
    ///
    /// # Errors
    /// The database cannot be reached; then either no change or every change took effect.
    pub async fn commit(self) -> Result<(), StoreError> {
        let _notifier = NotifyOnDrop(self.committed);
        Ok(self.transaction.commit().await?)
    }

    /// Ends the transaction without its changes. A transaction that is only dropped keeps its locks
    /// until its connection is used again.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn rollback(self) -> Result<(), StoreError> {
        Ok(self.transaction.rollback().await?)
    }

    pub(crate) fn conn(&self) -> &BoundedTransaction {
        &self.transaction
    }

    /// As [`Tx::lock_for_change`], for one project.
    pub(crate) async fn lock_for_change(&self, tenant: TenantId) -> Result<(), StoreError> {
        advisory_lock(&self.transaction, tenant, "pg_advisory_xact_lock").await
    }
}

/// Takes the advisory lock of a project.
async fn advisory_lock(
    tx: &BoundedTransaction,
    tenant: TenantId,
    function: &str,
) -> Result<(), StoreError> {
    let (high, low) = tenant.uuid().as_u64_pair();
    let key = (high ^ low).cast_signed();
    let sql = format!("SELECT {function}($1)");
    execute(tx, sql, [key.into()]).await.map(drop)
}

/// Matches a column against a list of ids. The list is one parameter, because a statement takes at
/// most 65,535.
pub(crate) fn is_any_of(column: impl ColumnTrait, ids: impl IntoIterator<Item = i32>) -> Expr {
    let ids: Vec<i32> = ids.into_iter().collect();
    let any = PgFunc::any(Expr::value(ids));
    Expr::col(column.as_column_ref()).eq(any)
}

/// An array parameter of ids for repeated queries. Written as a subquery, its estimated length is
/// the same for generic and custom plans, so the database caches one plan and does not plan each
/// time.
pub(crate) fn ids_in(parameter: usize) -> String {
    format!("ARRAY(SELECT unnest(${parameter}::integer[]))")
}

/// Names and values of session settings.
type TransactionSettings<'a> = Vec<(&'static str, &'a str)>;

/// The settings besides the scope.
fn session_settings<'a>(store: &'a Store, mode: &'a TransactionMode) -> TransactionSettings<'a> {
    match mode {
        TransactionMode::Read => Vec::new(),
        TransactionMode::Snapshot => vec![
            ("idle_in_transaction_session_timeout", SNAPSHOT_IDLE_TIMEOUT_MS),
            ("enable_seqscan", "on"),
            ("statement_timeout", &*store.list_statement_timeout_ms),
        ],
        TransactionMode::Write(actor) => actor_settings(actor),
    }
}

/// The settings that the triggers and defaults of the change log read.
fn actor_settings(actor: &Actor) -> TransactionSettings<'_> {
    vec![
        ("evenkeel.actor", actor.name.as_str()),
        ("evenkeel.request", actor.request_id.as_str()),
        ("evenkeel.address", actor.client_address.as_str()),
    ]
}

/// Notifies on drop. A commit is announced even if its result is unknown or its future was dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// The notifier of commits; none for a snapshot.
fn commit_notifier(store: &Store, mode: &TransactionMode) -> Option<Arc<Notify>> {
    (*mode != TransactionMode::Snapshot).then(|| Arc::clone(&store.committed))
}

async fn begin(
    store: &Store,
    mode: &TransactionMode,
    project: Option<&ProjectKey>,
) -> Result<BoundedTransaction, StoreError> {
    let permit = store.acquire_share(project).await?;
    let tx = store.begin(permit).await?;
    if *mode == TransactionMode::Snapshot {
        // In one statement, before any query.
        let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
        tx.execute_unprepared(snapshot).await?;
    }
    Ok(tx)
}

/// The SQL call that sets the scope, and its parameters.
type ScopeCall = (&'static str, Vec<Value>);

/// Sets the scope to a known tenant.
const SET_TENANT_CALL: &str = "set_config('evenkeel.tenant', $1, true)";

/// Looks up a project and sets the scope to it.
const SET_TENANT_SCOPE_CALL: &str = "set_tenant_scope($1, $2)";

fn scope_call(scope: &str) -> ScopeCall {
    (SET_TENANT_CALL, vec![scope.into()])
}

/// Whether a statement is the first one of a transaction, for tests.
#[cfg(feature = "testing")]
pub(crate) fn is_first_statement(sql: &str) -> bool {
    let call = sql.strip_prefix("SELECT ");
    let is = |first: &str| call.is_some_and(|call| call.starts_with(first));
    is(SET_TENANT_CALL) || is(SET_TENANT_SCOPE_CALL)
}

/// Sets the scope and other settings in one statement and returns its row. The settings are local
/// to the transaction: otherwise the pool would reuse the scope of one tenant for another one. The
/// statement also finds out whether the database is read-only, which process of it answers, and
/// what time it has.
async fn set_scope(
    store: &Store,
    tx: &BoundedTransaction,
    (scope, mut values): ScopeCall,
    also: &[(&str, &str)],
) -> Result<(QueryResult, TransactionClock), StoreError> {
    let mut calls = vec![scope.to_owned()];
    for (name, value) in also {
        values.push(Value::from(*value));
        calls.push(format!("set_config('{name}', ${}, true)", values.len()));
    }
    let sql =
        format!("SELECT {}, {IS_READ_ONLY}, pg_backend_pid(), clock_timestamp()", calls.join(", "));
    let row = query_one(tx, sql, values).await?;
    let arrived = Instant::now();
    let row = row.ok_or(StoreError::NotFound { what: "database" })?;
    tx.set_backend_pid(row.try_get_by_index(calls.len() + 1)?);
    store.note_read_only(row.try_get_by_index(calls.len())?)?;
    let clock = TransactionClock {
        read: row.try_get_by_index(calls.len() + 2)?,
        arrived,
        #[cfg(feature = "testing")]
        test_clock: store.database_clock.clone(),
    };
    Ok((row, clock))
}

/// Runs a statement and returns the number of affected rows.
pub(crate) async fn execute(
    db: &impl ConnectionTrait,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
) -> Result<u64, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    Ok(db.execute_raw(statement).await?.rows_affected())
}

/// Converts the rows of a result as they arrive, while the database still produces the next ones.
pub(crate) async fn query_map<T>(
    db: &BoundedTransaction,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
    read: impl Fn(&QueryResult) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    db.query_map(statement, read).await
}

/// Runs a query with at most one row.
pub(crate) async fn query_one(
    db: &impl ConnectionTrait,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
) -> Result<Option<QueryResult>, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    Ok(db.query_one_raw(statement).await?)
}

/// Runs a query and returns its rows.
pub(crate) async fn query_all(
    db: &impl ConnectionTrait,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
) -> Result<Vec<QueryResult>, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    Ok(db.query_all_raw(statement).await?)
}
