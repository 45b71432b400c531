//! Lists of all resources: filtered, ordered, in pages and as a stream.
//!
//! A filter of the domain becomes one condition in SQL, whose values are parameters. What there is to compare is said in
//! the tables of columns.

mod columns;
mod comparison;
mod condition;
mod cursor;
mod draft;
mod key;
mod order;
mod query;

pub use cursor::{Cursor, open};
pub use key::Key;

use std::collections::HashMap;

use evenkeel_domain::filter::{Filter, OrderKey, Resource};
use sea_orm::Value;

use crate::error::{Conflict, StoreError};
use crate::tx::Tx;
use query::Query;

/// A list.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Of what.
    pub resource: Resource,
    /// Only those that fit; all if there is none.
    pub filter: Option<Filter>,
    /// Of these, only those that fit this as well. It may be another one for the next page: no key knows it.
    pub within: Option<Filter>,
    /// In which order; what is alike is ordered by id.
    pub order: Vec<OrderKey>,
}

/// Where a page begins.
#[derive(Clone, Debug, PartialEq)]
pub enum From {
    /// After so many.
    Offset(u64),
    /// After the last one of the page before.
    After(Key),
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The ids, in the order of the list.
    pub ids: Vec<u32>,
    /// How many the whole list has.
    pub total: u64,
    /// Where the next page begins; none if this was the last one.
    pub next: Option<Key>,
}

/// A page of a list, with the length of the whole. It is right in a snapshot, where the two agree.
///
/// # Errors
/// The key is of another list, or the database cannot be reached.
pub async fn page(
    tx: &Tx,
    listing: &Listing,
    from: &From,
    limit: u64,
) -> Result<Chosen, StoreError> {
    let query = Query::new(tx, listing)?;
    let start = query.start(from).ok_or_else(foreign)?;
    let page = query.page(tx, start, limit).await?;
    let next = page.places.last().filter(|_| !page.is_last);
    Ok(Chosen {
        ids: page.places.iter().map(|place| place.id).collect(),
        total: page.total,
        next: next.map(|place| query.key_of(place)),
    })
}

/// Whether a key is of this list.
///
/// # Errors
/// The list asks for a field that is not kept.
pub fn is_of(tx: &Tx, listing: &Listing, key: &Key) -> Result<bool, StoreError> {
    Ok(Query::new(tx, listing)?.place_of(key).is_some())
}

fn foreign() -> StoreError {
    let rule = "a page token belongs to the list that gave it".to_owned();
    Conflict::Rule { rule }.into()
}

/// How the database would read a page forwards, for a test.
///
/// # Errors
/// The key is of another list, or the database cannot be reached.
#[cfg(feature = "testing")]
pub async fn plan(
    tx: &Tx,
    listing: &Listing,
    from: &From,
    limit: u64,
) -> Result<String, StoreError> {
    let query = Query::new(tx, listing)?;
    let start = query.start(from).ok_or_else(foreign)?;
    let (sql, values) = query.statement(start, limit);
    let rows = crate::tx::all(tx.conn(), format!("EXPLAIN {sql}"), values).await?;
    let lines: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get_by_index(0)).collect();
    Ok(lines?.join("\n"))
}

/// How many a list has.
///
/// # Errors
/// The database cannot be reached.
pub async fn count(tx: &Tx, listing: &Listing) -> Result<u64, StoreError> {
    Query::new(tx, listing)?.count(tx).await
}

/// The statement that gives the ids of a list in no order, for use within another one, and its values: the first one is
/// the project.
///
/// # Errors
/// The list asks for a field that is not kept.
pub(crate) fn ids_of(tx: &Tx, listing: &Listing) -> Result<(String, Vec<Value>), StoreError> {
    Ok(Query::new(tx, listing)?.unordered())
}

/// Things in the order of their ids; those that there are no more are left out.
pub fn in_order<T>(ids: &[u32], items: Vec<T>, id: impl Fn(&T) -> u32) -> Vec<T> {
    let mut by_id: HashMap<u32, T> = items.into_iter().map(|item| (id(&item), item)).collect();
    ids.iter().filter_map(|id| by_id.remove(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_put_in_order() {
        let found = vec![(3, "c"), (1, "a"), (2, "b")];
        let ordered = in_order(&[2, 9, 3, 1], found, |(id, _)| *id);
        assert_eq!(ordered, [(2, "b"), (3, "c"), (1, "a")]);
    }
}
