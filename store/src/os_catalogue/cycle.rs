//! Wishes for cycles, and who meets them.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep};
use sea_orm::Value;
use uuid::Uuid;

use super::{Claim, CycleState, Ended, Progress};
use crate::error::StoreError;
use crate::rows::named;
use crate::tx::{FleetTx, execute, one};

const TABLE: &str = "os_cycles";

/// The cycle of a claim, whose [`key`] are the first parameters.
const HELD: &str = "registry = $1 AND holder = $2 AND claimed = $3";

/// A wish for a cycle. One that is being met may have looked already at what the wish is about, so that gets one of its
/// own.
const REQUEST: &str = "INSERT INTO os_cycles AS c (registry, wanted) VALUES ($1, 1) \
                       ON CONFLICT (registry) DO UPDATE \
                       SET wanted = greatest(c.wanted, coalesce(c.claimed, c.done) + 1)";

/// Wishes for a cycle that begins after this, and gives the number of the wish: it is met when so many are done.
///
/// # Errors
/// The name of the registry is empty or longer than 63 characters, or the database cannot be reached.
pub async fn request(tx: &FleetTx, registry: &str) -> Result<i64, StoreError> {
    let sql = format!("{REQUEST} RETURNING wanted");
    match one(tx.conn(), sql, [registry.into()]).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Err(StoreError::NotFound { what: TABLE }),
    }
}

/// Wishes for a cycle unless one began or ended within this time, by the database's clock. Says whether it did: of
/// several replicas that strike at once one is enough.
///
/// # Errors
/// The name of the registry is empty or longer than 63 characters, or the database cannot be reached.
pub async fn strike(tx: &FleetTx, registry: &str, within: TimeDelta) -> Result<bool, StoreError> {
    let sql = format!(
        "{REQUEST} WHERE coalesce(greatest(c.started_at, c.ended_at), '-infinity') \
         < clock_timestamp() - $2 * interval '1 millisecond'"
    );
    let values = [registry.into(), milliseconds(within)];
    Ok(execute(tx.conn(), sql, values).await? > 0)
}

/// Begins the cycle that is wanted, and holds it for so long; none if none is wanted, if somebody holds it, or if the
/// registry is not to be asked yet.
///
/// # Errors
/// The database cannot be reached.
pub async fn claim(
    tx: &FleetTx,
    registry: &str,
    holder: Uuid,
    lease: TimeDelta,
) -> Result<Option<Claim>, StoreError> {
    // Who waited for the row looks at it again, so the clock must go on within a transaction.
    let sql = "UPDATE os_cycles SET claimed = wanted, holder = $2, started_at = clock_timestamp(), \
               lease_until = clock_timestamp() + $3 * interval '1 millisecond', \
               step = 'listing', finished = 0, total = 0 \
               WHERE registry = $1 AND wanted > done \
               AND coalesce(lease_until, '-infinity') <= clock_timestamp() \
               AND coalesce(not_before, '-infinity') <= clock_timestamp() RETURNING claimed";
    let values = [registry.into(), holder.into(), milliseconds(lease)];
    let Some(row) = one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    Ok(Some(Claim {
        registry: registry.to_owned(),
        holder,
        number: row.try_get_by_index(0)?,
    }))
}

/// Says how far a cycle has come, and holds it for so long from now on. False if it is another's by now.
///
/// # Errors
/// The database cannot be reached.
pub async fn beat(
    tx: &FleetTx,
    claim: &Claim,
    progress: &Progress,
    lease: TimeDelta,
) -> Result<bool, StoreError> {
    let changes = "step = $4, finished = $5, total = $6, \
                   lease_until = clock_timestamp() + $7 * interval '1 millisecond'";
    let values = [
        progress.step.name().into(),
        count(progress.finished),
        count(progress.total),
        milliseconds(lease),
    ];
    change(tx, claim, changes, values).await
}

/// Ends a cycle: the wishes up to its number are met, however it went. False if it is another's by now.
///
/// # Errors
/// The message is longer than 1,000 bytes, or the database cannot be reached.
pub async fn finish(tx: &FleetTx, claim: &Claim, ended: &Ended) -> Result<bool, StoreError> {
    // One instant for both, and a later one than that at which the transaction began.
    let changes = "done = claimed, claimed = NULL, holder = NULL, lease_until = NULL, \
                   step = 'idle', finished = 0, total = 0, outcome = $4, message = $5, not_before = $6, \
                   ended_at = statement_timestamp(), \
                   good_at = CASE WHEN $4 = 'good' THEN statement_timestamp() ELSE good_at END";
    let values = [
        ended.outcome.name().into(),
        ended.message.as_str().into(),
        ended.not_before.into(),
    ];
    change(tx, claim, changes, values).await
}

/// Changes a cycle for its holder; the values are the parameters behind its [`key`]. False if it is another's by now.
async fn change<const N: usize>(
    tx: &FleetTx,
    claim: &Claim,
    changes: &str,
    values: [Value; N],
) -> Result<bool, StoreError> {
    let sql = format!("UPDATE os_cycles SET {changes} WHERE {HELD}");
    let values = key(claim).into_iter().chain(values);
    Ok(execute(tx.conn(), sql, values).await? > 0)
}

/// Where the cycles of a registry stand; none if none was ever wished for.
///
/// # Errors
/// The database cannot be reached.
pub async fn state(tx: &FleetTx, registry: &str) -> Result<Option<CycleState>, StoreError> {
    let sql = "SELECT wanted, done, claimed, step, finished, total, not_before, started_at, ended_at, good_at, \
               outcome, message FROM os_cycles WHERE registry = $1";
    let Some(row) = one(tx.conn(), sql, [registry.into()]).await? else {
        return Ok(None);
    };
    let step: String = row.try_get_by_index(3)?;
    let (finished, total): (i32, i32) = (row.try_get_by_index(4)?, row.try_get_by_index(5)?);
    let outcome: Option<String> = row.try_get_by_index(10)?;
    let outcome = outcome.map(|name| named(CycleOutcome::from_name(&name), TABLE, 0, "outcome"));
    Ok(Some(CycleState {
        wanted: row.try_get_by_index(0)?,
        done: row.try_get_by_index(1)?,
        claimed: row.try_get_by_index(2)?,
        progress: Progress {
            step: named(CycleStep::from_name(&step), TABLE, 0, "step")?,
            finished: finished.unsigned_abs(),
            total: total.unsigned_abs(),
        },
        not_before: row.try_get_by_index(6)?,
        started_at: row.try_get_by_index(7)?,
        ended_at: row.try_get_by_index(8)?,
        good_at: row.try_get_by_index(9)?,
        outcome: outcome.transpose()?,
        message: row.try_get_by_index(11)?,
    }))
}

/// Whether a cycle is still its holder's. If it is, it stays so until the end of the transaction: nobody else can claim
/// it between this and what is written for it.
pub(super) async fn is_held(tx: &FleetTx, claim: &Claim) -> Result<bool, StoreError> {
    let sql = format!("SELECT 1 FROM os_cycles WHERE {HELD} FOR SHARE");
    Ok(one(tx.conn(), sql, key(claim)).await?.is_some())
}

fn key(claim: &Claim) -> [Value; 3] {
    [
        claim.registry.as_str().into(),
        claim.holder.into(),
        claim.number.into(),
    ]
}

fn milliseconds(time: TimeDelta) -> Value {
    time.num_milliseconds().into()
}

/// A number as the column holds it. Nothing that is counted here comes near the end of it.
fn count(number: u32) -> Value {
    i32::try_from(number).unwrap_or(i32::MAX).into()
}
