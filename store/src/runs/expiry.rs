//! Runs that are due to end, and runs whose retention has expired.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, InstanceId, RunId};
use evenkeel_domain::policy::PolicySpec;
use evenkeel_domain::run::RunTimeouts;
use evenkeel_domain::tenant::TenantId;
use sea_orm::Value;
use sea_orm::sea_query::ArrayType;
use uuid::Uuid;

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

/// A position in the open runs of all projects, in the order of projects and instances. An instance
/// has one open run at most.
pub type OpenRunPosition = (TenantId, InstanceId);

/// The result of a search in a part of the open runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnattendedRuns {
    /// The runs that may be due to end.
    pub due: Vec<StalledRun>,
    /// The position of the last open run of the part; `None` if there was none.
    pub last: Option<OpenRunPosition>,
}

/// A part of the open runs: an index lookup of its first run, and the runs that follow in the index.
/// Returns a row for each due run, or one row without a run, always with the last position.
/// `OFFSET 0` keeps the planner from joining whole tables.
const UNATTENDED_SQL: &str = "WITH part AS MATERIALIZED ( \
    SELECT u.tenant_id, u.id, u.instance_id, u.attempt, u.state, u.state_since, u.granted_at, \
    make_interval(hours => 24 * coalesce((u.origin #>> '{policy,spec,offline_days}')::integer, $4)) AS grace_period \
    FROM update_runs u WHERE u.ended_at IS NULL AND (u.tenant_id, u.instance_id) > ($1, $2) \
    ORDER BY u.tenant_id, u.instance_id LIMIT $3), \
    due AS (SELECT p.tenant_id, p.id, i.host_id FROM part p \
    CROSS JOIN LATERAL (SELECT n.protocol FROM node_states n \
    WHERE n.tenant_id = p.tenant_id AND n.instance_id = p.instance_id OFFSET 0) n \
    CROSS JOIN LATERAL (SELECT i.host_id FROM instances i \
    WHERE i.tenant_id = p.tenant_id AND i.id = p.instance_id OFFSET 0) i \
    LEFT JOIN LATERAL (SELECT c.heard_at FROM last_contacts c \
    WHERE c.tenant_id = p.tenant_id AND c.instance_id = p.instance_id OFFSET 0) c ON true \
    WHERE (p.attempt IS NULL OR (p.state IN ('downloading', 'staged') AND p.granted_at IS NULL \
    AND p.state_since + p.grace_period <= $6)) \
    AND CASE WHEN p.attempt IS NULL THEN n.protocol = 'own' \
    ELSE c.heard_at IS NULL OR c.heard_at + make_interval(secs => $5) + p.grace_period <= $6 END \
    AND NOT EXISTS (SELECT FROM projects o WHERE o.tenant_id = p.tenant_id AND o.removed_at IS NOT NULL)) \
    SELECT l.tenant_id, l.instance_id, d.tenant_id, d.host_id, d.id \
    FROM (SELECT p.tenant_id, p.instance_id FROM part p \
    ORDER BY p.tenant_id DESC, p.instance_id DESC LIMIT 1) l LEFT JOIN due d ON true";

/// Open runs of all projects that no agent reports any more, although they have not timed out: runs
/// that have changed nothing and whose node is away for longer than it may begin by itself, and
/// runs of EIM's agents that an Evenkeel agent has replaced. Reads at most `limit` open runs after
/// `last`. `contact_lag` is how much later than its last contact a node may have received an answer.
pub async fn list_unattended(
    tx: &FleetTx,
    contact_lag: TimeDelta,
    now: Time,
    (last, limit): (Option<OpenRunPosition>, u32),
) -> Result<UnattendedRuns, StoreError> {
    // An index cannot find only the due runs: when a run is due depends on the offline days in its
    // origin and on the last contact, which has no index so that updates stay in place. An index
    // that has the offline days would be written with each event of a run, and would still find the
    // runs of all nodes that wait longer than that for a window.
    // No project has the nil UUID.
    let (tenant, instance) = last.map_or((Uuid::nil(), i32::MIN), |(tenant, instance)| {
        (tenant.uuid(), instance.bits().cast_signed())
    });
    let values: [Value; 6] = [
        tenant.into(),
        instance.into(),
        i64::from(limit).into(),
        PolicySpec::default_offline_days().cast_signed().into(),
        contact_lag.as_seconds_f64().into(),
        now.into(),
    ];
    let mut runs = UnattendedRuns { due: Vec::new(), last: None };
    for row in query_all(tx.conn(), UNATTENDED_SQL, values).await? {
        let tenant = TenantId::new(row.try_get_by_index(0)?);
        let instance = InstanceId::from_bits(row.try_get_by_index::<i32>(1)?.cast_unsigned());
        runs.last = Some((tenant, instance));
        if let Some(tenant) = row.try_get_by_index::<Option<Uuid>>(2)? {
            runs.due.push(StalledRun {
                tenant: TenantId::new(tenant),
                host: HostId::from_bits(row.try_get_by_index::<i32>(3)?.cast_unsigned()),
                run: RunId::from_bits(row.try_get_by_index::<i32>(4)?.cast_unsigned()),
            });
        }
    }
    Ok(runs)
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
