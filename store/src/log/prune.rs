//! Deletes old changes from the log.

use evenkeel_domain::Time;

use crate::error::StoreError;
use crate::tx::{FleetTx, execute, query_one};

/// Deletes at most `limit` changes of all projects that are older than `before`, searched among the
/// first `limit` changes of the log. Returns their number. Readers that have not read them notice.
/// Safe on several replicas at once.
///
/// A backup from another server may contain changes with transaction ids that this server has not
/// reached yet. They are searched separately and deleted without notice to readers, because no
/// reader waits for them.
pub async fn prune(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    // LIMIT is no parameter: a cached generic plan would assume a tenth of the log.
    let first = |which: &str| {
        format!(
            "(SELECT tenant_id, xid, seq, at FROM change_log \
             WHERE xid {which} pg_snapshot_xmax(pg_current_snapshot()) ORDER BY xid, seq LIMIT {limit})"
        )
    };
    let (current, future) = (first("<"), first(">="));
    let sql = format!(
        "WITH early AS MATERIALIZED ({current} UNION ALL {future}), \
         old AS MATERIALIZED (SELECT c.tenant_id, c.xid, c.seq FROM early e JOIN change_log c \
         ON c.tenant_id = e.tenant_id AND c.xid = e.xid AND c.seq = e.seq \
         WHERE e.at < $1 LIMIT {limit} FOR UPDATE OF c SKIP LOCKED), \
         gone AS (DELETE FROM change_log c USING old o WHERE c.tenant_id = o.tenant_id \
         AND c.xid = o.xid AND c.seq = o.seq RETURNING c.xid, c.seq), \
         newest AS (SELECT xid, seq FROM gone WHERE xid < pg_snapshot_xmax(pg_current_snapshot()) \
         ORDER BY xid DESC, seq DESC LIMIT 1), \
         moved AS (UPDATE log_state s SET floor_xid = n.xid, floor_seq = n.seq FROM newest n \
         WHERE (s.floor_xid, s.floor_seq) < (n.xid, n.seq)) \
         SELECT count(*) FROM gone"
    );
    set_pruning(tx, "on").await?;
    let row = query_one(tx.conn(), sql, [before.into()]).await?;
    set_pruning(tx, "").await?;
    let deleted: i64 = match row {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(deleted.cast_unsigned())
}

/// Marks the following deletions as pruning, which moves the floor of the log itself.
async fn set_pruning(tx: &FleetTx, pruning: &str) -> Result<(), StoreError> {
    let sql = "SELECT set_config('evenkeel.pruning', $1, true)";
    execute(tx.conn(), sql, [pruning.into()]).await.map(drop)
}
