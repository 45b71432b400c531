//! Stalled runs, and runs whose retention has expired.

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, RunId};
use evenkeel_domain::tenant::TenantId;

use crate::error::StoreError;
use crate::settings::ProjectSettings;
use crate::tx::{FleetTx, execute, query_all};

/// An open run without recent progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StalledRun {
    pub tenant: TenantId,
    /// The host of its instance.
    pub host: HostId,
    pub run: RunId,
    /// Since when it is in its current state.
    pub since: Time,
}

/// Open runs of all projects that have been in their state since before a time, longest first,
/// after `last` in this order. The caller locks the node and checks again before it acts on a run.
pub async fn list_stalled(
    tx: &FleetTx,
    before: Time,
    last: Option<StalledRun>,
    limit: u32,
) -> Result<Vec<StalledRun>, StoreError> {
    let sql = "SELECT r.tenant_id, i.host_id, r.id, r.state_since FROM update_runs r \
               JOIN instances i ON i.tenant_id = r.tenant_id AND i.id = r.instance_id \
               WHERE r.ended_at IS NULL AND r.state_since < $1 \
               AND ($2::timestamptz IS NULL OR (r.state_since, r.tenant_id, r.id) > ($2, $3, $4)) \
               ORDER BY r.state_since, r.tenant_id, r.id LIMIT $5";
    let values = [
        before.into(),
        last.map(|last| last.since).into(),
        last.map(|last| last.tenant.uuid()).into(),
        last.map(|last| last.run.bits().cast_signed()).into(),
        i64::from(limit).into(),
    ];
    let stalled = |row: sea_orm::QueryResult| -> Result<StalledRun, StoreError> {
        Ok(StalledRun {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            host: HostId::from_bits(row.try_get_by_index::<i32>(1)?.cast_unsigned()),
            run: RunId::from_bits(row.try_get_by_index::<i32>(2)?.cast_unsigned()),
            since: row.try_get_by_index(3)?,
        })
    };
    query_all(tx.conn(), sql, values).await?.into_iter().map(stalled).collect()
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
