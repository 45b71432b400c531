//! Which changes are complete by their numbers: without the log of transaction ids, so that they can be sealed in an order
//! that continues after a restore.
//!
//! A transaction takes the lock of writers (see `barrier.rs`) before its first number, because the column `xid` comes before
//! the column `seq`, and keeps it until it has ended. So every transaction that has taken a number which was read before the
//! locks were listed either holds the lock in that list, or has ended and its changes are visible to later statements.

use std::collections::BTreeSet;

use evenkeel_domain::Time;
use sqlx::AssertSqlSafe;

use super::barrier::WRITER_LOCK;
use crate::error::StoreError;
use crate::pool::Store;

/// The numbers that changes have taken so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumberRange {
    /// The last number that a change has taken; 0 if there is none.
    pub(crate) last: i64,
    /// Changes with numbers up to this are sealed.
    pub(crate) sealed_to: i64,
    /// When the database server was started. Another server, such as a promoted standby, may assign numbers again.
    pub(crate) server: Time,
}

/// Reads the last number. One short statement for the changes of all projects.
pub(crate) async fn read_numbers(store: &Store) -> Result<NumberRange, StoreError> {
    let sql = "SELECT CASE WHEN n.is_called THEN n.last_value ELSE 0 END, s.sealed_to, pg_postmaster_start_time() \
               FROM change_log_seq_seq n CROSS JOIN change_seal_state s";
    let row = store.query_alone(sql).await?;
    Ok(NumberRange {
        last: row.try_get_by_index(0)?,
        sealed_to: row.try_get_by_index(1)?,
        server: row.try_get_by_index(2)?,
    })
}

/// The ids of the transactions that have written the log and have not ended, with those of their
/// subtransactions, and when the database server was started. Unlike the virtual transaction, the id
/// stays the same when a transaction is prepared and when the database recovers from a crash.
pub(crate) async fn list_writers(store: &Store) -> Result<(BTreeSet<String>, Time), StoreError> {
    let sql = format!(
        "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks) \
         SELECT coalesce(string_agg(x.transactionid::text, ' '), ''), pg_postmaster_start_time() FROM locks w \
         JOIN locks x ON x.virtualtransaction = w.virtualtransaction \
         AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' WHERE {WRITER_LOCK}"
    );
    let row = store.query_alone(AssertSqlSafe(sql)).await?;
    let writers: String = row.try_get_by_index(0)?;
    Ok((writers.split_whitespace().map(str::to_owned).collect(), row.try_get_by_index(1)?))
}
