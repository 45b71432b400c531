//! Nodes that have fallen silent.

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::status::Indication;
use evenkeel_domain::tenant::TenantId;
use sea_orm::QueryResult;

use crate::error::StoreError;
use crate::tx::{FleetTx, all, execute};

/// A node that has fallen silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Its project.
    pub tenant: TenantId,
    /// Its host.
    pub host: HostId,
    /// Its instance.
    pub instance: InstanceId,
    /// When it was last heard.
    pub heard_at: Time,
}

/// What a silent node and its host show (northbound section 1.3).
pub const NO_CONNECTION: &str = "No Connection";

/// Notes of nodes of all projects that they were not heard since an instant, at most of so many: they and their hosts
/// show it from now on. One that is not due yet is not silent, however long it was not heard. Safe on several replicas at
/// once; a node that is just reporting is left out. Nobody listens to a node whose instance was invalidated: its host shows
/// that it was not heard, the node itself stays as it is, and it is not among those that are given.
///
/// # Errors
/// The database cannot be reached.
pub async fn silence(
    tx: &FleetTx,
    heard_before: Time,
    now: Time,
    limit: u32,
) -> Result<Vec<Silent>, StoreError> {
    // Contacts have no index by their time, so that they are updated in place: all of them are read, best as they lie.
    let as_they_lie = "SELECT set_config('enable_seqscan', 'on', true)";
    execute(tx.conn(), as_they_lie, []).await?;
    // What an invalidated instance shows must stay, so its host alone says whether its silence is shown already.
    let sql = "WITH quiet AS (SELECT n.tenant_id, n.instance_id, i.host_id, c.heard_at, i.current_state AS state \
               FROM last_contacts c \
               JOIN node_states n ON n.tenant_id = c.tenant_id AND n.instance_id = c.instance_id \
               JOIN instances i ON i.tenant_id = c.tenant_id AND i.id = c.instance_id \
               JOIN hosts m ON m.tenant_id = i.tenant_id AND m.id = i.host_id \
               WHERE c.heard_at < $1 AND (c.due_at IS NULL OR c.due_at <= $4) \
               AND n.provisioned AND m.current_state <> 'untrusted' \
               AND CASE WHEN i.current_state = 'untrusted' THEN m.status <> $2 AND m.status_at < $1 \
               ELSE n.status <> $2 AND n.status_at < $1 END \
               ORDER BY c.tenant_id, c.instance_id LIMIT $5 FOR NO KEY UPDATE OF n SKIP LOCKED), \
               node AS (UPDATE node_states n SET status = $2, status_indication = $3, status_at = $4 FROM quiet q \
               WHERE n.tenant_id = q.tenant_id AND n.instance_id = q.instance_id AND q.state <> 'untrusted'), \
               host AS (UPDATE hosts h SET status = $2, status_indication = $3, status_at = $4 FROM quiet q \
               WHERE h.tenant_id = q.tenant_id AND h.id = q.host_id AND h.status <> $2 \
               AND h.current_state <> 'untrusted') \
               SELECT tenant_id, host_id, instance_id, heard_at FROM quiet WHERE state <> 'untrusted'";
    let values = [
        heard_before.into(),
        NO_CONNECTION.into(),
        Indication::Error.name().into(),
        now.into(),
        i64::from(limit).into(),
    ];
    let silent = |row: QueryResult| -> Result<Silent, StoreError> {
        let (host, instance): (i32, i32) = (row.try_get_by_index(1)?, row.try_get_by_index(2)?);
        Ok(Silent {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            host: HostId::from_bits(host.cast_unsigned()),
            instance: InstanceId::from_bits(instance.cast_unsigned()),
            heard_at: row.try_get_by_index(3)?,
        })
    };
    let rows = all(tx.conn(), sql, values).await?;
    rows.into_iter().map(silent).collect()
}
