//! The end of changes that are old enough.

use evenkeel_domain::Time;

use crate::error::StoreError;
use crate::tx::{FleetTx, execute, one};

/// Removes changes that were made before an instant, of all projects: at most so many, looked for among as many of the
/// first ones of the log. Says how many. Readers that have not read them yet notice. Safe on several replicas at once.
///
/// A backup that was restored from another server may hold changes of transactions that are not there yet. They are looked
/// for apart, and nobody is behind them: they are removed without a word to readers.
///
/// # Errors
/// The database cannot be reached.
pub async fn prune(tx: &FleetTx, before: Time, limit: u32) -> Result<u64, StoreError> {
    // The number of rows is no parameter: a plan that is kept would be made for a tenth of the log.
    let first = |which: &str| {
        format!(
            "(SELECT tenant_id, xid, seq, at FROM change_log \
             WHERE xid {which} pg_snapshot_xmax(pg_current_snapshot()) ORDER BY xid, seq LIMIT {limit})"
        )
    };
    let (ours, ahead) = (first("<"), first(">="));
    let sql = format!(
        "WITH early AS MATERIALIZED ({ours} UNION ALL {ahead}), \
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
    announce(tx, "on").await?;
    let row = one(tx.conn(), sql, [before.into()]).await?;
    announce(tx, "").await?;
    let gone: i64 = match row {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(gone.cast_unsigned())
}

/// Says that what is removed from the log now is removed by whoever moves its floor.
async fn announce(tx: &FleetTx, pruning: &str) -> Result<(), StoreError> {
    let sql = "SELECT set_config('evenkeel.pruning', $1, true)";
    execute(tx.conn(), sql, [pruning.into()]).await.map(drop)
}
