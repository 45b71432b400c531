//! How long whole lists are, without counting them: whatever adds or removes rows leaves by how many (step 20 of the
//! schema), and a list is as long as the sum.

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, one};

/// So many differences of one list are added up quickly by whoever asks: they may stay.
const FEW: i64 = 100;

/// How many differences are put together at once: it must not last long. The others are for the next time.
const BATCH: i64 = 100_000;

/// How many of a kind the project has.
pub(crate) async fn sum(tx: &Tx, kind: &str) -> Result<u64, StoreError> {
    let sql = "SELECT coalesce(sum(n), 0)::bigint FROM tallies WHERE tenant_id = $1 AND kind = $2";
    let row = one(tx.conn(), sql, [tx.tenant().uuid().into(), kind.into()]).await?;
    let sum: i64 = match row {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(u64::try_from(sum).unwrap_or(0))
}

/// Puts one sum in the place of many differences, in all projects. Says how many differences that were.
///
/// Safe on several replicas at once and while others add: what is put together is what this statement itself removed, and
/// it adds the sum of just that. A row is removed once: who finds it locked or gone leaves it out. What is added meanwhile
/// is not seen and stays. Nobody sees the one without the other. The project is locked first, as whoever deletes it does,
/// and is left alone while it goes.
///
/// # Errors
/// The database cannot be reached.
pub async fn fold(tx: &FleetTx) -> Result<u64, StoreError> {
    let sql = "WITH many AS (SELECT tenant_id, kind FROM tallies GROUP BY tenant_id, kind HAVING count(*) > $1), \
               held AS MATERIALIZED (SELECT p.tenant_id FROM projects p \
               WHERE p.tenant_id IN (SELECT tenant_id FROM many) FOR KEY SHARE SKIP LOCKED), \
               taken AS MATERIALIZED (SELECT t.ctid AS place FROM tallies t \
               WHERE (t.tenant_id, t.kind) IN (SELECT tenant_id, kind FROM many) \
               AND t.tenant_id IN (SELECT tenant_id FROM held) LIMIT $2 FOR UPDATE SKIP LOCKED), \
               gone AS (DELETE FROM tallies t WHERE t.ctid IN (SELECT place FROM taken) \
               RETURNING t.tenant_id, t.kind, t.n), \
               kept AS (INSERT INTO tallies (tenant_id, kind, n) \
               SELECT tenant_id, kind, sum(n)::bigint FROM gone GROUP BY tenant_id, kind HAVING sum(n) <> 0) \
               SELECT count(*) FROM gone";
    let row = one(tx.conn(), sql, [FEW.into(), BATCH.into()]).await?;
    let gone: i64 = match row {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    Ok(gone.cast_unsigned())
}
