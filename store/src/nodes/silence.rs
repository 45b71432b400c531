//! Detection of nodes without contact.

use evenkeel_domain::Time;
use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::status::Indication;
use evenkeel_domain::tenant::TenantId;
use sea_orm::QueryResult;

use crate::error::StoreError;
use crate::tx::{FleetTx, execute, query_all};

/// A node without contact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilentNode {
    pub tenant: TenantId,
    pub host: HostId,
    pub instance: InstanceId,
    /// Time of its last contact.
    pub heard_at: Time,
}

/// Status of a silent node and its host (EIM's text).
pub const NO_CONNECTION_STATUS: &str = "No Connection";

/// Marks at most `limit` nodes of all projects as silent that made no contact since `heard_before`,
/// and their hosts. A node whose `due` time lies ahead is not silent. Safe on several replicas at
/// once; a node whose report is being processed is skipped. The node of an invalidated instance
/// stays unchanged and is not returned: only its host is marked.
pub async fn mark_silent_nodes(
    tx: &FleetTx,
    heard_before: Time,
    now: Time,
    limit: u32,
) -> Result<Vec<SilentNode>, StoreError> {
    // Contacts have no index on their time, so that updates stay in place. All of them are read,
    // and a sequential scan is best.
    let allow_seqscan = "SELECT set_config('enable_seqscan', 'on', true)";
    execute(tx.conn(), allow_seqscan, []).await?;
    // The status of an invalidated instance must not change, so the status of its host decides
    // whether the silence is already recorded.
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
        NO_CONNECTION_STATUS.into(),
        Indication::Error.name().into(),
        now.into(),
        i64::from(limit).into(),
    ];
    let silent = |row: QueryResult| -> Result<SilentNode, StoreError> {
        let (host, instance): (i32, i32) = (row.try_get_by_index(1)?, row.try_get_by_index(2)?);
        Ok(SilentNode {
            tenant: TenantId::new(row.try_get_by_index(0)?),
            host: HostId::from_bits(host.cast_unsigned()),
            instance: InstanceId::from_bits(instance.cast_unsigned()),
            heard_at: row.try_get_by_index(3)?,
        })
    };
    let rows = query_all(tx.conn(), sql, values).await?;
    rows.into_iter().map(silent).collect()
}
