//! New identifiers.

use sea_orm::{ConnectionTrait, QueryResult};

use crate::error::StoreError;
use crate::tx::one;

/// The next number of a sequence.
pub(crate) async fn next(db: &impl ConnectionTrait, sequence: &str) -> Result<u32, StoreError> {
    let row = one(db, "SELECT nextval($1::regclass)", [sequence.into()]).await?;
    row.map_or(Ok(0), |row| of(&row, 0))
}

/// The next number of a sequence that a row has at a place.
pub(crate) fn of(row: &QueryResult, place: usize) -> Result<u32, StoreError> {
    let number: i64 = row.try_get_by_index(place)?;
    u32::try_from(number).map_err(|_| StoreError::Corrupt {
        table: "sequence",
        row: 0,
        column: "nextval",
    })
}
