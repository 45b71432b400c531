//! Ids of new resources.

use sea_orm::{ConnectionTrait, QueryResult};

use crate::error::StoreError;
use crate::tx::query_one;

/// The next number of a sequence.
pub(crate) async fn next(db: &impl ConnectionTrait, sequence: &str) -> Result<u32, StoreError> {
    let row = query_one(db, "SELECT nextval($1::regclass)", [sequence.into()]).await?;
    row.map_or(Ok(0), |row| number_at(&row, 0))
}

/// The sequence number in a column of a row.
pub(crate) fn number_at(row: &QueryResult, index: usize) -> Result<u32, StoreError> {
    let number: i64 = row.try_get_by_index(index)?;
    u32::try_from(number).map_err(|_| StoreError::Corrupt {
        table: "sequence",
        row: 0,
        column: "nextval",
    })
}
