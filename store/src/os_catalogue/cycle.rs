//! Requests for cycles, and their claims.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep};
use sea_orm::Value;
use uuid::Uuid;

use super::{CycleClaim, CycleResult, CycleState, Progress};
use crate::error::StoreError;
use crate::rows::or_corrupt;
use crate::tx::{FleetTx, execute, query_one};

const TABLE: &str = "os_cycles";

/// The cycle of a claim. Its [`claim_key`] values are the first parameters.
const HELD_CLAIM_SQL: &str = "registry = $1 AND holder = $2 AND claimed = $3";

/// A request for a cycle. A running cycle may already have read what the request is about, so the
/// request gets a cycle of its own.
const REQUEST_SQL: &str = "INSERT INTO os_cycles AS c (registry, requested) VALUES ($1, 1) \
                       ON CONFLICT (registry) DO UPDATE \
                       SET requested = greatest(c.requested, coalesce(c.claimed, c.done) + 1)";

/// Requests a cycle that starts after this call. Returns the number of the request, which is
/// fulfilled once `done` reaches it.
///
/// # Errors
/// The name of the registry is empty or longer than 63 characters, or the database cannot be reached.
pub async fn request(tx: &FleetTx, registry: &str) -> Result<i64, StoreError> {
    let sql = format!("{REQUEST_SQL} RETURNING requested");
    match query_one(tx.conn(), sql, [registry.into()]).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Err(StoreError::NotFound { what: TABLE }),
    }
}

/// Requests a cycle unless one began or ended within this time by the clock of the database.
/// Returns whether it requested one. Of several replicas whose schedules are due at once, one
/// requests a cycle.
///
/// # Errors
/// The name of the registry is empty or longer than 63 characters, or the database cannot be reached.
pub async fn request_if_due(
    tx: &FleetTx,
    registry: &str,
    within: TimeDelta,
) -> Result<bool, StoreError> {
    let sql = format!(
        "{REQUEST_SQL} WHERE coalesce(greatest(c.started_at, c.ended_at), '-infinity') \
         < clock_timestamp() - $2 * interval '1 millisecond'"
    );
    let values = [registry.into(), milliseconds(within)];
    Ok(execute(tx.conn(), sql, values).await? > 0)
}

/// Claims the requested cycle for the duration of a lease; none if no cycle is requested, another
/// server holds it, or the registry must not be asked yet.
pub async fn claim(
    tx: &FleetTx,
    registry: &str,
    holder: Uuid,
    lease: TimeDelta,
) -> Result<Option<CycleClaim>, StoreError> {
    // An update that waited for the row evaluates it again, so the clock must advance within a
    // transaction.
    let sql = "UPDATE os_cycles SET claimed = requested, holder = $2, started_at = clock_timestamp(), \
               lease_until = clock_timestamp() + $3 * interval '1 millisecond', \
               step = 'listing', finished = 0, total = 0 \
               WHERE registry = $1 AND requested > done \
               AND coalesce(lease_until, '-infinity') <= clock_timestamp() \
               AND coalesce(not_before, '-infinity') <= clock_timestamp() RETURNING claimed";
    let values = [registry.into(), holder.into(), milliseconds(lease)];
    let Some(row) = query_one(tx.conn(), sql, values).await? else {
        return Ok(None);
    };
    Ok(Some(CycleClaim { registry: registry.to_owned(), holder, number: row.try_get_by_index(0)? }))
}

/// Records the progress of a cycle and renews its lease. False if the claim was lost.
pub async fn report_progress(
    tx: &FleetTx,
    claim: &CycleClaim,
    progress: &Progress,
    lease: TimeDelta,
) -> Result<bool, StoreError> {
    let changes = "step = $4, finished = $5, total = $6, \
                   lease_until = clock_timestamp() + $7 * interval '1 millisecond'";
    let values = [
        progress.step.name().into(),
        count_value(progress.finished),
        count_value(progress.total),
        milliseconds(lease),
    ];
    update_claimed(tx, claim, changes, values).await
}

/// Ends a cycle: all requests up to its number are fulfilled, whatever its outcome. False if the
/// claim was lost.
///
/// # Errors
/// The message is longer than 1,000 bytes, or the database cannot be reached.
pub async fn finish(
    tx: &FleetTx,
    claim: &CycleClaim,
    ended: &CycleResult,
) -> Result<bool, StoreError> {
    // Both times are the same, and later than the start of the transaction.
    let changes = "done = claimed, claimed = NULL, holder = NULL, lease_until = NULL, \
                   step = 'idle', finished = 0, total = 0, outcome = $4, message = $5, not_before = $6, \
                   ended_at = statement_timestamp(), \
                   last_success_at = CASE WHEN $4 = 'succeeded' THEN statement_timestamp() ELSE last_success_at END";
    let values =
        [ended.outcome.name().into(), ended.message.as_str().into(), ended.not_before.into()];
    update_claimed(tx, claim, changes, values).await
}

/// Updates a cycle for its holder. The values are the parameters after its [`claim_key`]. False if
/// the claim was lost.
async fn update_claimed<const N: usize>(
    tx: &FleetTx,
    claim: &CycleClaim,
    changes: &str,
    values: [Value; N],
) -> Result<bool, StoreError> {
    let sql = format!("UPDATE os_cycles SET {changes} WHERE {HELD_CLAIM_SQL}");
    let values = claim_key(claim).into_iter().chain(values);
    Ok(execute(tx.conn(), sql, values).await? > 0)
}

/// The state of the cycles of a registry; none if no cycle was ever requested.
pub async fn state(tx: &FleetTx, registry: &str) -> Result<Option<CycleState>, StoreError> {
    let sql = "SELECT requested, done, claimed, step, finished, total, not_before, started_at, ended_at, last_success_at, \
               outcome, message FROM os_cycles WHERE registry = $1";
    let Some(row) = query_one(tx.conn(), sql, [registry.into()]).await? else {
        return Ok(None);
    };
    let step: String = row.try_get_by_index(3)?;
    let (finished, total): (i32, i32) = (row.try_get_by_index(4)?, row.try_get_by_index(5)?);
    let outcome: Option<String> = row.try_get_by_index(10)?;
    let outcome =
        outcome.map(|name| or_corrupt(CycleOutcome::from_name(&name), TABLE, 0, "outcome"));
    Ok(Some(CycleState {
        requested: row.try_get_by_index(0)?,
        done: row.try_get_by_index(1)?,
        claimed: row.try_get_by_index(2)?,
        progress: Progress {
            step: or_corrupt(CycleStep::from_name(&step), TABLE, 0, "step")?,
            finished: finished.unsigned_abs(),
            total: total.unsigned_abs(),
        },
        not_before: row.try_get_by_index(6)?,
        started_at: row.try_get_by_index(7)?,
        ended_at: row.try_get_by_index(8)?,
        last_success_at: row.try_get_by_index(9)?,
        outcome: outcome.transpose()?,
        message: row.try_get_by_index(11)?,
    }))
}

/// Whether the claim of a cycle is still valid. If so, it stays valid until the end of the
/// transaction: no other server can claim the cycle before the data for it is written.
pub(super) async fn is_held(tx: &FleetTx, claim: &CycleClaim) -> Result<bool, StoreError> {
    let sql = format!("SELECT 1 FROM os_cycles WHERE {HELD_CLAIM_SQL} FOR SHARE");
    Ok(query_one(tx.conn(), sql, claim_key(claim)).await?.is_some())
}

fn claim_key(claim: &CycleClaim) -> [Value; 3] {
    [claim.registry.as_str().into(), claim.holder.into(), claim.number.into()]
}

fn milliseconds(time: TimeDelta) -> Value {
    time.num_milliseconds().into()
}

/// A number for the column. Counts stay far below the limit of the column.
fn count_value(number: u32) -> Value {
    i32::try_from(number).unwrap_or(i32::MAX).into()
}
