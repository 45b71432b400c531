//! Scoped transactions.

use std::iter;

use evenkeel_domain::tenant::TenantId;
use sea_orm::sea_query::Expr;
use sea_orm::sea_query::extension::postgres::PgFunc;
use sea_orm::{
    AccessMode, ColumnTrait, ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend,
    DeleteMany, EntityTrait, ExprTrait, IdenStatic, IsolationLevel, Iterable, QueryFilter,
    QueryResult, Select, Statement, TransactionTrait, UpdateMany, Value,
};

use crate::error::StoreError;

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

/// An open transaction that sees one project. Dropping it rolls back.
#[derive(Debug)]
pub struct Tx {
    tx: DatabaseTransaction,
    tenant: TenantId,
}

/// An open transaction that sees all projects. Dropping it rolls back.
#[derive(Debug)]
pub struct FleetTx {
    tx: DatabaseTransaction,
}

/// A row that belongs to a tenant.
pub(crate) trait Scoped: EntityTrait {
    /// The column that says to which.
    const TENANT: Self::Column;
}

impl Tx {
    pub(crate) async fn open(
        db: &DatabaseConnection,
        tenant: TenantId,
        actor: Option<&Actor>,
    ) -> Result<Self, StoreError> {
        let tx = db.begin().await?;
        let tx = scoped(tx, &tenant.to_string(), &noted(actor)).await?;
        Ok(Self { tx, tenant })
    }

    /// One that only reads, and sees all the time what was there when it began.
    pub(crate) async fn open_snapshot(
        db: &DatabaseConnection,
        tenant: TenantId,
    ) -> Result<Self, StoreError> {
        let (level, mode) = (IsolationLevel::RepeatableRead, AccessMode::ReadOnly);
        let tx = db.begin_with_config(Some(level), Some(mode)).await?;
        let also = [("idle_in_transaction_session_timeout", PATIENCE)];
        let tx = scoped(tx, &tenant.to_string(), &also).await?;
        Ok(Self { tx, tenant })
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
        Ok(self.tx.commit().await?)
    }

    pub(crate) fn conn(&self) -> &DatabaseTransaction {
        &self.tx
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

    /// A setting as the transaction has it, in its base unit, for a test.
    ///
    /// # Errors
    /// The database cannot be reached.
    #[cfg(feature = "testing")]
    pub async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let sql = "SELECT setting FROM pg_settings WHERE name = $1";
        let row = one(&self.tx, sql, [name.into()]).await?;
        Ok(row.map(|row| row.try_get_by_index(0)).transpose()?)
    }

    async fn advisory(&self, function: &str) -> Result<(), StoreError> {
        advisory(&self.tx, self.tenant, function).await
    }
}

impl FleetTx {
    pub(crate) async fn open(
        db: &DatabaseConnection,
        actor: Option<&Actor>,
    ) -> Result<Self, StoreError> {
        let tx = scoped(db.begin().await?, "*", &noted(actor)).await?;
        Ok(Self { tx })
    }

    /// Makes the changes visible to others, for good.
    ///
    /// # Errors
    /// The database cannot be reached; then nothing was changed, or everything was.
    pub async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }

    pub(crate) fn conn(&self) -> &DatabaseTransaction {
        &self.tx
    }

    /// As [`Tx::write_wanted`], for one project.
    pub(crate) async fn write_wanted(&self, tenant: TenantId) -> Result<(), StoreError> {
        advisory(&self.tx, tenant, "pg_advisory_xact_lock").await
    }
}

/// Takes the lock of a project.
async fn advisory(
    tx: &DatabaseTransaction,
    tenant: TenantId,
    function: &str,
) -> Result<(), StoreError> {
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

/// The columns of a table under an alias, named so that `Model::from_query_result(row, "<alias>_")` finds them.
pub(crate) fn columns<E: EntityTrait>(alias: &str) -> String {
    let columns = E::Column::iter().map(|column| {
        let name = column.as_str();
        format!("{alias}.{name} AS {alias}_{name}")
    });
    columns.collect::<Vec<_>>().join(", ")
}

/// What the change log reads of whoever changes something.
fn noted(actor: Option<&Actor>) -> Vec<(&'static str, &str)> {
    let Some(actor) = actor else {
        return Vec::new();
    };
    vec![
        ("evenkeel.actor", actor.name.as_str()),
        ("evenkeel.request", actor.request_id.as_str()),
    ]
}

/// Sets the scope and more in one statement. The settings are local to the transaction, or the pool would hand one
/// tenant's rows to another.
async fn scoped(
    tx: DatabaseTransaction,
    scope: &str,
    also: &[(&str, &str)],
) -> Result<DatabaseTransaction, StoreError> {
    let (mut calls, mut values) = (Vec::new(), Vec::new());
    for (name, value) in iter::once(&("evenkeel.tenant", scope)).chain(also) {
        values.push(Value::from(*value));
        calls.push(format!("set_config('{name}', ${}, true)", values.len()));
    }
    let sql = format!("SELECT {}", calls.join(", "));
    execute(&tx, sql, values).await?;
    Ok(tx)
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
