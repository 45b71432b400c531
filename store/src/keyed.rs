//! Queries for all resources that have an id.

use sea_orm::{
    ColumnTrait, ConnectionTrait, EntityTrait, FromQueryResult, QueryFilter, QueryResult,
    QuerySelect, QueryTrait,
};

use crate::error::StoreError;
use crate::rows::readable;
use crate::tx::{Scoped, Tx, is_any_of};

/// A table with an id column.
pub(crate) trait KeyedEntity: Scoped {
    const ID: Self::Column;
    /// The resource kind in the singular, as EIM names it in its errors.
    const RESOURCE: &'static str;
}

/// The resource with this id; [`StoreError::NotFound`] if the project has none.
pub(crate) async fn find<E, T>(tx: &Tx, id: u32) -> Result<T, StoreError>
where
    E: KeyedEntity + EntityTrait,
    T: TryFrom<E::Model, Error = StoreError>,
{
    let query = tx.scope::<E>().filter(E::ID.eq(id.cast_signed()));
    let row = query.one(tx.conn()).await?;
    row.ok_or(StoreError::NotFound { what: E::RESOURCE })?.try_into()
}

/// Whether the project has a resource with this id.
pub(crate) async fn exists<E: KeyedEntity>(tx: &Tx, id: u32) -> Result<bool, StoreError> {
    let query = tx
        .scope::<E>()
        .select_only()
        .column(E::ID)
        .filter(E::ID.eq(id.cast_signed()))
        .into_tuple::<i32>();
    Ok(query.one(tx.conn()).await?.is_some())
}

/// The resources with these ids that exist, in no particular order. Leaves out those that cannot be
/// read.
pub(crate) async fn find_many<E, T>(
    tx: &Tx,
    ids: impl IntoIterator<Item = u32>,
) -> Result<Vec<T>, StoreError>
where
    E: KeyedEntity + EntityTrait,
    E::Model: FromQueryResult,
    T: TryFrom<E::Model, Error = StoreError>,
{
    let ids = ids.into_iter().map(u32::cast_signed);
    let query = tx.scope::<E>().filter(is_any_of(E::ID, ids)).into_query();
    let rows = tx.conn().query_all(&query).await?;
    Ok(readable_rows::<E::Model, T>(E::RESOURCE, &rows))
}

/// The rows that can be read. A column that cannot be decoded concerns only its own row.
pub(crate) fn readable_rows<M, T>(resource: &'static str, rows: &[QueryResult]) -> Vec<T>
where
    M: FromQueryResult,
    T: TryFrom<M, Error = StoreError>,
{
    let read = rows.iter().filter_map(|row| {
        let model = M::from_query_result(row, "").map_err(StoreError::from);
        readable(resource, model.and_then(T::try_from))
    });
    read.collect()
}

/// Deletes the resource with this id; [`StoreError::NotFound`] if the project has none.
pub(crate) async fn delete<E: KeyedEntity>(tx: &Tx, id: u32) -> Result<(), StoreError> {
    let delete = tx.remove::<E>().filter(E::ID.eq(id.cast_signed()));
    match delete.exec(tx.conn()).await?.rows_affected {
        0 => Err(StoreError::NotFound { what: E::RESOURCE }),
        _ => Ok(()),
    }
}
