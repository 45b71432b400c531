//! The barrier of the change log. A reader need not wait for a transaction that has written
//! something else and stays open: below the barrier, no transaction may begin to write the log, and
//! those that have begun hold a lock. docs/design/change-log.md has the proof.

use std::time::{Duration, Instant};

use sea_orm::QueryResult;
use sqlx::{AssertSqlSafe, query};
use tokio::time::timeout;

use super::PASS_TIMEOUT;
use super::connection::LogConnection;
use super::limit::foreign_transactions;
use crate::error::StoreError;
use crate::pool::Store;
use crate::session::timeout_error;
use crate::tx::{execute, query_all};

/// How long a reader waits for a transaction before it raises the barrier. Longer than a statement
/// waits for a lock: a transaction of the server that waits is not refused afterwards.
pub const STALL_LIMIT: Duration = Duration::from_secs(6);

/// A transaction that stays open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongTransaction {
    /// The process of Postgres; none for a prepared transaction.
    pub pid: Option<i32>,
    /// The global identifier of a prepared transaction, by which it can be ended.
    pub gid: Option<String>,
    pub role: Option<String>,
    /// Its age, if the role may see it. A prepared transaction counts from its preparation.
    pub age: Option<Duration>,
    /// Whether it has written the change log, so that readers wait for it.
    pub is_log_writer: bool,
}

/// When and at which transaction a reader began to wait.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Instant,
    /// Every transaction below was open or had ended then.
    xmax: u64,
}

/// The barrier as one reader uses it.
#[derive(Debug)]
pub(super) struct Barrier {
    stall_limit: Duration,
    stall: Option<Stall>,
    /// The oldest open transaction, and when it was seen first.
    oldest: Option<(u64, Instant)>,
    /// The reader waits only for writers of the log below this transaction; 0 while it is not used.
    pub(super) xid: u64,
}

impl Barrier {
    pub(super) const fn new(stall_limit: Duration) -> Self {
        Self { stall_limit, stall: None, oldest: None, xid: 0 }
    }

    /// How long the oldest open transaction has been seen.
    pub(super) fn oldest_age(&self) -> Duration {
        self.oldest.map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// Records the state of a pass: the oldest open transaction, the one that the reader waits for,
    /// and the first one that has not ended. Returns the transaction up to which the barrier must
    /// be raised.
    pub(super) fn observe(&mut self, oldest: u64, limit: u64, xmax: u64) -> Option<u64> {
        let now = Instant::now();
        if oldest >= self.xid {
            self.xid = 0;
        }
        let is_same = self.oldest.is_some_and(|(seen, _)| seen == oldest);
        if !is_same {
            self.oldest = (oldest < xmax).then_some((oldest, now));
        }
        let is_waiting = limit < xmax;
        let stall = self.stall.filter(|stall| is_waiting && limit < stall.xmax);
        let stall = stall.or_else(|| is_waiting.then_some(Stall { since: now, xmax }));
        let must_raise = stall.filter(|stall| stall.since.elapsed() >= self.stall_limit);
        self.stall = if must_raise.is_some() { Some(Stall { since: now, xmax }) } else { stall };
        must_raise.map(|stall| stall.xmax)
    }

    /// Raises the barrier of the database, for all readers, if it must be raised. Returns the
    /// transactions for which this reader has waited.
    pub(super) async fn raise(
        &mut self,
        store: &Store,
        line: &mut LogConnection,
        xid: Option<u64>,
    ) -> Result<Vec<LongTransaction>, StoreError> {
        let Some(xid) = xid else {
            return Ok(Vec::new());
        };
        let raised = timeout(PASS_TIMEOUT, raise_in_database(store, xid)).await;
        raised.map_err(|_| timeout_error())??;
        self.xid = self.xid.max(xid);
        let waited = timeout(PASS_TIMEOUT, long_transactions(line, xid)).await;
        waited.map_err(|_| timeout_error())?
    }
}

async fn raise_in_database(store: &Store, xid: u64) -> Result<(), StoreError> {
    let tx = store.fleet().await?;
    // Two readers must not overwrite the higher value of each other.
    execute(tx.conn(), "SELECT pg_advisory_xact_lock(7032)", []).await?;
    // A value above all transactions comes from the backup of another server.
    let sql = "SELECT setval('log_barrier', $1) FROM log_barrier WHERE last_value < $1 \
               OR last_value > pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    execute(tx.conn(), sql, [xid.cast_signed().into()]).await?;
    tx.commit().await
}

/// The lock that each transaction holds which has written the log, as `pg_locks` shows it.
pub(super) const WRITER_LOCK: &str = "w.locktype = 'advisory' AND w.classid = 0 AND w.objid = 7031 AND w.objsubid = 1 \
     AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// The last 32 bits of the ids of the open transactions that have written the log.
pub(super) async fn log_writers(line: &mut LogConnection) -> Result<Vec<i64>, StoreError> {
    let sql = format!(
        "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks) SELECT x.transactionid::text::bigint \
         FROM locks w JOIN locks x ON x.virtualtransaction = w.virtualtransaction \
         AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' WHERE {WRITER_LOCK}"
    );
    let rows = line.rows(query(AssertSqlSafe(sql))).await?;
    let xids = rows.iter().map(|row| row.try_get_by_index::<i64>(0));
    Ok(xids.collect::<Result<Vec<_>, _>>()?)
}

/// The open transactions below `xid`, except those of other databases.
async fn long_transactions(
    line: &mut LogConnection,
    xid: u64,
) -> Result<Vec<LongTransaction>, StoreError> {
    let elsewhere = foreign_transactions(line).await?;
    let sql = format!(
        "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks) \
         SELECT x.pid, p.gid, coalesce(a.usename, p.owner)::text, \
         extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::bigint, \
         EXISTS (SELECT FROM locks w WHERE w.virtualtransaction = x.virtualtransaction \
         AND {WRITER_LOCK}) \
         FROM pg_snapshot_xip(pg_current_snapshot()) t (xid) \
         JOIN locks x ON x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock' \
         AND x.transactionid::text::bigint = t.xid::text::bigint & 4294967295 \
         LEFT JOIN pg_stat_activity a ON a.pid = x.pid \
         LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid \
         WHERE t.xid < $1::bigint::text::xid8 \
         AND x.transactionid::text::bigint <> ALL ($2::bigint[])"
    );
    let statement = query(AssertSqlSafe(sql)).bind(xid.cast_signed()).bind(elsewhere);
    let rows = line.rows(statement).await?;
    rows.iter().map(long_transaction_from_row).collect()
}

/// The transactions of this database that have written the change log and are at least this old.
/// Neither readers of the log nor seals pass them. A transaction whose age the role may not see is
/// left out.
///
/// # Errors
/// The database cannot be reached.
pub async fn list_long_writers(
    store: &Store,
    min_age: Duration,
) -> Result<Vec<LongTransaction>, StoreError> {
    let sql = format!(
        "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks) \
         SELECT w.pid, p.gid, coalesce(a.usename, p.owner)::text, \
         extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::bigint, true \
         FROM locks w LEFT JOIN pg_stat_activity a ON a.pid = w.pid \
         LEFT JOIN (locks x JOIN pg_prepared_xacts p ON p.transaction = x.transactionid) \
         ON w.pid IS NULL AND x.virtualtransaction = w.virtualtransaction WHERE {WRITER_LOCK}"
    );
    let tx = store.fleet().await?;
    let rows = query_all(tx.conn(), sql, []).await?;
    let writers: Vec<LongTransaction> =
        rows.iter().map(long_transaction_from_row).collect::<Result<_, _>>()?;
    let is_long = |writer: &LongTransaction| writer.age.is_some_and(|age| age >= min_age);
    Ok(writers.into_iter().filter(is_long).collect())
}

fn long_transaction_from_row(row: &QueryResult) -> Result<LongTransaction, StoreError> {
    let age: Option<i64> = row.try_get_by_index(3)?;
    Ok(LongTransaction {
        pid: row.try_get_by_index(0)?,
        gid: row.try_get_by_index(1)?,
        role: row.try_get_by_index(2)?,
        age: age.map(|seconds| Duration::from_secs(seconds.unsigned_abs())),
        is_log_writer: row.try_get_by_index(4)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_barrier_is_raised_only_for_transactions_that_stay_open() {
        let mut patient = Barrier::new(Duration::MAX);
        assert_eq!(patient.observe(10, 10, 20), None);
        assert_eq!(patient.observe(10, 10, 30), None);
        let mut barrier = Barrier::new(Duration::ZERO);
        assert_eq!(barrier.observe(20, 20, 20), None, "nothing is open");
        assert_eq!(barrier.oldest_age(), Duration::ZERO);
        assert_eq!(barrier.observe(10, 10, 20), Some(20));
        barrier.xid = 20;
        assert_eq!(barrier.observe(10, 30, 30), None, "the reader does not wait for it any more");
        assert_eq!(barrier.xid, 20);
        assert_eq!(barrier.observe(30, 30, 30), None, "it has ended");
        assert_eq!(barrier.xid, 0);
    }

    #[test]
    fn a_reader_that_proceeds_waits_again() {
        let mut barrier = Barrier::new(Duration::MAX);
        barrier.observe(10, 10, 20);
        let first = barrier.stall.expect("waiting");
        barrier.observe(15, 15, 25);
        assert_eq!(barrier.stall.expect("still waiting").xmax, first.xmax);
        barrier.observe(22, 22, 40);
        assert_eq!(barrier.stall.expect("waiting for others").xmax, 40);
        barrier.observe(50, 50, 50);
        assert!(barrier.stall.is_none());
    }
}
