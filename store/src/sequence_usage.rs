//! How far the sequences of ids are used up. Ids have 32 bits, and a number is never assigned
//! again.

use crate::error::StoreError;
use crate::tx::{FleetTx, query_all};

/// The used part of each sequence of ids, from 0 to 1, by the name of the resource: `run` for
/// `run_numbers`. Sequences that begin again are left out.
pub async fn read(tx: &FleetTx) -> Result<Vec<(String, f64)>, StoreError> {
    let sql = "SELECT regexp_replace(sequencename::text, '_numbers$', ''), \
               coalesce(last_value, 0)::double precision / max_value::double precision \
               FROM pg_sequences WHERE schemaname = 'public' AND sequencename LIKE '%\\_numbers' AND NOT cycle \
               ORDER BY sequencename";
    let mut usages = Vec::new();
    for row in query_all(tx.conn(), sql, []).await? {
        usages.push((row.try_get_by_index(0)?, row.try_get_by_index(1)?));
    }
    Ok(usages)
}
