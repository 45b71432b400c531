//! Scoped transactions.

use std::sync::Arc;

use evenkeel_domain::tenant::{ProjectName, TenantId};
use sea_orm::sea_query::Expr;
use sea_orm::sea_query::extension::postgres::PgFunc;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DbBackend, DeleteMany, EntityTrait, ExprTrait, QueryFilter,
    QueryResult, Select, Statement, TransactionTrait, UpdateMany, Value,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::bounded::{Bounded, within};
use crate::error::StoreError;
use crate::pool::Store;

/// How long a snapshot may wait for whoever reads it, in milliseconds: longer than the two minutes after which a client
/// that takes nothing is hung up on. It only reads, so it holds up nobody meanwhile.
const PATIENCE: &str = "150000";

/// Who changes something, for the change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// The subject of the credential.
    pub name: String,
    /// The request that it came with.
    pub request_id: String,
}

/// By what a project is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectKey {
    /// Its name.
    Named(ProjectName),
    /// Its id.
    Id(TenantId),
}

/// What a transaction is opened for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// To read, or for the program's own writes.
    Read,
    /// To read all the time what was there when it began: what is counted and what is read agree.
    Snapshot,
    /// For what a person changes: the change log keeps who and what.
    Write(Actor),
}

/// An open transaction that sees one project. Dropping it rolls back; one that only read need not be committed. Nobody
/// waits for the end of one that is dropped: its connection goes back to the pool when the database has rolled back, and
/// is closed if that fails.
#[derive(Debug)]
pub struct Tx {
    open: Bounded,
    tenant: TenantId,
    /// Told when it is committed; none if it cannot write.
    written: Option<Arc<Notify>>,
}

/// An open transaction that sees all projects. Dropping it rolls back.
#[derive(Debug)]
pub struct FleetTx {
    open: Bounded,
    written: Arc<Notify>,
}

/// A row that belongs to a tenant.
pub(crate) trait Scoped: EntityTrait {
    /// The column that says to which.
    const TENANT: Self::Column;
}

impl Tx {
    pub(crate) async fn open(
        store: &Store,
        tenant: TenantId,
        how: &Entry,
    ) -> Result<Self, StoreError> {
        let tx = begin(store, how).await?;
        begun(&tx, scoped(&tenant.to_string()), &settings(how)).await?;
        Ok(Self {
            open: tx,
            tenant,
            written: told_by(store, how),
        })
    }

    /// One of a project that is known by its name or its id; none if there is no such project.
    pub(crate) async fn enter(
        store: &Store,
        project: &ProjectKey,
        how: &Entry,
    ) -> Result<Option<Self>, StoreError> {
        let (name, id) = match project {
            ProjectKey::Named(name) => (Some(name.to_string()), None),
            ProjectKey::Id(id) => (None, Some(id.uuid())),
        };
        let tx = begin(store, how).await?;
        let entered = (ENTERED, vec![name.into(), id.into()]);
        let mut settings = settings(how);
        if *how == Entry::Read {
            // Here one thing is read by its id. No plan depends on which it is, and each connection would plan six times.
            settings.push(("plan_cache_mode", "force_generic_plan"));
        }
        let Some(row) = begun(&tx, entered, &settings).await? else {
            return Ok(None);
        };
        let tenant: Option<Uuid> = row.try_get_by_index(0)?;
        let entered = tenant.map(|tenant| Self {
            open: tx,
            tenant: TenantId::new(tenant),
            written: told_by(store, how),
        });
        #[cfg(feature = "testing")]
        let entered = match (entered, &store.mistake) {
            (Some(entered), Some(mistake)) => Some(mistake.made(entered).await?),
            (entered, _) => entered,
        };
        Ok(entered)
    }

    /// The project.
    #[must_use]
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Makes the changes visible to others, for good.
    ///
    /// # Errors
    /// The database cannot be reached; then nothing was changed, or everything was.
    pub async fn commit(self) -> Result<(), StoreError> {
        let _told = self.written.map(Tells);
        Ok(self.open.commit().await?)
    }

    pub(crate) fn conn(&self) -> &Bounded {
        &self.open
    }

    /// Rows of the project.
    pub(crate) fn scope<E: Scoped>(&self) -> Select<E> {
        E::find().filter(E::TENANT.eq(self.tenant.uuid()))
    }

    /// A change of rows of the project.
    pub(crate) fn change<E: Scoped>(&self) -> UpdateMany<E> {
        E::update_many().filter(E::TENANT.eq(self.tenant.uuid()))
    }

    /// A removal of rows of the project.
    pub(crate) fn remove<E: Scoped>(&self) -> DeleteMany<E> {
        E::delete_many().filter(E::TENANT.eq(self.tenant.uuid()))
    }

    /// Waits until nobody is judging what is wanted, and lets nobody do so until the end of the transaction. Taken by
    /// whoever changes policies, assignments or schedules: a row lock could not see a new row. Whoever changes what it
    /// has read takes it before it reads; every writer of the store takes it itself.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn write_wanted(&self) -> Result<(), StoreError> {
        self.advisory("pg_advisory_xact_lock").await
    }

    /// Lets nobody change what is wanted until the end of the transaction. Taken before a node is given leave.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn judge_wanted(&self) -> Result<(), StoreError> {
        self.advisory("pg_advisory_xact_lock_shared").await
    }

    /// The same transaction of a program that asks for another project, for a test.
    #[cfg(feature = "testing")]
    pub(crate) fn asking_for(self, tenant: TenantId) -> Self {
        Self { tenant, ..self }
    }

    /// Changes a setting until the end of the transaction, for a test.
    ///
    /// # Errors
    /// The database cannot be reached.
    #[cfg(feature = "testing")]
    pub async fn set(&self, name: &str, value: &str) -> Result<(), StoreError> {
        let sql = "SELECT set_config($1, $2, true)";
        execute(&self.open, sql, [name.into(), value.into()])
            .await
            .map(drop)
    }

    /// A setting as the transaction has it, in its base unit, for a test.
    ///
    /// # Errors
    /// The database cannot be reached.
    #[cfg(feature = "testing")]
    pub async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let sql = "SELECT setting FROM pg_settings WHERE name = $1";
        let row = one(&self.open, sql, [name.into()]).await?;
        Ok(row.map(|row| row.try_get_by_index(0)).transpose()?)
    }

    async fn advisory(&self, function: &str) -> Result<(), StoreError> {
        advisory(&self.open, self.tenant, function).await
    }
}

impl FleetTx {
    pub(crate) async fn open(store: &Store, actor: Option<&Actor>) -> Result<Self, StoreError> {
        let tx = begin(store, &Entry::Read).await?;
        begun(&tx, scoped("*"), &actor.map(noted).unwrap_or_default()).await?;
        Ok(Self {
            open: tx,
            written: Arc::clone(&store.written),
        })
    }

    /// Makes the changes visible to others, for good.
    ///
    /// # Errors
    /// The database cannot be reached; then nothing was changed, or everything was.
    pub async fn commit(self) -> Result<(), StoreError> {
        let _told = Tells(self.written);
        Ok(self.open.commit().await?)
    }

    pub(crate) fn conn(&self) -> &Bounded {
        &self.open
    }

    /// As [`Tx::write_wanted`], for one project.
    pub(crate) async fn write_wanted(&self, tenant: TenantId) -> Result<(), StoreError> {
        advisory(&self.open, tenant, "pg_advisory_xact_lock").await
    }
}

/// Takes the lock of a project.
async fn advisory(tx: &Bounded, tenant: TenantId, function: &str) -> Result<(), StoreError> {
    let (high, low) = tenant.uuid().as_u64_pair();
    let key = (high ^ low).cast_signed();
    let sql = format!("SELECT {function}($1)");
    execute(tx, sql, [key.into()]).await.map(drop)
}

/// A column that is one of many ids. One parameter for any number of them: a statement takes at most 65,535.
pub(crate) fn among(column: impl ColumnTrait, ids: impl IntoIterator<Item = i32>) -> Expr {
    let ids: Vec<i32> = ids.into_iter().collect();
    let any = PgFunc::any(Expr::value(ids));
    Expr::col(column.as_column_ref()).eq(any)
}

/// An array of ids, by the number of its parameter, for what is asked again and again. Gathered like this it looks as
/// long to the planner before it knows the ids as afterwards, so the database keeps one plan and does not plan each time.
pub(crate) fn ids_in(parameter: usize) -> String {
    format!("ARRAY(SELECT unnest(${parameter}::integer[]))")
}

/// Settings and their values.
type Settings<'a> = Vec<(&'static str, &'a str)>;

/// What is set besides the scope.
fn settings(how: &Entry) -> Settings<'_> {
    match how {
        Entry::Read => Vec::new(),
        Entry::Snapshot => vec![
            ("idle_in_transaction_session_timeout", PATIENCE),
            ("enable_seqscan", "on"),
        ],
        Entry::Write(actor) => noted(actor),
    }
}

/// What the change log reads of whoever changes something.
fn noted(actor: &Actor) -> Settings<'_> {
    vec![
        ("evenkeel.actor", actor.name.as_str()),
        ("evenkeel.request", actor.request_id.as_str()),
    ]
}

/// Tells of a commit, also when nobody knows whether it was one, or waits for it any more.
struct Tells(Arc<Notify>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// Who is told of a commit.
fn told_by(store: &Store, how: &Entry) -> Option<Arc<Notify>> {
    (*how != Entry::Snapshot).then(|| Arc::clone(&store.written))
}

async fn begin(store: &Store, how: &Entry) -> Result<Bounded, StoreError> {
    let tx = within(store.patience, store.db.begin()).await?;
    let tx = Bounded::new(tx, store.patience);
    if *how == Entry::Snapshot {
        // Both in one, before anything else is asked.
        let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
        tx.execute_unprepared(snapshot).await?;
    }
    Ok(tx)
}

/// The call that sets the scope, and its parameters.
type Call = (&'static str, Vec<Value>);

/// The call that sets a scope which is known.
const SCOPED: &str = "set_config('evenkeel.tenant', $1, true)";

/// The call that sets the scope of a project that is looked up.
const ENTERED: &str = "enter_project($1, $2)";

fn scoped(scope: &str) -> Call {
    (SCOPED, vec![scope.into()])
}

/// Whether a statement is the first one of a transaction, for a test.
#[cfg(feature = "testing")]
pub(crate) fn begins(sql: &str) -> bool {
    let call = sql.strip_prefix("SELECT ");
    let is = |first: &str| call.is_some_and(|call| call.starts_with(first));
    is(SCOPED) || is(ENTERED)
}

/// Sets the scope and more in one statement, and gives its row. The settings are local to the transaction, or the pool
/// would hand one tenant's rows to another.
async fn begun(
    tx: &Bounded,
    (scope, mut values): Call,
    also: &[(&str, &str)],
) -> Result<Option<QueryResult>, StoreError> {
    let mut calls = vec![scope.to_owned()];
    for (name, value) in also {
        values.push(Value::from(*value));
        calls.push(format!("set_config('{name}', ${}, true)", values.len()));
    }
    one(tx, format!("SELECT {}", calls.join(", ")), values).await
}

/// A statement whose answer does not matter.
pub(crate) async fn execute(
    db: &impl ConnectionTrait,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
) -> Result<u64, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    Ok(db.execute_raw(statement).await?.rows_affected())
}

/// What each row of an answer says, read while the database is still at the next ones.
pub(crate) async fn each<T>(
    db: &Bounded,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
    read: impl Fn(&QueryResult) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    db.each(statement, read).await
}

/// A statement with at most one row for an answer.
pub(crate) async fn one(
    db: &impl ConnectionTrait,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
) -> Result<Option<QueryResult>, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    Ok(db.query_one_raw(statement).await?)
}

/// A statement with rows for an answer.
pub(crate) async fn all(
    db: &impl ConnectionTrait,
    sql: impl Into<String>,
    values: impl IntoIterator<Item = Value>,
) -> Result<Vec<QueryResult>, StoreError> {
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    Ok(db.query_all_raw(statement).await?)
}
