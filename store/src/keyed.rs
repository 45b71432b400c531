//! What is the same for everything that has an id of its own.

use sea_orm::{ColumnTrait, EntityTrait, FromQueryResult, QueryFilter, QuerySelect};

use crate::error::StoreError;
use crate::tx::{Scoped, Tx, among};

/// A row with an id.
pub(crate) trait Keyed: Scoped {
    /// The column of the id.
    const ID: Self::Column;
    /// The table in the singular, as the ancestor's clients know it (northbound section 3.2).
    const WHAT: &'static str;
}

/// The thing with this id; [`StoreError::NotFound`] if there is none in the project.
pub(crate) async fn find<E, T>(tx: &Tx, id: u32) -> Result<T, StoreError>
where
    E: Keyed + EntityTrait,
    T: TryFrom<E::Model, Error = StoreError>,
{
    let found = tx.scope::<E>().filter(E::ID.eq(id.cast_signed()));
    let found = found.one(tx.conn()).await?;
    found
        .ok_or(StoreError::NotFound { what: E::WHAT })?
        .try_into()
}

/// Whether there is a thing with this id in the project.
pub(crate) async fn exists<E: Keyed>(tx: &Tx, id: u32) -> Result<bool, StoreError> {
    let found = tx
        .scope::<E>()
        .select_only()
        .column(E::ID)
        .filter(E::ID.eq(id.cast_signed()))
        .into_tuple::<i32>();
    Ok(found.one(tx.conn()).await?.is_some())
}

/// The things with these ids that there are, in no order.
pub(crate) async fn find_many<E, T>(
    tx: &Tx,
    ids: impl IntoIterator<Item = u32>,
) -> Result<Vec<T>, StoreError>
where
    E: Keyed + EntityTrait,
    E::Model: FromQueryResult,
    T: TryFrom<E::Model, Error = StoreError>,
{
    let ids = ids.into_iter().map(u32::cast_signed);
    let rows = tx
        .scope::<E>()
        .filter(among(E::ID, ids))
        .all(tx.conn())
        .await?;
    rows.into_iter().map(T::try_from).collect()
}

/// Removes the thing with this id; [`StoreError::NotFound`] if there is none in the project.
pub(crate) async fn delete<E: Keyed>(tx: &Tx, id: u32) -> Result<(), StoreError> {
    let delete = tx.remove::<E>().filter(E::ID.eq(id.cast_signed()));
    match delete.exec(tx.conn()).await?.rows_affected {
        0 => Err(StoreError::NotFound { what: E::WHAT }),
        _ => Ok(()),
    }
}
