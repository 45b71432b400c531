//! Runs that are due to end, and runs whose retention has expired.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, RunId};
use evenkeel_domain::policy::PolicySpec;
use evenkeel_domain::run::RunTimeouts;
use evenkeel_domain::tenant::TenantId;
use sea_orm::Value;
use sea_orm::sea_query::ArrayType;

use crate::error::StoreError;
use crate::settings::ProjectSettings;
use crate::tx::{FleetTx, execute, query_all};

/// An open run that may be due to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalledRun {
    pub tenant: TenantId,
    /// The host of its instance.
    pub host: HostId,
    pub run: RunId,
}

/// Runs after `last` in the order of projects and runs, at most `limit`. `OFFSET 0` keeps the
/// planner from joining whole tables: each run costs a lookup of its instance.
fn page_sql(candidates: &str) -> String {
    format!(
        "WITH present AS (SELECT tenant_id FROM projects WHERE removed_at IS NULL) \
         SELECT r.tenant_id, i.host_id, r.id FROM ({candidates}) r \
         CROSS JOIN LATERAL (SELECT i.host_id FROM instances i \
         WHERE i.tenant_id = r.tenant_id AND i.id = r.instance_id OFFSET 0) i \
         WHERE $1::uuid IS NULL OR (r.tenant_id, r.id) > ($1, $2) ORDER BY r.tenant_id, r.id LIMIT $3"
    )
}

async fn list_page(
    tx: &FleetTx,
    candidates: &str,
    (last, limit): (Option<StalledRun>, u32),
    values: Vec<Value>,
) -> Result<Vec<StalledRun>, StoreError> {
    let mut all = vec![
        last.map(|last| last.tenant.uuid()).into(),
        last.map(|last| last.run.bits().cast_signed()).into(),
        i64::from(limit).into(),
    ];
    all.extend(values);
    let stalled = |row: sea_orm::QueryResult| -> Result<StalledRun, StoreError> {
        Ok(StalledRun {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            host: HostId::from_bits(row.try_get_by_index::<i32>(1)?.cast_unsigned()),
            run: RunId::from_bits(row.try_get_by_index::<i32>(2)?.cast_unsigned()),
        })
    };
    let rows = query_all(tx.conn(), page_sql(candidates), all).await?;
    rows.into_iter().map(stalled).collect()
}

/// Open runs of all projects that have timed out, at most `limit` after `last`. The cost depends on
/// the number of these runs, not on the number of open ones. The caller locks the node and checks
/// again before it acts on a run.
pub async fn list_timed_out(
    tx: &FleetTx,
    timeouts: &RunTimeouts,
    now: Time,
    page: (Option<StalledRun>, u32),
) -> Result<Vec<StalledRun>, StoreError> {
    // The second part is the rule of `RunTimeouts::for_run`.
    let candidates = "SELECT u.tenant_id, u.id, u.instance_id FROM present p \
         CROSS JOIN unnest($4::text[], $5::timestamptz[]) AS t (state, expired) \
         CROSS JOIN LATERAL (SELECT u.tenant_id, u.id, u.instance_id FROM update_runs u \
         WHERE u.tenant_id = p.tenant_id AND u.ended_at IS NULL AND u.state = t.state \
         AND u.state_since <= t.expired OFFSET 0) u \
         UNION SELECT u.tenant_id, u.id, u.instance_id FROM present p \
         CROSS JOIN LATERAL (SELECT u.tenant_id, u.id, u.instance_id FROM update_runs u \
         WHERE u.tenant_id = p.tenant_id AND u.ended_at IS NULL AND u.granted_at <= $6 \
         AND u.state IN ('downloading', 'staged') OFFSET 0) u";
    let by_state = [
        ("downloading", timeouts.downloading),
        ("staged", timeouts.staged),
        ("applying", timeouts.applying),
        ("rebooting", timeouts.rebooting),
        ("verifying", timeouts.verifying),
        ("reverting", timeouts.reverting),
    ];
    let states: Vec<String> = by_state.iter().map(|(state, _)| (*state).to_owned()).collect();
    let expired = by_state.iter().map(|(_, timeout)| Value::from(now - *timeout)).collect();
    let values = vec![
        states.into(),
        Value::Array(ArrayType::ChronoDateTimeUtc, Some(Box::new(expired))),
        (now - timeouts.applying).into(),
    ];
    list_page(tx, candidates, page, values).await
}

/// Open runs of all projects that nobody reports any more, although they have not timed out: runs
/// that have changed nothing and whose node is away for longer than it may begin by itself, and
/// runs of EIM's agents that an Evenkeel agent has replaced. At most `limit` after `last`. Reads
/// all runs that have changed nothing. `contact_lag` is how much later than its last contact a node
/// may have received an answer.
pub async fn list_unattended(
    tx: &FleetTx,
    contact_lag: TimeDelta,
    now: Time,
    page: (Option<StalledRun>, u32),
) -> Result<Vec<StalledRun>, StoreError> {
    // An index cannot find only the due runs: when a run is due depends on the offline days in its
    // origin and on the last contact, which has no index so that updates stay in place. An index
    // that has the offline days would be written with each event of a run, and would still find the
    // runs of all nodes that wait longer than that for a window.
    let candidates = "SELECT u.tenant_id, u.id, u.instance_id FROM present p \
         CROSS JOIN LATERAL (SELECT u.tenant_id, u.id, u.instance_id, u.attempt, u.state_since, d.grace_period \
         FROM update_runs u CROSS JOIN LATERAL (SELECT make_interval(hours => 24 * \
         coalesce((u.origin #>> '{policy,spec,offline_days}')::integer, $4)) AS grace_period) d \
         WHERE u.tenant_id = p.tenant_id AND u.ended_at IS NULL AND (u.attempt IS NULL \
         OR (u.state IN ('downloading', 'staged') AND u.granted_at IS NULL \
         AND u.state_since + d.grace_period <= $6)) OFFSET 0) u \
         CROSS JOIN LATERAL (SELECT n.protocol FROM node_states n \
         WHERE n.tenant_id = u.tenant_id AND n.instance_id = u.instance_id OFFSET 0) n \
         LEFT JOIN LATERAL (SELECT c.heard_at FROM last_contacts c \
         WHERE c.tenant_id = u.tenant_id AND c.instance_id = u.instance_id OFFSET 0) c ON true \
         WHERE CASE WHEN u.attempt IS NULL THEN n.protocol = 'own' \
         ELSE c.heard_at IS NULL OR c.heard_at + make_interval(secs => $5) + u.grace_period <= $6 END";
    let offline_days = PolicySpec::default_offline_days().cast_signed();
    let lag = contact_lag.as_seconds_f64();
    list_page(tx, candidates, page, vec![offline_days.into(), lag.into(), now.into()]).await
}

/// Deletes at most `limit` ended runs of all projects whose retention has expired, with their
/// history. The retention is a project setting, otherwise `default_days`; 0 keeps runs forever.
/// Returns the number of deleted runs. Safe on several replicas at once.
pub async fn delete_expired(
    tx: &FleetTx,
    default_days: u32,
    now: Time,
    limit: u32,
) -> Result<u64, StoreError> {
    let sql = "WITH old AS (SELECT r.tenant_id, r.id FROM projects p \
               LEFT JOIN project_settings s ON s.tenant_id = p.tenant_id \
               CROSS JOIN LATERAL (SELECT coalesce(s.retention_days, $1) AS days) k \
               CROSS JOIN LATERAL (SELECT u.tenant_id, u.id FROM update_runs u WHERE u.tenant_id = p.tenant_id \
               AND u.ended_at < $2 - make_interval(hours => 24 * k.days) \
               ORDER BY u.ended_at LIMIT $3 FOR UPDATE SKIP LOCKED) r \
               WHERE k.days > 0 LIMIT $3) \
               DELETE FROM update_runs u USING old WHERE u.tenant_id = old.tenant_id AND u.id = old.id";
    let days = default_days.min(ProjectSettings::MAX_RETENTION_DAYS);
    let values = [days.cast_signed().into(), now.into(), i64::from(limit).into()];
    execute(tx.conn(), sql, values).await
}
