//! Reads whole lists in batches.

use super::Listing;
use super::query::Query;
use crate::error::StoreError;
use crate::tx::{Tx, execute, query_all};

/// A list that is read in batches. It lives as long as its transaction.
#[derive(Debug)]
pub struct Cursor {
    name: String,
}

/// Starts to read a list after `offset` resources. A transaction reads one list per resource kind
/// at a time.
///
/// # Errors
/// The transaction is reading another list of the same resource kind, or the database cannot be
/// reached.
pub async fn open(tx: &Tx, listing: &Listing, offset: u64) -> Result<Cursor, StoreError> {
    // One name per resource kind, so that the database does not prepare a new statement each time.
    let name = format!("list_of_{:?}", listing.resource).to_lowercase();
    let (sql, values) = Query::new(tx, listing)?.ids_statement(offset);
    let declare = format!("DECLARE {name} NO SCROLL CURSOR FOR {sql}");
    execute(tx.conn(), declare, values).await?;
    Ok(Cursor { name })
}

impl Cursor {
    /// The next ids, at most `limit`; empty at the end of the list.
    pub async fn next(&mut self, tx: &Tx, limit: u32) -> Result<Vec<u32>, StoreError> {
        let sql = format!("FETCH FORWARD {limit} FROM {}", self.name);
        let rows = query_all(tx.conn(), sql, []).await?;
        let mut ids = Vec::with_capacity(rows.len());
        for row in rows {
            ids.push(row.try_get_by_index::<i32>(0)?.cast_unsigned());
        }
        Ok(ids)
    }

    /// Closes the cursor before its transaction ends.
    pub async fn close(self, tx: &Tx) -> Result<(), StoreError> {
        execute(tx.conn(), format!("CLOSE {}", self.name), []).await.map(drop)
    }
}
