//! Transactions that a reader need not wait for: those of other databases on the same server.

use sea_orm::{DbErr, RuntimeErr};
use sqlx::query;

use super::LogError;
use super::connection::LogConnection;
use crate::check::IncompatibleDatabase;
use crate::error::StoreError;
use crate::pool::Store;
use crate::tx::{FleetTx, execute, query_one};

/// The last 32 bits of the ids of transactions that are open in other databases. Queried before the
/// log is read: any other open transaction belongs to this database, or is not visible because it
/// was prepared or began later. The reader waits for all of those; the later ones delay nothing
/// that was committed before.
pub(super) async fn foreign_transactions(line: &mut LogConnection) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT a.backend_xid::text::bigint FROM pg_stat_activity a \
               JOIN pg_database d ON d.datname = current_database() \
               WHERE a.datid <> d.oid AND a.backend_xid IS NOT NULL";
    let rows = line.rows(query(sql)).await?;
    let xids = rows.iter().map(|row| row.try_get_by_index::<i64>(0));
    Ok(xids.collect::<Result<Vec<_>, _>>()?)
}

/// An open transaction as other sessions see it.
struct OpenTransaction {
    pid: i32,
    xid: i64,
    role: String,
}

/// Opens a transaction and checks that the reader can see it. A reader that cannot see the
/// transactions of others would also wait for those of other databases.
pub(super) async fn check_visibility(
    store: &Store,
    line: &mut LogConnection,
) -> Result<(), LogError> {
    let tx = store.fleet().await?;
    lower_floor(&tx).await?;
    let open = open_transaction(&tx).await?;
    let sql = "SELECT FROM pg_stat_activity WHERE pid = $1 AND backend_xid = $2::bigint::text::xid8::xid \
               AND datid IS NOT NULL";
    let visible = line.rows(query(sql).bind(open.pid).bind(open.xid)).await;
    tx.commit().await?;
    let is_blind = match &visible {
        Ok(rows) => rows.is_empty(),
        Err(error) => is_forbidden(error),
    };
    if is_blind {
        return Err(IncompatibleDatabase::ActivityNotVisible { role: open.role }.into());
    }
    Ok(visible.map(drop)?)
}

/// A log that was restored from a backup of another server has a floor above all of this server's
/// transactions.
async fn lower_floor(tx: &FleetTx) -> Result<(), StoreError> {
    let sql = "UPDATE log_state SET epoch = epoch + 1, floor_xid = '0', floor_seq = 0 \
               WHERE floor_xid >= pg_snapshot_xmax(pg_current_snapshot())";
    execute(tx.conn(), sql, []).await.map(drop)
}

async fn open_transaction(tx: &FleetTx) -> Result<OpenTransaction, StoreError> {
    let sql = "SELECT pg_backend_pid(), pg_current_xact_id()::text::bigint, current_user::text";
    let row = query_one(tx.conn(), sql, []).await?;
    let row = row.ok_or(StoreError::NotFound { what: "database" })?;
    Ok(OpenTransaction {
        pid: row.try_get_by_index(0)?,
        xid: row.try_get_by_index(1)?,
        role: row.try_get_by_index(2)?,
    })
}

/// 42501 `insufficient_privilege`.
fn is_forbidden(error: &StoreError) -> bool {
    let StoreError::Database(DbErr::Query(RuntimeErr::SqlxError(cause))) = error else {
        return false;
    };
    let answer = cause.as_database_error();
    answer.is_some_and(|answer| answer.code().as_deref() == Some("42501"))
}
