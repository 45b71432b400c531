//! Which transactions a reader need not wait for: those of other databases on the same server.

use sea_orm::sqlx::query;
use sea_orm::{DbErr, RuntimeErr};

use super::LogError;
use super::line::Line;
use crate::check::Misfit;
use crate::error::StoreError;
use crate::pool::Store;
use crate::tx::{FleetTx, execute, one};

/// The last 32 bits of the transactions that are open in other databases. Asked before the log is read: what is open then
/// and not among them is of this database, or not seen at all, such as one that was prepared, or began after this. All of
/// those are waited for; the last ones hold back nothing that was committed before.
pub(super) async fn elsewhere(line: &mut Line) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT a.backend_xid::text::bigint FROM pg_stat_activity a \
               JOIN pg_database d ON d.datname = current_database() \
               WHERE a.datid <> d.oid AND a.backend_xid IS NOT NULL";
    let rows = line.rows(query(sql)).await?;
    let xids = rows.iter().map(|row| row.try_get_by_index::<i64>(0));
    Ok(xids.collect::<Result<Vec<_>, _>>()?)
}

/// A transaction as others see it.
struct Open {
    pid: i32,
    xid: i64,
    role: String,
}

/// Whether a reader sees which transactions others have open, by one that is opened for it. One that does not would wait
/// for those of other databases as well.
pub(super) async fn check(store: &Store, line: &mut Line) -> Result<(), LogError> {
    let tx = store.fleet().await?;
    lower_floor(&tx).await?;
    let open = open(&tx).await?;
    let sql = "SELECT FROM pg_stat_activity WHERE pid = $1 AND backend_xid = $2::bigint::text::xid8::xid \
               AND datid IS NOT NULL";
    let seen = line.rows(query(sql).bind(open.pid).bind(open.xid)).await;
    tx.commit().await?;
    let is_blind = match &seen {
        Ok(rows) => rows.is_empty(),
        Err(error) => is_forbidden(error),
    };
    if is_blind {
        return Err(Misfit::BlindReader { role: open.role }.into());
    }
    Ok(seen.map(drop)?)
}

/// A log that came with a backup into another server brings a floor that lies ahead of every transaction there.
async fn lower_floor(tx: &FleetTx) -> Result<(), StoreError> {
    let sql = "UPDATE log_state SET epoch = epoch + 1, floor_xid = '0', floor_seq = 0 \
               WHERE floor_xid >= pg_snapshot_xmax(pg_current_snapshot())";
    execute(tx.conn(), sql, []).await.map(drop)
}

async fn open(tx: &FleetTx) -> Result<Open, StoreError> {
    let sql = "SELECT pg_backend_pid(), pg_current_xact_id()::text::bigint, current_user::text";
    let row = one(tx.conn(), sql, []).await?;
    let row = row.ok_or(StoreError::NotFound { what: "database" })?;
    Ok(Open {
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
