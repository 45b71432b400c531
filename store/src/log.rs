//! The change log as a program follows it: every change of every project once, in an order in which nothing is missed.
//!
//! A change has its place by the number of its transaction. Transactions end in another order than they began, so a reader
//! stops below the oldest one that still writes in this database; below that nothing can appear any more. A writer that
//! hangs therefore holds up all readers. What a reader cannot know any more, it says ([`Break`]): then everything that was
//! concluded from the log has to be read anew, and the log be followed from its present end.
//!
//! Rows that are removed while triggers are disabled, and that were not read yet, are missed in silence. Only the last one
//! that was read is looked for.

mod limit;
mod line;
mod listen;
mod prune;

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::assignment::{Level, Scope};
use evenkeel_domain::tenant::TenantId;
use sea_orm::sqlx::{AssertSqlSafe, query};
use sea_orm::{DbErr, QueryResult};
use uuid::Uuid;

use crate::check::Misfit;
use crate::error::StoreError;
use crate::pool::Store;
use crate::rows::named;
use line::Line;

pub use listen::{Hints, hints};
pub use prune::prune;

/// How long the database may take for a pass: a line that is cut says nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The place behind every change there can be.
const BEHIND_ALL: Position = Position {
    epoch: 0,
    xid: i64::MAX.cast_unsigned(),
    seq: 0,
};

const TABLE: &str = "change_log";

/// A place in the log: behind the change that was made by this transaction with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// How often rows were removed that somebody may not have read.
    pub epoch: i32,
    /// The transaction.
    pub xid: u64,
    /// The number of the change; 0 before the first one of the transaction.
    pub seq: i64,
}

/// One change, as far as it says what must be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which project.
    pub tenant: TenantId,
    /// Of what.
    pub kind: Kind,
    /// The bits of its id; 0 for what a project has one of.
    pub id: u32,
    /// What happened to it.
    pub operation: Operation,
    /// What it concerns; none if that may be anything in the project.
    pub scope: Option<Scope>,
    /// Its place.
    pub at: Position,
}

/// What was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A project itself.
    Project,
    /// The settings of a project.
    Settings,
    /// A host.
    Host,
    /// An instance, or what its node said.
    Instance,
    /// An OS profile.
    Os,
    /// An update policy.
    Policy,
    /// An assignment of a policy.
    Assignment,
    /// A single schedule.
    Single,
    /// A repeated schedule.
    Repeated,
    /// A run.
    Run,
    /// A region.
    Region,
    /// A site.
    Site,
    /// A pause.
    Pause,
    /// An order to update now, or not now.
    Order,
    /// A slot of an assignment.
    Slot,
    /// What says nothing about what a node is to do.
    Other,
}

/// What happened to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// It was made.
    Insert,
    /// It was changed.
    Update,
    /// It was removed.
    Delete,
}

/// What one pass read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The changes behind the position, in the order of the log.
    pub changes: Vec<Change>,
    /// Everything of transactions below this one is over.
    pub limit: u64,
    /// No transaction from this one on had ended when the pass began. Once the limit of a pass is as high, everything has
    /// been read that was committed before this one began.
    pub xmax: u64,
    /// Whether the pass was cut off by its size: there is more below the limit.
    pub more: bool,
}

impl Tail {
    /// Of a pass for which nothing has ended.
    const fn nothing(xmax: u64) -> Self {
        Self {
            changes: Vec::new(),
            limit: xmax,
            xmax,
            more: false,
        }
    }
}

/// Why what was concluded from the log holds no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// The change that was read last is gone.
    #[error("the change that was read last is gone from the change log")]
    Truncated,
    /// Housekeeping removed changes that were not read yet.
    #[error("changes were thrown away before they were read")]
    Pruned,
    /// Somebody else removed changes.
    #[error("somebody removed changes from the change log")]
    OtherEpoch,
    /// The server was started again, or is another one.
    #[error("the database server was started again, or is another one")]
    OtherServer,
    /// The database is as it was before: a backup was restored.
    #[error("the database is older than what was read from it")]
    Backwards,
}

/// Why the log cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The database does not do what it is asked. To try again may help: the place in the log is kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database is none that a reader can work with.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The log cannot be followed from this place on. A new reader is needed.
    #[error(transparent)]
    Broken(#[from] Break),
}

/// Follows the log of all projects, on a connection of its own.
#[derive(Debug)]
pub struct Reader {
    store: Store,
    /// None after a failure: the next pass connects again.
    known: Option<Known>,
    /// Everything up to here was read.
    at: Position,
    /// The highest number that was read.
    highest: i64,
    /// When the server started.
    server: Time,
}

/// A connection, and what is known by it alone: whoever loses it looks at the whole state again.
#[derive(Debug)]
struct Known {
    line: Line,
    /// If the last pass read all that was over, and nothing below was not over: until one ends there is nothing to read.
    settled: Option<Settled>,
}

/// Up to where all is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settled {
    /// No transaction from this one on had ended.
    xmax: u64,
    /// On this server.
    server: Time,
}

/// What the log says of itself.
#[derive(Clone, Copy, Debug)]
struct State {
    /// No transaction from this one on has ended.
    xmax: u64,
    /// Every transaction below this one is over, and seen.
    limit: u64,
    epoch: i32,
    /// The newest place that housekeeping removed.
    floor: (u64, i64),
    /// The last number that was given to a change.
    last_seq: i64,
    /// No two servers started in the same microsecond, nor did one twice.
    server: Time,
    /// Whether the row of the position is there.
    anchored: bool,
}

impl Reader {
    /// Begins at the present end of the log: whatever is committed from now on is read, perhaps with some that just was.
    ///
    /// # Errors
    /// The database cannot be reached, or does not show who else is writing.
    pub async fn open(store: &Store) -> Result<(Self, Position), LogError> {
        let opened = tokio::time::timeout(PATIENCE, Self::begin(store)).await;
        let reader = opened.map_err(|_| no_answer())??;
        let at = reader.at;
        Ok((reader, at))
    }

    async fn begin(store: &Store) -> Result<Self, LogError> {
        let mut line = Line::open(&store.url).await?;
        limit::check(store, &mut line).await?;
        let (state, _) = read(&mut line, BEHIND_ALL, 1).await?;
        Ok(Self {
            store: store.clone(),
            known: Some(Known {
                line,
                settled: None,
            }),
            at: Position {
                epoch: state.epoch,
                xid: state.limit,
                seq: 0,
            },
            highest: 0,
            server: state.server,
        })
    }

    /// Reads what came behind the last pass and is certain, at most so many changes.
    ///
    /// # Errors
    /// The database cannot be reached: the next pass begins where this one did. Or the log is broken.
    pub async fn next(&mut self, most: u32) -> Result<Tail, LogError> {
        // Taken out of the reader meanwhile: a connection in the middle of an answer is not used again.
        let Known { mut line, settled } = match self.known.take() {
            Some(known) => known,
            None => Known {
                line: Line::open(&self.store.url).await?,
                settled: None,
            },
        };
        let most = most.max(1);
        let passed = tokio::time::timeout(PATIENCE, pass(&mut line, settled, self.at, most)).await;
        let read = passed.map_err(|_| no_answer())??;
        let Some((state, changes)) = read else {
            self.known = Some(Known { line, settled });
            return Ok(Tail::nothing(settled.map_or(0, |settled| settled.xmax)));
        };
        if let Some(broken) = self.broken(&state) {
            return Err(broken.into());
        }
        if let Some(last) = changes.last() {
            self.at = last.at;
        }
        let highest = changes.iter().map(|change| change.at.seq).max();
        self.highest = self.highest.max(highest.unwrap_or_default());
        let more = changes.len() >= usize::try_from(most).unwrap_or(usize::MAX);
        let settled = (!more && state.limit == state.xmax).then_some(Settled {
            xmax: state.xmax,
            server: state.server,
        });
        self.known = Some(Known { line, settled });
        Ok(Tail {
            more,
            changes,
            limit: state.limit,
            xmax: state.xmax,
        })
    }

    /// Whether the log is another one than it was at the pass before.
    fn broken(&self, state: &State) -> Option<Break> {
        let place = (self.at.xid, self.at.seq);
        if state.server != self.server {
            Some(Break::OtherServer)
        } else if state.epoch != self.at.epoch {
            Some(Break::OtherEpoch)
        } else if state.xmax < self.at.xid || state.last_seq < self.highest {
            Some(Break::Backwards)
        } else if place < state.floor {
            Some(Break::Pruned)
        } else if self.at.seq > 0 && !state.anchored && place != state.floor {
            Some(Break::Truncated)
        } else {
            None
        }
    }
}

/// The state of the log and what is new in it; none if no transaction has ended since all was settled. Whatever changes
/// the log is a transaction that ends, and it is above all that were over: so the first one that has not ended is asked
/// for, in a fifth of the time.
async fn pass(
    line: &mut Line,
    settled: Option<Settled>,
    after: Position,
    most: u32,
) -> Result<Option<(State, Vec<Change>)>, StoreError> {
    if let Some(settled) = settled {
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_postmaster_start_time()";
        if let Some(row) = line.rows(query(sql)).await?.first() {
            let now = Settled {
                xmax: row.try_get_by_index::<i64>(0)?.cast_unsigned(),
                server: row.try_get_by_index(1)?,
            };
            if now == settled {
                return Ok(None);
            }
        }
    }
    read(line, after, most).await.map(Some)
}

/// The state of the log, and the changes behind a position. How far can be read and what is there are found in one
/// statement, so all that was over by then is seen.
async fn read(
    line: &mut Line,
    after: Position,
    most: u32,
) -> Result<(State, Vec<Change>), StoreError> {
    let elsewhere = limit::elsewhere(line).await?;
    // The number of rows is no parameter: a plan that is kept would be made for a tenth of the log.
    let sql = format!(
        "SELECT p.xmax::text::bigint, p.least::text::bigint, s.epoch, s.floor_xid::text::bigint, s.floor_seq, \
         n.last_value, pg_postmaster_start_time(), \
         EXISTS (SELECT FROM change_log a WHERE a.xid = $1::bigint::text::xid8 AND a.seq = $2), \
         l.xid::text::bigint, l.seq, l.tenant_id, l.kind, l.id, l.operation, l.scope_level, l.scope_id \
         FROM (SELECT v.xmax, coalesce((SELECT t.xid FROM pg_snapshot_xip(v.seen) t (xid) \
         WHERE (t.xid::text::bigint & 4294967295) <> ALL ($3::bigint[]) ORDER BY t.xid LIMIT 1), v.xmax) AS least \
         FROM (SELECT seen, pg_snapshot_xmax(seen) AS xmax FROM pg_current_snapshot() seen) v OFFSET 0) p \
         CROSS JOIN log_state s CROSS JOIN change_log_seq_seq n LEFT JOIN LATERAL (\
         SELECT c.xid, c.seq, c.tenant_id, c.kind, c.id, c.operation, c.scope_level, c.scope_id FROM change_log c \
         WHERE (c.xid, c.seq) > ($1::bigint::text::xid8, $2) AND c.xid < p.least \
         ORDER BY c.xid, c.seq LIMIT {most}) l ON true ORDER BY l.xid, l.seq"
    );
    let statement = query(AssertSqlSafe(sql))
        .bind(after.xid.cast_signed())
        .bind(after.seq)
        .bind(elsewhere);
    let rows = line.rows(statement).await?;
    let first = rows.first().ok_or(StoreError::Corrupt {
        table: "log_state",
        row: 0,
        column: "epoch",
    })?;
    let state = state(first)?;
    let changes = rows
        .iter()
        .filter_map(|row| change(row, state.epoch).transpose());
    Ok((state, changes.collect::<Result<Vec<_>, _>>()?))
}

fn state(row: &QueryResult) -> Result<State, StoreError> {
    let number = |at| row.try_get_by_index::<i64>(at).map(i64::cast_unsigned);
    Ok(State {
        xmax: number(0)?,
        limit: number(1)?,
        epoch: row.try_get_by_index(2)?,
        floor: (number(3)?, row.try_get_by_index(4)?),
        last_seq: row.try_get_by_index(5)?,
        server: row.try_get_by_index(6)?,
        anchored: row.try_get_by_index(7)?,
    })
}

/// The change in a row; none in the one that says only how the log is.
fn change(row: &QueryResult, epoch: i32) -> Result<Option<Change>, StoreError> {
    let Some(xid) = row.try_get_by_index::<Option<i64>>(8)? else {
        return Ok(None);
    };
    let tenant: Uuid = row.try_get_by_index(10)?;
    let (kind, id): (String, i32) = (row.try_get_by_index(11)?, row.try_get_by_index(12)?);
    let operation: String = row.try_get_by_index(13)?;
    let operation = Operation::from_name(&operation);
    Ok(Some(Change {
        tenant: TenantId::new(tenant),
        kind: Kind::of(&kind),
        id: id.cast_unsigned(),
        operation: named(operation, TABLE, id, "operation")?,
        scope: scope(row, id)?,
        at: Position {
            epoch,
            xid: xid.cast_unsigned(),
            seq: row.try_get_by_index(9)?,
        },
    }))
}

fn scope(row: &QueryResult, id: i32) -> Result<Option<Scope>, StoreError> {
    let level: Option<String> = row.try_get_by_index(14)?;
    let bits: Option<i32> = row.try_get_by_index(15)?;
    let Some((level, bits)) = level.zip(bits) else {
        return Ok(None);
    };
    let level = named(Level::from_name(&level), TABLE, id, "scope_level")?;
    Ok(Some(Scope::from_bits(level, bits.cast_unsigned())))
}

fn no_answer() -> StoreError {
    StoreError::Unreachable(DbErr::Custom(
        "the database did not answer the reader of the change log".to_owned(),
    ))
}

impl Kind {
    /// The kind that the triggers of the migrations write.
    fn of(name: &str) -> Self {
        match name {
            "project" => Self::Project,
            "project_settings" => Self::Settings,
            "host" => Self::Host,
            "instance" => Self::Instance,
            "os" => Self::Os,
            "policy" => Self::Policy,
            "assignment" => Self::Assignment,
            "single_schedule" => Self::Single,
            "repeated_schedule" => Self::Repeated,
            "run" => Self::Run,
            "region" => Self::Region,
            "site" => Self::Site,
            "pause" => Self::Pause,
            "update_order" => Self::Order,
            "slot" => Self::Slot,
            _ => Self::Other,
        }
    }
}

impl Operation {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "insert" => Some(Self::Insert),
            "update" => Some(Self::Update),
            "delete" => Some(Self::Delete),
            _ => None,
        }
    }
}
