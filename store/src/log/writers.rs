//! Which changes are complete by their numbers: without the log of transaction ids, so that they can be sealed in an order
//! that continues after a restore.
//!
//! A transaction takes the lock of writers (see `barrier.rs`) before its first number, because the column `xid` comes before
//! the column `seq`, and keeps it until it has ended. So every transaction that has taken a number which was read before the
//! locks were listed either holds the lock in that list, or has ended and its changes are visible to later statements.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use super::barrier::WRITER_LOCK;
use crate::error::StoreError;
use crate::pool::Store;

/// The last number that a change has taken, and the number up to which changes are sealed. One short statement for the
/// changes of all projects.
pub(crate) async fn read_last_number(store: &Store) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT CASE WHEN n.is_called THEN n.last_value ELSE 0 END, s.sealed_to \
               FROM change_log_seq_seq n CROSS JOIN change_seal_state s";
    let row = store.query_alone(sql).await?;
    Ok((row.try_get_by_index(0)?, row.try_get_by_index(1)?))
}

/// The transactions that have written the log and have not ended.
pub(crate) async fn list_writers(store: &Store) -> Result<BTreeSet<String>, StoreError> {
    let sql = format!(
        "SELECT coalesce(string_agg(w.virtualtransaction, ' '), '') FROM pg_locks w WHERE {WRITER_LOCK}"
    );
    let row = store.query_alone(AssertSqlSafe(sql)).await?;
    let writers: String = row.try_get_by_index(0)?;
    Ok(writers.split_whitespace().map(str::to_owned).collect())
}
