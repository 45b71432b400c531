//! The queues of notifications, as the service that delivers them uses them.
//!
//! One replica at a time delivers to a target: it holds a lease. The deliveries of a target are in the
//! order in which their events were queued, and the first pending one holds back the others. A crash
//! between an attempt and its record repeats the attempt with the same ID.

use chrono::{SecondsFormat, TimeDelta};
use evenkeel_domain::Time;
use evenkeel_domain::id::NotificationTargetId;
use evenkeel_domain::notification::{
    NotificationEvent, RETRY_PERIOD, TargetAddress, WebhookSecret,
};
use evenkeel_domain::tenant::TenantId;
use evenkeel_domain::text::{cut, storable};
use sea_orm::{QueryResult, Value};
use uuid::Uuid;

use crate::error::StoreError;
use crate::limit_usage::FAILED_RUNS_SQL;
use crate::tx::{FleetTx, execute, query_all, query_one};

/// Duration of a lease of a target. Each attempt extends the lease, and none may take longer.
pub const LEASE_PERIOD: TimeDelta = TimeDelta::seconds(60);

/// How long before its end the expiry of a certificate is reported.
pub const CERTIFICATE_EXPIRY_NOTICE: TimeDelta = TimeDelta::days(14);

/// Maximum length of a stored error in bytes.
const MAX_ERROR_BYTES: usize = 1_000;

/// Reason of deliveries that newer ones have replaced.
const QUEUE_FULL: &str = "the queue of the target was full: newer events have replaced this one";

/// Reason of deliveries that were never attempted in time.
const NEVER_ATTEMPTED: &str =
    "no attempt within 72 hours: the target was disabled, or earlier deliveries failed";

/// A target that this replica delivers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedTarget {
    pub tenant: TenantId,
    pub target: NotificationTargetId,
    /// The lease. A replica that has lost it leaves the queue of the target as it is.
    pub holder: Uuid,
}

/// The next message for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingDelivery {
    /// Position in the order of the project.
    pub number: i64,
    pub id: Uuid,
    pub event: String,
    pub event_at: Time,
    /// JSON object with the details of the event.
    pub details: serde_json::Value,
    pub project: String,
    pub address: TargetAddress,
    pub secret: WebhookSecret,
    /// Failed attempts of the target since its last success.
    pub failures: u32,
}

/// Whether there is a target, a delivery, or a security update of a node that is not queued. Otherwise
/// there is nothing to deliver, to end or to remove.
pub async fn is_used(tx: &FleetTx) -> Result<bool, StoreError> {
    let sql = "SELECT EXISTS (SELECT FROM notification_targets) \
               OR EXISTS (SELECT FROM notification_deliveries) \
               OR EXISTS (SELECT FROM notified_security_updates WHERE NOT is_queued)";
    match query_one(tx.conn(), sql, []).await? {
        Some(row) => Ok(row.try_get_by_index(0)?),
        None => Ok(false),
    }
}

/// Claims at most `limit` enabled targets with a delivery that is due. Safe on several replicas at
/// once: no target is claimed twice before its lease ends.
pub async fn claim(
    tx: &FleetTx,
    holder: Uuid,
    now: Time,
    limit: u32,
) -> Result<Vec<ClaimedTarget>, StoreError> {
    // Targets after failures come last, also if a user has ended their wait, and the others take turns.
    let sql = "WITH due AS (SELECT q.tenant_id, q.target_id FROM notification_queues q \
               JOIN notification_targets t ON t.tenant_id = q.tenant_id AND t.id = q.target_id AND t.enabled \
               JOIN projects p ON p.tenant_id = q.tenant_id AND p.removed_at IS NULL \
               WHERE (q.lease_until IS NULL OR q.lease_until <= $2) AND (q.retry_at IS NULL OR q.retry_at <= $2) \
               AND EXISTS (SELECT FROM notification_deliveries d WHERE d.tenant_id = q.tenant_id \
               AND d.target_id = q.target_id AND d.state = 'pending') \
               ORDER BY q.failures > 0, q.claimed_at NULLS FIRST LIMIT $4 FOR NO KEY UPDATE OF q SKIP LOCKED) \
               UPDATE notification_queues q SET holder = $1, lease_until = $3, claimed_at = $2 FROM due \
               WHERE q.tenant_id = due.tenant_id AND q.target_id = due.target_id \
               RETURNING q.tenant_id, q.target_id";
    let values = [holder.into(), now.into(), (now + LEASE_PERIOD).into(), i64::from(limit).into()];
    let claimed = |row: &QueryResult| -> Result<ClaimedTarget, StoreError> {
        let target: i32 = row.try_get_by_index(1)?;
        Ok(ClaimedTarget {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            target: NotificationTargetId::from_bits(target.cast_unsigned()),
            holder,
        })
    };
    query_all(tx.conn(), sql, values).await?.iter().map(claimed).collect()
}

/// The first pending delivery of a claimed target, with the current address and secret. Extends the
/// lease. None if there is no such delivery, if the target is disabled or waits after a failure, or if
/// the lease is lost.
pub async fn load_next(
    tx: &FleetTx,
    claim: &ClaimedTarget,
    now: Time,
) -> Result<Option<PendingDelivery>, StoreError> {
    let sql = "UPDATE notification_queues SET lease_until = $5 \
               WHERE tenant_id = $1 AND target_id = $2 AND holder = $3 AND lease_until > $4 \
               AND (retry_at IS NULL OR retry_at <= $4)";
    let [tenant, target, holder] = claim_key(claim);
    let values = [tenant, target, holder, now.into(), (now + LEASE_PERIOD).into()];
    if execute(tx.conn(), sql, values).await? == 0 {
        return Ok(None);
    }
    let sql = "SELECT d.number, d.message_id, d.event, d.event_at, d.details, p.name, t.url, t.secret, q.failures \
               FROM notification_deliveries d \
               JOIN notification_queues q ON q.tenant_id = d.tenant_id AND q.target_id = d.target_id \
               JOIN notification_targets t ON t.tenant_id = d.tenant_id AND t.id = d.target_id AND t.enabled \
               JOIN projects p ON p.tenant_id = d.tenant_id AND p.removed_at IS NULL \
               WHERE d.tenant_id = $1 AND d.target_id = $2 AND d.state = 'pending' \
               ORDER BY d.number LIMIT 1";
    let [tenant, target, _] = claim_key(claim);
    let row = query_one(tx.conn(), sql, [tenant, target]).await?;
    row.as_ref().map(read_pending).transpose()
}

/// Records that a target has accepted a delivery.
pub async fn record_delivered(
    tx: &FleetTx,
    claim: &ClaimedTarget,
    number: i64,
    now: Time,
) -> Result<(), StoreError> {
    let [tenant, target, holder] = claim_key(claim);
    let sql = "UPDATE notification_deliveries SET state = 'delivered', attempts = attempts + 1, attempted_at = $3, \
               ended_at = $3, last_error = '' WHERE tenant_id = $1 AND number = $2";
    execute(tx.conn(), sql, [tenant.clone(), number.into(), now.into()]).await?;
    let sql = "UPDATE notification_queues SET failures = 0, retry_at = NULL \
               WHERE tenant_id = $1 AND target_id = $2 AND holder = $3";
    execute(tx.conn(), sql, [tenant, target, holder]).await.map(drop)
}

/// Records that an attempt failed, and when the next one is due. Returns whether the delivery is dead,
/// because its time has ended.
pub async fn record_failed(
    tx: &FleetTx,
    claim: &ClaimedTarget,
    number: i64,
    error: &str,
    (now, retry_at): (Time, Time),
) -> Result<bool, StoreError> {
    let [tenant, target, holder] = claim_key(claim);
    let sql = "UPDATE notification_deliveries SET attempts = attempts + 1, attempted_at = $3, last_error = $4, \
               state = CASE WHEN retry_until <= $5 THEN 'dead' ELSE 'pending' END, \
               ended_at = CASE WHEN retry_until <= $5 THEN $3 END \
               WHERE tenant_id = $1 AND number = $2 AND state = 'pending' RETURNING state = 'dead'";
    let error = cut(&storable(error), MAX_ERROR_BYTES);
    let values = [tenant.clone(), number.into(), now.into(), error.into(), retry_at.into()];
    let row = query_one(tx.conn(), sql, values).await?;
    let is_dead = row.map(|row| row.try_get_by_index::<bool>(0)).transpose()?;
    let sql = "UPDATE notification_queues SET failures = failures + 1, retry_at = $4 \
               WHERE tenant_id = $1 AND target_id = $2 AND holder = $3";
    execute(tx.conn(), sql, [tenant, target, holder, retry_at.into()]).await?;
    Ok(is_dead.unwrap_or(false))
}

/// Ends the lease of a target. Does nothing if the lease is lost.
pub async fn release(tx: &FleetTx, claim: &ClaimedTarget) -> Result<(), StoreError> {
    let sql = "UPDATE notification_queues SET holder = NULL, lease_until = NULL \
               WHERE tenant_id = $1 AND target_id = $2 AND holder = $3";
    execute(tx.conn(), sql, claim_key(claim)).await.map(drop)
}

/// Turns at most `limit` deliveries dead whose time has ended. Returns their number.
pub async fn end_overdue(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH overdue AS (SELECT tenant_id, number FROM notification_deliveries \
               WHERE state = 'pending' AND retry_until <= $1 ORDER BY retry_until LIMIT $2 FOR UPDATE SKIP LOCKED) \
               UPDATE notification_deliveries d SET state = 'dead', ended_at = $1, \
               last_error = CASE d.last_error WHEN '' THEN $3 ELSE d.last_error END FROM overdue o \
               WHERE d.tenant_id = o.tenant_id AND d.number = o.number";
    let values = [now.into(), i64::from(limit).into(), NEVER_ATTEMPTED.into()];
    execute(tx.conn(), sql, values).await
}

/// Turns at most `limit` deliveries dead: the oldest pending ones of each target that has more than
/// `max_pending`. Returns their number.
pub async fn end_excess(
    tx: &FleetTx,
    max_pending: u32,
    now: Time,
    limit: u32,
) -> Result<u64, StoreError> {
    let sql = "WITH excess AS (SELECT d.tenant_id, d.number FROM notification_queues q CROSS JOIN LATERAL \
               (SELECT p.number FROM notification_deliveries p WHERE p.tenant_id = q.tenant_id \
               AND p.target_id = q.target_id AND p.state = 'pending' \
               ORDER BY p.number DESC OFFSET $1 LIMIT 1) newest \
               JOIN notification_deliveries d ON d.tenant_id = q.tenant_id AND d.target_id = q.target_id \
               AND d.state = 'pending' AND d.number <= newest.number \
               LIMIT $3 FOR UPDATE OF d SKIP LOCKED) \
               UPDATE notification_deliveries d SET state = 'dead', ended_at = $2, last_error = $4 FROM excess e \
               WHERE d.tenant_id = e.tenant_id AND d.number = e.number";
    let values =
        [i64::from(max_pending).into(), now.into(), i64::from(limit).into(), QUEUE_FULL.into()];
    execute(tx.conn(), sql, values).await
}

/// Removes at most `limit` deliveries that ended before a time. Returns their number.
pub async fn delete_ended(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT tenant_id, number FROM notification_deliveries WHERE ended_at < $1 \
               ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED) \
               DELETE FROM notification_deliveries d USING old \
               WHERE d.tenant_id = old.tenant_id AND d.number = old.number";
    execute(tx.conn(), sql, [before.into(), i64::from(limit).into()]).await
}

/// Queues a notification for each assignment that has stopped after failures since the last call, at
/// most `limit`. Returns the number of deliveries. The stop of an assignment follows from its failed
/// runs, and two runs that fail at the same time do not see each other; so no trigger can find it.
/// Reads only the assignments of projects with a target for the event, and counts failures only of those
/// that are not queued yet.
pub async fn queue_stops(tx: &FleetTx, now: Time, limit: u32) -> Result<u64, StoreError> {
    let sql = format!(
        "WITH limited AS MATERIALIZED (SELECT a.tenant_id, a.target_kind, a.target_id, a.since_at, a.stop_after_failures \
         FROM assignments a JOIN projects p ON p.tenant_id = a.tenant_id AND p.removed_at IS NULL \
         WHERE a.stop_after_failures IS NOT NULL AND a.tenant_id IN (SELECT t.tenant_id FROM notification_targets t \
         WHERE t.enabled AND $2 = ANY (t.events)) \
         AND NOT EXISTS (SELECT FROM notified_stops n WHERE n.tenant_id = a.tenant_id \
         AND n.target_kind = a.target_kind AND n.target_id = a.target_id AND n.since_at = a.since_at)), \
         stopped AS (SELECT a.* FROM limited a \
         WHERE (SELECT count(*) FROM (SELECT {FAILED_RUNS_SQL} LIMIT a.stop_after_failures) f) >= a.stop_after_failures \
         ORDER BY a.tenant_id, a.target_kind, a.target_id LIMIT $4), \
         marked AS (INSERT INTO notified_stops (tenant_id, target_kind, target_id, since_at) \
         SELECT tenant_id, target_kind, target_id, since_at FROM stopped \
         ON CONFLICT (tenant_id, target_kind, target_id) DO UPDATE SET since_at = excluded.since_at \
         WHERE notified_stops.since_at <> excluded.since_at RETURNING tenant_id, target_kind, target_id) \
         INSERT INTO notification_deliveries (tenant_id, target_id, event, event_at, details, retry_until) \
         SELECT t.tenant_id, t.id, $2, $1, jsonb_build_object('assignment', CASE s.target_kind WHEN 'project' THEN 'project' \
         WHEN 'instance' THEN resource_id_text('inst', s.target_id) ELSE resource_id_text(s.target_kind, s.target_id) END, \
         'failures', s.stop_after_failures), $3 \
         FROM marked m JOIN stopped s USING (tenant_id, target_kind, target_id) \
         JOIN notification_targets t ON t.tenant_id = m.tenant_id AND t.enabled AND $2 = ANY (t.events) \
         ORDER BY t.tenant_id, s.target_kind, s.target_id, t.id"
    );
    let event = NotificationEvent::AssignmentStopped.name();
    let values = [now.into(), event.into(), (now + RETRY_PERIOD).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}

/// Queues one notification for each node that has new security updates, which a trigger has recorded.
/// Reads at most `limit` of them. Returns the number of deliveries.
pub async fn queue_security_updates(
    tx: &FleetTx,
    now: Time,
    limit: u32,
) -> Result<u64, StoreError> {
    let sql = "WITH fresh AS (SELECT tenant_id, instance_id, package, version FROM notified_security_updates \
               WHERE NOT is_queued ORDER BY tenant_id, instance_id, package LIMIT $4 FOR UPDATE SKIP LOCKED), \
               marked AS (UPDATE notified_security_updates n SET is_queued = true FROM fresh f \
               WHERE n.tenant_id = f.tenant_id AND n.instance_id = f.instance_id AND n.package = f.package \
               AND n.version = f.version RETURNING n.tenant_id, n.instance_id, n.package, n.version), \
               nodes AS (SELECT tenant_id, instance_id, \
               array_agg(package || ' ' || version ORDER BY package, version) AS packages \
               FROM marked GROUP BY tenant_id, instance_id) \
               INSERT INTO notification_deliveries (tenant_id, target_id, event, event_at, details, retry_until) \
               SELECT t.tenant_id, t.id, $2, $1, coalesce(notification_node(n.tenant_id, n.instance_id), '{}') \
               || jsonb_build_object('updates', cardinality(n.packages), 'packages', to_jsonb(n.packages[1:20])), $3 \
               FROM nodes n \
               JOIN projects p ON p.tenant_id = n.tenant_id AND p.removed_at IS NULL \
               JOIN notification_targets t ON t.tenant_id = n.tenant_id AND t.enabled AND $2 = ANY (t.events) \
               ORDER BY t.tenant_id, n.instance_id, t.id";
    let event = NotificationEvent::SecurityUpdatePending.name();
    let values = [now.into(), event.into(), (now + RETRY_PERIOD).into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}

/// Queues a notification that a certificate of the server expires, in each project with a target for
/// it, and once for each end of a certificate. Returns the number of deliveries.
pub async fn queue_certificate_expiry(
    tx: &FleetTx,
    certificate: &str,
    expires_at: Time,
    now: Time,
) -> Result<u64, StoreError> {
    let sql = "WITH marked AS (INSERT INTO notified_certificates (tenant_id, certificate, expires_at) \
               SELECT DISTINCT t.tenant_id, $4::text, $5::timestamptz FROM notification_targets t \
               JOIN projects p ON p.tenant_id = t.tenant_id AND p.removed_at IS NULL \
               WHERE t.enabled AND $2 = ANY (t.events) ORDER BY t.tenant_id ON CONFLICT DO NOTHING RETURNING tenant_id) \
               INSERT INTO notification_deliveries (tenant_id, target_id, event, event_at, details, retry_until) \
               SELECT t.tenant_id, t.id, $2, $1, jsonb_build_object('certificate', $4::text, 'expiresAt', $6::text), $3 \
               FROM marked m JOIN notification_targets t ON t.tenant_id = m.tenant_id AND t.enabled \
               AND $2 = ANY (t.events) ORDER BY t.tenant_id, t.id";
    let text = expires_at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let event = NotificationEvent::CertificateExpiry.name();
    let values = [
        now.into(),
        event.into(),
        (now + RETRY_PERIOD).into(),
        certificate.into(),
        expires_at.into(),
        text.into(),
    ];
    execute(tx.conn(), sql, values).await
}

fn claim_key(claim: &ClaimedTarget) -> [Value; 3] {
    [claim.tenant.uuid().into(), claim.target.bits().cast_signed().into(), claim.holder.into()]
}

fn read_pending(row: &QueryResult) -> Result<PendingDelivery, StoreError> {
    let failures: i32 = row.try_get_by_index(8)?;
    Ok(PendingDelivery {
        number: row.try_get_by_index(0)?,
        id: row.try_get_by_index(1)?,
        event: row.try_get_by_index(2)?,
        event_at: row.try_get_by_index(3)?,
        details: row.try_get_by_index(4)?,
        project: row.try_get_by_index(5)?,
        address: TargetAddress::from_stored(row.try_get_by_index(6)?),
        secret: WebhookSecret::from_bytes(row.try_get_by_index(7)?),
        failures: failures.cast_unsigned(),
    })
}
