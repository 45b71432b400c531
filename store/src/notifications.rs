//! The deliveries of a project's notifications. Triggers queue them in the transaction of their
//! event; users list, test and replay them. [`queue`] is what the service that delivers them calls.

pub mod queue;

use evenkeel_domain::Time;
use evenkeel_domain::id::NotificationTargetId;
use evenkeel_domain::notification::{NotificationEvent, NotificationState, RETRY_PERIOD};
use sea_orm::QueryResult;
use uuid::Uuid;

use crate::error::StoreError;
use crate::notification_targets::{self, target_key};
use crate::rows::{or_corrupt, readable};
use crate::tx::{Tx, execute, query_all, query_one};

/// Maximum number of deliveries that a list contains.
pub const MAX_LISTED_DELIVERIES: u32 = 1_000;

/// What a delivery is called in messages.
pub const RESOURCE: &str = "notification";

/// A message for a target, and how far its delivery is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The ID for receivers: the same in all attempts and replays.
    pub id: Uuid,
    pub target: NotificationTargetId,
    /// Name of the event; another release may have written one that this one does not know.
    pub event: String,
    pub event_at: Time,
    pub state: NotificationState,
    pub attempts: u32,
    pub attempted_at: Option<Time>,
    /// When the next attempt is due at the earliest; none if it is due now, or if none follows.
    pub next_attempt_at: Option<Time>,
    /// Why the last attempt failed, or why the delivery is dead; else empty.
    pub last_error: String,
}

/// Which deliveries of a target are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaySelection {
    /// One delivery, in any state but pending.
    One(Uuid),
    /// All deliveries that have ended, with events from the first time up to the second.
    EventsBetween(Time, Time),
}

/// Queues a test for a target. Returns the ID of its delivery.
///
/// # Errors
/// The target does not exist in the project.
pub async fn queue_test(
    tx: &Tx,
    target: NotificationTargetId,
    now: Time,
) -> Result<Uuid, StoreError> {
    let sql = "INSERT INTO notification_deliveries (tenant_id, target_id, event, event_at, details, retry_until) \
               SELECT t.tenant_id, t.id, $3, $4, '{}'::jsonb, $5 FROM notification_targets t \
               WHERE t.tenant_id = $1 AND t.id = $2 RETURNING message_id";
    let [tenant, id] = target_key(tx, target);
    let event = NotificationEvent::Test.name();
    let values = [tenant, id, event.into(), now.into(), (now + RETRY_PERIOD).into()];
    let row = query_one(tx.conn(), sql, values).await?;
    let row = row.ok_or(StoreError::NotFound { what: notification_targets::RESOURCE })?;
    let delivery = row.try_get_by_index(0)?;
    attempt_soon(tx, target).await?;
    Ok(delivery)
}

/// The newest deliveries, the latest first: those in a state, or all. At most
/// [`MAX_LISTED_DELIVERIES`]; leaves out those that cannot be read.
pub async fn list(tx: &Tx, state: Option<NotificationState>) -> Result<Vec<Delivery>, StoreError> {
    let sql = "SELECT d.message_id, d.target_id, d.event, d.event_at, d.state, d.attempts, d.attempted_at, \
               CASE WHEN d.state = 'pending' THEN q.retry_at END, d.last_error \
               FROM notification_deliveries d LEFT JOIN notification_queues q \
               ON q.tenant_id = d.tenant_id AND q.target_id = d.target_id \
               WHERE d.tenant_id = $1 AND ($2::text IS NULL OR d.state = $2) \
               ORDER BY d.number DESC LIMIT $3";
    let values = [
        tx.tenant().uuid().into(),
        state.map(|state| state.name().to_owned()).into(),
        i64::from(MAX_LISTED_DELIVERIES).into(),
    ];
    let rows = query_all(tx.conn(), sql, values).await?;
    Ok(rows.iter().filter_map(|row| readable(RESOURCE, read_delivery(row))).collect())
}

/// Lets ended deliveries of a target begin again, with their IDs. Returns their number. Each keeps its
/// position in the order of the target, so it comes before newer ones.
///
/// # Errors
/// The target does not exist in the project.
pub async fn replay(
    tx: &Tx,
    target: NotificationTargetId,
    selection: ReplaySelection,
    now: Time,
) -> Result<u64, StoreError> {
    notification_targets::find(tx, target).await?;
    let sql = "UPDATE notification_deliveries SET state = 'pending', attempts = 0, ended_at = NULL, last_error = '', retry_until = $3 \
               WHERE tenant_id = $1 AND target_id = $2 AND state <> 'pending' \
               AND ($4::uuid IS NULL OR message_id = $4) \
               AND ($5::timestamptz IS NULL OR event_at >= $5) \
               AND ($6::timestamptz IS NULL OR event_at <= $6)";
    let (one, first, last) = match selection {
        ReplaySelection::One(id) => (Some(id), None, None),
        ReplaySelection::EventsBetween(first, last) => (None, Some(first), Some(last)),
    };
    let [tenant, id] = target_key(tx, target);
    let retry_until = now + RETRY_PERIOD;
    let values = [tenant, id, retry_until.into(), one.into(), first.into(), last.into()];
    let replayed = execute(tx.conn(), sql, values).await?;
    if replayed > 0 {
        attempt_soon(tx, target).await?;
    }
    Ok(replayed)
}

/// Whether a target has this delivery.
pub async fn exists(
    tx: &Tx,
    target: NotificationTargetId,
    delivery: Uuid,
) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM notification_deliveries \
               WHERE tenant_id = $1 AND target_id = $2 AND message_id = $3 LIMIT 1";
    let [tenant, id] = target_key(tx, target);
    Ok(query_one(tx.conn(), sql, [tenant, id, delivery.into()]).await?.is_some())
}

/// Ends the wait of a target after failures: a user has asked for a delivery.
async fn attempt_soon(tx: &Tx, target: NotificationTargetId) -> Result<(), StoreError> {
    let sql =
        "UPDATE notification_queues SET retry_at = NULL WHERE tenant_id = $1 AND target_id = $2";
    execute(tx.conn(), sql, target_key(tx, target)).await.map(drop)
}

fn read_delivery(row: &QueryResult) -> Result<Delivery, StoreError> {
    let (target, attempts): (i32, i32) = (row.try_get_by_index(1)?, row.try_get_by_index(5)?);
    let state: String = row.try_get_by_index(4)?;
    let state = NotificationState::from_name(&state);
    Ok(Delivery {
        id: row.try_get_by_index(0)?,
        target: NotificationTargetId::from_bits(target.cast_unsigned()),
        event: row.try_get_by_index(2)?,
        event_at: row.try_get_by_index(3)?,
        state: or_corrupt(state, "notification_deliveries", target, "state")?,
        attempts: attempts.cast_unsigned(),
        attempted_at: row.try_get_by_index(6)?,
        next_attempt_at: row.try_get_by_index(7)?,
        last_error: row.try_get_by_index(8)?,
    })
}
