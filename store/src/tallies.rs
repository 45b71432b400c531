//! Lengths of whole lists without counting them: each insert and delete adds a difference
//! (migration 20), and the length of a list is the sum of its differences.

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, query_one};

/// Summing up this number of differences of one list is fast, so they are not folded.
const MAX_UNFOLDED_ROWS: i64 = 100;

/// Maximum number of differences per fold, to keep it short. The next fold takes the others.
const MAX_ROWS_PER_FOLD: i64 = 100_000;

/// The number of resources of a kind in the project.
pub(crate) async fn sum(tx: &Tx, kind: &str) -> Result<u64, StoreError> {
    let sql = "SELECT coalesce(sum(n), 0)::bigint FROM tallies WHERE tenant_id = $1 AND kind = $2";
    let row = query_one(tx.conn(), sql, [tx.tenant().uuid().into(), kind.into()]).await?;
    let sum: i64 = match row {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(u64::try_from(sum).unwrap_or(0))
}

/// Replaces many differences by their sum, in all projects. Returns the number of replaced
/// differences.
///
/// Safe on several replicas at once and while others add differences: the statement adds the sum of
/// exactly those rows that it deletes itself. Each row is deleted once, because locked and deleted
/// rows are skipped. Rows that are added meanwhile are not visible and stay. The delete and the
/// insert become visible together. The project is locked first, as its deletion does; a project
/// that is being deleted is skipped.
pub async fn fold(tx: &FleetTx) -> Result<u64, StoreError> {
    let sql = "WITH many AS (SELECT tenant_id, kind FROM tallies GROUP BY tenant_id, kind HAVING count(*) > $1), \
               locked_projects AS MATERIALIZED (SELECT p.tenant_id FROM projects p \
               WHERE p.tenant_id IN (SELECT tenant_id FROM many) FOR KEY SHARE SKIP LOCKED), \
               locked_rows AS MATERIALIZED (SELECT t.ctid AS row_id FROM tallies t \
               WHERE (t.tenant_id, t.kind) IN (SELECT tenant_id, kind FROM many) \
               AND t.tenant_id IN (SELECT tenant_id FROM locked_projects) LIMIT $2 FOR UPDATE SKIP LOCKED), \
               deleted AS (DELETE FROM tallies t WHERE t.ctid IN (SELECT row_id FROM locked_rows) \
               RETURNING t.tenant_id, t.kind, t.n), \
               sums AS (INSERT INTO tallies (tenant_id, kind, n) \
               SELECT tenant_id, kind, sum(n)::bigint FROM deleted GROUP BY tenant_id, kind HAVING sum(n) <> 0) \
               SELECT count(*) FROM deleted";
    let row =
        query_one(tx.conn(), sql, [MAX_UNFOLDED_ROWS.into(), MAX_ROWS_PER_FOLD.into()]).await?;
    let folded: i64 = match row {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(folded.cast_unsigned())
}
