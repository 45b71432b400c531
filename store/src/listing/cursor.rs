//! Whole lists, bit by bit.

use super::Listing;
use super::query::Query;
use crate::error::StoreError;
use crate::tx::{Tx, all, execute};

/// A list that is read bit by bit. It lives as long as its transaction.
#[derive(Debug)]
pub struct Cursor {
    name: String,
}

/// Begins to read a list after so many. A transaction reads one list of a resource at a time.
///
/// # Errors
/// Another list of the same resource is being read, or the database cannot be reached.
pub async fn open(tx: &Tx, listing: &Listing, offset: u64) -> Result<Cursor, StoreError> {
    // The same name for all of a kind: so the database need not learn a new statement for each.
    let name = format!("list_of_{:?}", listing.resource).to_lowercase();
    let (sql, values) = Query::new(tx, listing)?.ids(offset);
    let declare = format!("DECLARE {name} NO SCROLL CURSOR FOR {sql}");
    execute(tx.conn(), declare, values).await?;
    Ok(Cursor { name })
}

impl Cursor {
    /// The next ids, at most so many; none if that was all.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn next(&mut self, tx: &Tx, most: u32) -> Result<Vec<u32>, StoreError> {
        let sql = format!("FETCH FORWARD {most} FROM {}", self.name);
        let rows = all(tx.conn(), sql, []).await?;
        let mut ids = Vec::with_capacity(rows.len());
        for row in rows {
            ids.push(row.try_get_by_index::<i32>(0)?.cast_unsigned());
        }
        Ok(ids)
    }

    /// Ends it before its transaction ends.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn close(self, tx: &Tx) -> Result<(), StoreError> {
        execute(tx.conn(), format!("CLOSE {}", self.name), [])
            .await
            .map(drop)
    }
}
