//! Reads the change log: every change of every project exactly once, in an order that misses none.
//!
//! Changes are ordered by transaction id. Transactions do not end in the order in which they began,
//! so a reader stops at the oldest transaction that is still writing in this database; before it,
//! no change can appear any more. After some seconds it waits only for transactions that have
//! written the log (see `log/barrier.rs`). If a reader may have missed changes, it returns a
//! [`LogBreak`]: then all conclusions from the log are void, and it must be followed from its
//! current end.
//!
//! Rows that were not read and are removed while triggers are disabled go unnoticed, unless the row
//! that was read last is among them.

mod barrier;
mod connection;
mod heartbeat;
mod kind;
mod limit;
mod listen;
mod prune;
mod writers;

use std::time::{Duration, Instant};

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Level, Scope};
use evenkeel_domain::tenant::TenantId;
use sea_orm::{DbErr, QueryResult};
use sqlx::{AssertSqlSafe, query};
use uuid::Uuid;

use crate::check::IncompatibleDatabase;
use crate::error::StoreError;
use crate::pool::Store;
use crate::rows::or_corrupt;
use barrier::Barrier;
use connection::LogConnection;

pub use barrier::{LongTransaction, STALL_LIMIT, list_long_writers};
pub(crate) use heartbeat::LastHeartbeat;
pub use heartbeat::send_heartbeat;
pub use kind::{ChangeKind, Operation};
pub use listen::{HintListener, listen_for_hints};
pub(crate) use listen::{RETRY_INTERVAL, connect_listener, receive_payload};
pub use prune::{RemovalLimits, prune};
pub(crate) use writers::{list_writers, read_numbers};

/// Limit for a pass, because a cut connection sends nothing.
const PASS_TIMEOUT: Duration = Duration::from_secs(5);

/// The position after every possible change.
const END_OF_LOG: Position = Position { epoch: 0, xid: i64::MAX.cast_unsigned(), seq: 0 };

const TABLE: &str = "change_log";

/// A position in the log: after the change with this number of this transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Counts removals of rows that a reader may not have read.
    pub epoch: i32,
    /// The transaction id.
    pub xid: u64,
    /// The number of the change; 0 before the first change of the transaction.
    pub seq: i64,
}

/// One change, reduced to what must be invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedChange {
    pub tenant: TenantId,
    pub kind: ChangeKind,
    /// The bits of its id; 0 for resources that exist once per project.
    pub id: u32,
    pub operation: Operation,
    /// The affected scope; none if it may be any scope of the project.
    pub scope: Option<Scope>,
    /// Whether a user made the change, not the server itself.
    pub is_by_user: bool,
    pub at: Position,
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The changes after the position, in the order of the log.
    pub changes: Vec<LoggedChange>,
    /// All transactions below this id have ended.
    pub limit: u64,
    /// No transaction from this id on had ended when the pass began. Once the `limit` of a later
    /// pass reaches this value, every change that was committed before this pass has been read.
    pub xmax: u64,
    /// Every transaction below this id has ended or cannot write the log, and no id below it is
    /// assigned again, not even after a crash of the database. Every change below it has been read.
    pub durable_end: u64,
    /// Whether the pass reached its size limit and more changes are available.
    pub has_more: bool,
    /// The reader has seen a heartbeat that this process sent at this instant.
    pub heartbeat_at: Option<Instant>,
    /// How long the oldest open transaction of the database has been seen.
    pub oldest_age: Duration,
    /// Transactions for which the reader has waited too long. Each is returned once.
    pub long_transactions: Vec<LongTransaction>,
}

/// Why conclusions from the log are no longer valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogBreak {
    /// The last change that was read no longer exists.
    #[error("the change that was read last no longer exists in the change log")]
    Truncated,
    /// Pruning deleted changes that were not read yet.
    #[error("changes were pruned before they were read")]
    Pruned,
    /// Changes were deleted other than by pruning.
    #[error("changes were deleted from the change log")]
    OtherEpoch,
    /// The database server was restarted or replaced.
    #[error("the database server was restarted or replaced")]
    OtherServer,
    /// The database is older than before: a backup was restored.
    #[error("the database is older than the changes that were read from it")]
    Backwards,
}

/// Why the log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A statement failed. A retry may succeed: the position in the log is kept.
    #[error(transparent)]
    Store(StoreError),
    /// The program cannot use the database.
    #[error(transparent)]
    Incompatible(#[from] IncompatibleDatabase),
    /// The log cannot be followed from this position. A new reader is needed.
    #[error(transparent)]
    Broken(#[from] LogBreak),
}

impl From<StoreError> for LogError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Incompatible(error) => Self::Incompatible(error),
            error => Self::Store(error),
        }
    }
}

/// Follows the change log of all projects on a connection of its own.
#[derive(Debug)]
pub struct LogReader {
    store: Store,
    /// None after a failure: the next pass connects again.
    connection: Option<ReaderConnection>,
    /// Everything up to this position was read.
    at: Position,
    /// The highest change number that was read.
    highest: i64,
    /// Start time of the server.
    server: Time,
    barrier: Barrier,
    /// The last heartbeat that was seen.
    heartbeat: Option<i64>,
}

/// A connection and the state that is valid only with it: after a reconnect the whole state is read
/// again.
#[derive(Debug)]
struct ReaderConnection {
    line: LogConnection,
    /// Set if the last pass read everything and no transaction was open below: nothing can be read
    /// until a transaction ends.
    settled: Option<CaughtUp>,
}

/// The point up to which everything was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CaughtUp {
    /// No transaction from this id on had ended.
    xmax: u64,
    /// Start time of the server.
    server: Time,
}

#[derive(Clone, Copy, Debug)]
struct LogState {
    /// No transaction from this id on has ended.
    xmax: u64,
    /// Every transaction below this id has ended and is visible, or cannot write the log.
    limit: u64,
    /// The oldest open transaction; `xmax` if none is open.
    oldest: u64,
    /// None if the session does not see all projects.
    heartbeat: Option<i64>,
    epoch: i32,
    /// The newest position that pruning deleted.
    floor: (u64, i64),
    /// The last number that was assigned to a change.
    last_seq: i64,
    /// Start time of the server, in microseconds. It identifies a server start.
    server: Time,
    /// Whether the row of the position exists.
    has_anchor: bool,
    /// Whether any transaction below `xmax` is open, also in another database.
    is_any_open: bool,
}

impl LogReader {
    /// Starts at the current end of the log: reads everything that is committed from now on, and
    /// possibly some changes that were committed just before.
    ///
    /// # Errors
    /// The database cannot be reached, or its open transactions are not visible.
    pub async fn open(store: &Store) -> Result<(Self, Position), LogError> {
        let result = tokio::time::timeout(PASS_TIMEOUT, Self::connect(store)).await;
        let reader = result.map_err(|_| no_answer_error())??;
        let at = reader.at;
        Ok((reader, at))
    }

    async fn connect(store: &Store) -> Result<Self, LogError> {
        let mut line = LogConnection::open(&store.address).await?;
        limit::check_visibility(store, &mut line).await?;
        send_heartbeat(store).await?;
        let heartbeat = store.last_heartbeat.get();
        let (state, _) = read_log(&mut line, END_OF_LOG, 1, 0).await?;
        heartbeat.map_or(Ok(()), |heartbeat| heartbeat.check_seen(state.heartbeat))?;
        // After a crash of the database, ids below the limit may be assigned again.
        let durable = heartbeat.map_or(state.limit, |heartbeat| heartbeat.xid);
        Ok(Self {
            store: store.clone(),
            connection: Some(ReaderConnection { line, settled: None }),
            at: Position { epoch: state.epoch, xid: state.limit.min(durable), seq: 0 },
            highest: 0,
            server: state.server,
            barrier: Barrier::new(STALL_LIMIT),
            heartbeat: state.heartbeat,
        })
    }

    /// Changes how long the reader waits for a transaction that may not be a writer of the log, for
    /// tests.
    #[cfg(feature = "testing")]
    pub const fn set_stall_limit(&mut self, limit: Duration) {
        self.barrier = Barrier::new(limit);
    }

    /// Reads at most `max_changes` safe changes after the last pass. Cancel-safe: the pass after a
    /// dropped one starts at the same position.
    ///
    /// # Errors
    /// The database cannot be reached: the next pass starts at the same position. Or the log is
    /// broken. Or the reader did not see a heartbeat of this process.
    pub async fn next(&mut self, max_changes: u32) -> Result<Tail, LogError> {
        // Taken out of the reader: a connection with an unread answer must not be used again.
        let ReaderConnection { mut line, settled } = match self.connection.take() {
            Some(connected) => connected,
            None => ReaderConnection {
                line: LogConnection::open(&self.store.address).await?,
                settled: None,
            },
        };
        // It was committed before the pass begins, so the pass must see it.
        let heartbeat = self.store.last_heartbeat.get();
        let max_changes = max_changes.max(1);
        let pass = pass(&mut line, settled, (self.at, max_changes, self.barrier.xid));
        let read = tokio::time::timeout(PASS_TIMEOUT, pass).await;
        let read = read.map_err(|_| no_answer_error())??;
        if let Some((state, _)) = &read {
            if let Some(broken) = self.detect_break(state) {
                return Err(broken.into());
            }
            self.heartbeat = state.heartbeat;
        }
        heartbeat.map_or(Ok(()), |heartbeat| heartbeat.check_seen(self.heartbeat))?;
        let heartbeat_at = heartbeat.map(|heartbeat| heartbeat.at);
        let heartbeat_xid = heartbeat.map(|heartbeat| heartbeat.xid);
        let Some((state, changes)) = read else {
            self.connection = Some(ReaderConnection { line, settled });
            let xmax = settled.map_or(0, |settled| settled.xmax);
            let oldest_age = self.barrier.oldest_age();
            let durable_end = self.durable_end(xmax, false, heartbeat_xid);
            let tail = Tail {
                limit: xmax,
                xmax,
                durable_end,
                heartbeat_at,
                oldest_age,
                ..Tail::default()
            };
            return Ok(tail);
        };
        let has_more = changes.len() >= usize::try_from(max_changes).unwrap_or(usize::MAX);
        let settled = (!has_more && state.limit == state.xmax)
            .then_some(CaughtUp { xmax: state.xmax, server: state.server });
        let (limit, xmax) = (state.limit, state.xmax);
        let raise_to = self.barrier.observe(state.oldest, limit, xmax);
        let raised = self.barrier.raise(&self.store, &mut line, raise_to).await;
        // The changes were read, so a failure must not end the pass. The next pass connects again.
        self.connection = raised.is_ok().then_some(ReaderConnection { line, settled });
        let long_transactions = raised.unwrap_or_default();
        // After the last await, so that a pass that is dropped loses no changes.
        if let Some(last) = changes.last() {
            self.at = last.at;
        }
        let highest = changes.iter().map(|change| change.at.seq).max();
        self.highest = self.highest.max(highest.unwrap_or_default());
        let durable_end = self.durable_end(limit, has_more, heartbeat_xid);
        let oldest_age = self.barrier.oldest_age();
        Ok(Tail {
            changes,
            limit,
            xmax,
            durable_end,
            has_more,
            heartbeat_at,
            oldest_age,
            long_transactions,
        })
    }

    /// The durable end of the log after a pass: see [`Tail::durable_end`]. The changes that were
    /// read and the heartbeat are committed, so no id up to theirs is assigned again.
    fn durable_end(&self, limit: u64, has_more: bool, heartbeat: Option<u64>) -> u64 {
        // The last change may not be the last one of its transaction.
        let read = if self.at.seq == 0 || has_more { self.at.xid } else { self.at.xid + 1 };
        let sent = if has_more { None } else { heartbeat.map(|heartbeat| heartbeat.min(limit)) };
        read.max(sent.unwrap_or_default())
    }

    /// Why the log is no longer the one of the previous pass, if so.
    fn detect_break(&self, state: &LogState) -> Option<LogBreak> {
        let position = (self.at.xid, self.at.seq);
        if state.server != self.server {
            Some(LogBreak::OtherServer)
        } else if state.epoch != self.at.epoch {
            Some(LogBreak::OtherEpoch)
        } else if state.xmax < self.at.xid || state.last_seq < self.highest {
            Some(LogBreak::Backwards)
        } else if position < state.floor {
            Some(LogBreak::Pruned)
        } else if self.at.seq > 0 && !state.has_anchor && position != state.floor {
            Some(LogBreak::Truncated)
        } else {
            None
        }
    }
}

/// The state of the log and its new changes; none if no transaction has ended since the reader
/// caught up. Every change of the log belongs to a transaction that ends above all ended ones, so
/// it is enough to ask for the first transaction that has not ended, in a fifth of the time.
async fn pass(
    line: &mut LogConnection,
    settled: Option<CaughtUp>,
    (after, max_changes, barrier): (Position, u32, u64),
) -> Result<Option<(LogState, Vec<LoggedChange>)>, StoreError> {
    if let Some(settled) = settled {
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_postmaster_start_time(), \
                   pg_snapshot_xmin(pg_current_snapshot()) < pg_snapshot_xmax(pg_current_snapshot())";
        if let Some(row) = line.rows(query(sql)).await?.first() {
            let now = CaughtUp {
                xmax: row.try_get_by_index::<i64>(0)?.cast_unsigned(),
                server: row.try_get_by_index(1)?,
            };
            if now == settled {
                return Ok(None);
            }
            let is_any_open: bool = row.try_get_by_index(2)?;
            if !is_any_open {
                let read = read_below(line, (after, max_changes), IgnoredTransactions::default());
                let read = read.await?;
                // No transaction below the limit is open, so there is nothing to ignore.
                if !read.0.is_any_open {
                    return Ok(Some(read));
                }
            }
        }
    }
    read_log(line, after, max_changes, barrier).await.map(Some)
}

/// Open transactions for which a pass does not wait.
#[derive(Default)]
struct IgnoredTransactions {
    /// See [`limit::foreign_transactions`].
    elsewhere: Vec<i64>,
    /// Below it, only the writers of the log are waited for; 0 while it is not used.
    barrier: u64,
    /// See [`barrier::log_writers`].
    writers: Vec<i64>,
}

/// The state of the log and the changes after a position.
async fn read_log(
    line: &mut LogConnection,
    after: Position,
    max_changes: u32,
    barrier: u64,
) -> Result<(LogState, Vec<LoggedChange>), StoreError> {
    let elsewhere = limit::foreign_transactions(line).await?;
    let writers = if barrier > 0 { barrier::log_writers(line).await? } else { Vec::new() };
    let ignored = IgnoredTransactions { elsewhere, barrier, writers };
    read_below(line, (after, max_changes), ignored).await
}

/// The state of the log and the changes after a position, below the open transactions that are not
/// ignored. One statement finds both the limit and the changes, so every transaction that had ended
/// by then is visible.
async fn read_below(
    line: &mut LogConnection,
    (after, max_changes): (Position, u32),
    ignored: IgnoredTransactions,
) -> Result<(LogState, Vec<LoggedChange>), StoreError> {
    // LIMIT is no parameter: a cached generic plan would assume a tenth of the log.
    let sql = format!(
        "SELECT p.xmax::text::bigint, p.least::text::bigint, s.epoch, s.floor_xid::text::bigint, s.floor_seq, \
         n.last_value, pg_postmaster_start_time(), \
         EXISTS (SELECT FROM change_log a WHERE a.xid = $1::bigint::text::xid8 AND a.seq = $2), \
         l.xid::text::bigint, l.seq, l.tenant_id, l.kind, l.id, l.operation, l.scope_level, l.scope_id, \
         p.oldest::text::bigint, (SELECT h.number FROM log_heartbeat h WHERE h.is_single_row), l.is_by_user, \
         p.is_any_open \
         FROM (SELECT v.xmax, pg_snapshot_xmin(v.seen) < v.xmax AS is_any_open, coalesce(o.least, v.xmax) AS least, coalesce(o.oldest, v.xmax) AS oldest \
         FROM (SELECT seen, pg_snapshot_xmax(seen) AS xmax FROM pg_current_snapshot() seen) v \
         CROSS JOIN LATERAL (SELECT min(t.xid::text::bigint)::text::xid8 AS oldest, min(t.xid::text::bigint) \
         FILTER (WHERE t.xid::text::bigint >= $4 OR t.xid::text::bigint & 4294967295 = ANY ($5::bigint[]))::text::xid8 AS least \
         FROM pg_snapshot_xip(v.seen) t (xid) \
         WHERE (t.xid::text::bigint & 4294967295) <> ALL ($3::bigint[])) o OFFSET 0) p \
         CROSS JOIN log_state s CROSS JOIN change_log_seq_seq n LEFT JOIN LATERAL (\
         SELECT c.xid, c.seq, c.tenant_id, c.kind, c.id, c.operation, c.scope_level, c.scope_id, \
         c.actor IS NOT NULL AS is_by_user FROM change_log c \
         WHERE (c.xid, c.seq) > ($1::bigint::text::xid8, $2) AND c.xid < p.least \
         ORDER BY c.xid, c.seq LIMIT {max_changes}) l ON true ORDER BY l.xid, l.seq"
    );
    let statement = query(AssertSqlSafe(sql))
        .bind(after.xid.cast_signed())
        .bind(after.seq)
        .bind(ignored.elsewhere)
        .bind(ignored.barrier.cast_signed())
        .bind(ignored.writers);
    let rows = line.rows(statement).await?;
    let first =
        rows.first().ok_or(StoreError::Corrupt { table: "log_state", row: 0, column: "epoch" })?;
    let state = state_from_row(first)?;
    let changes = rows.iter().filter_map(|row| change_from_row(row, state.epoch).transpose());
    Ok((state, changes.collect::<Result<Vec<_>, _>>()?))
}

fn state_from_row(row: &QueryResult) -> Result<LogState, StoreError> {
    let number = |at| row.try_get_by_index::<i64>(at).map(i64::cast_unsigned);
    Ok(LogState {
        xmax: number(0)?,
        limit: number(1)?,
        epoch: row.try_get_by_index(2)?,
        floor: (number(3)?, row.try_get_by_index(4)?),
        last_seq: row.try_get_by_index(5)?,
        server: row.try_get_by_index(6)?,
        has_anchor: row.try_get_by_index(7)?,
        oldest: number(16)?,
        heartbeat: row.try_get_by_index(17)?,
        is_any_open: row.try_get_by_index(19)?,
    })
}

/// The change of a row; none if the row contains the state of the log only.
fn change_from_row(row: &QueryResult, epoch: i32) -> Result<Option<LoggedChange>, StoreError> {
    let Some(xid) = row.try_get_by_index::<Option<i64>>(8)? else {
        return Ok(None);
    };
    let tenant: Uuid = row.try_get_by_index(10)?;
    let (kind, id): (String, i32) = (row.try_get_by_index(11)?, row.try_get_by_index(12)?);
    let operation: String = row.try_get_by_index(13)?;
    let operation = Operation::from_name(&operation);
    Ok(Some(LoggedChange {
        tenant: TenantId::new(tenant),
        kind: ChangeKind::from_name(&kind),
        id: id.cast_unsigned(),
        operation: or_corrupt(operation, TABLE, id, "operation")?,
        scope: scope_from_row(row)?,
        is_by_user: row.try_get_by_index(18)?,
        at: Position { epoch, xid: xid.cast_unsigned(), seq: row.try_get_by_index(9)? },
    }))
}

/// A level that only a newer server knows may be any scope.
fn scope_from_row(row: &QueryResult) -> Result<Option<Scope>, StoreError> {
    let level: Option<String> = row.try_get_by_index(14)?;
    let bits: Option<i32> = row.try_get_by_index(15)?;
    let level = level.and_then(|level| Level::from_name(&level));
    Ok(level.zip(bits).map(|(level, bits)| Scope::from_bits(level, bits.cast_unsigned())))
}

fn no_answer_error() -> StoreError {
    StoreError::Unreachable(DbErr::Custom(
        "the database did not answer the reader of the change log".to_owned(),
    ))
}
