//! New identifiers.

use sea_orm::ConnectionTrait;

use crate::error::StoreError;
use crate::tx::one;

/// The next number of a sequence.
pub(crate) async fn next(db: &impl ConnectionTrait, sequence: &str) -> Result<u32, StoreError> {
    let row = one(db, "SELECT nextval($1::regclass)", [sequence.into()]).await?;
    let number: i64 = match row {
        Some(row) => row.try_get_by_index(0)?,
        None => 0,
    };
    u32::try_from(number).map_err(|_| StoreError::Corrupt {
        table: "sequence",
        row: 0,
        column: "nextval",
    })
}
