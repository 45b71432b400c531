//! Lists of all resources: filtered, ordered, in pages and as a stream.
//!
//! A filter becomes one SQL condition whose values are parameters. The column tables define which
//! fields can be compared.

mod columns;
mod comparison;
mod condition;
mod cursor;
mod key;
mod order;
mod query;
mod sql_builder;

pub use cursor::{Cursor, open};
pub use key::PageKey;

use std::collections::HashMap;

use evenkeel_domain::filter::{Filter, OrderKey, Resource};
use sea_orm::Value;

use crate::error::{Conflict, StoreError};
use crate::tx::Tx;
use query::Query;

/// The query of a list.
#[derive(Clone, Debug)]
pub struct Listing {
    pub resource: Resource,
    /// Returns only matching resources; without a filter, all.
    pub filter: Option<Filter>,
    /// An additional filter that is not part of the page token: it may differ on the next page.
    pub within: Option<Filter>,
    /// The order; resources with equal values are ordered by id.
    pub order: Vec<OrderKey>,
}

/// Where a page starts.
#[derive(Clone, Debug, PartialEq)]
pub enum PageStart {
    /// After this number of resources.
    Offset(u64),
    /// After the last resource of the previous page.
    After(PageKey),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ListPage {
    /// The ids, in the order of the list.
    pub ids: Vec<u32>,
    /// Length of the whole list.
    pub total: u64,
    /// Where the next page starts; none on the last page.
    pub next: Option<PageKey>,
}

/// A page of a list with the length of the whole list. Run it in a snapshot, so that both agree.
///
/// # Errors
/// The key belongs to another list, or the database cannot be reached.
pub async fn page(
    tx: &Tx,
    listing: &Listing,
    from: &PageStart,
    limit: u64,
) -> Result<ListPage, StoreError> {
    let query = Query::new(tx, listing)?;
    let start = query.start_point(from).ok_or_else(wrong_page_token)?;
    let page = query.page(tx, start, limit).await?;
    let next = page.positions.last().filter(|_| !page.is_last);
    Ok(ListPage {
        ids: page.positions.iter().map(|position| position.id).collect(),
        total: page.total,
        next: next.map(|position| query.page_key(position)),
    })
}

/// Whether a key belongs to this list.
///
/// # Errors
/// The list uses a field that is not stored.
pub fn key_matches(tx: &Tx, listing: &Listing, key: &PageKey) -> Result<bool, StoreError> {
    Ok(Query::new(tx, listing)?.position_of(key).is_some())
}

fn wrong_page_token() -> StoreError {
    let rule = "the page token belongs to another list".to_owned();
    Conflict::Rule { rule }.into()
}

/// The query plan of a forward page, for tests.
///
/// # Errors
/// The key belongs to another list, or the database cannot be reached.
#[cfg(feature = "testing")]
pub async fn explain(
    tx: &Tx,
    listing: &Listing,
    from: &PageStart,
    limit: u64,
) -> Result<String, StoreError> {
    let query = Query::new(tx, listing)?;
    let start = query.start_point(from).ok_or_else(wrong_page_token)?;
    let (sql, values) = query.statement(start, limit);
    let rows = crate::tx::query_all(tx.conn(), format!("EXPLAIN {sql}"), values).await?;
    let lines: Result<Vec<String>, _> = rows.iter().map(|row| row.try_get_by_index(0)).collect();
    Ok(lines?.join("\n"))
}

/// Length of a list.
pub async fn count(tx: &Tx, listing: &Listing) -> Result<u64, StoreError> {
    Query::new(tx, listing)?.count(tx).await
}

/// A statement that selects the ids of a list in no particular order, for use as a subquery, and
/// its values. The first value is the project.
///
/// # Errors
/// The list uses a field that is not stored.
pub(crate) fn ids_query(tx: &Tx, listing: &Listing) -> Result<(String, Vec<Value>), StoreError> {
    Ok(Query::new(tx, listing)?.unordered_statement())
}

/// Sorts items by the order of their ids. Ids without an item are skipped.
pub fn in_order<T>(ids: &[u32], items: Vec<T>, id: impl Fn(&T) -> u32) -> Vec<T> {
    let mut by_id: HashMap<u32, T> = items.into_iter().map(|item| (id(&item), item)).collect();
    ids.iter().filter_map(|id| by_id.remove(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_follow_the_order_of_the_ids() {
        let items = vec![(3, "c"), (1, "a"), (2, "b")];
        let ordered = in_order(&[2, 9, 3, 1], items, |(id, _)| *id);
        assert_eq!(ordered, [(2, "b"), (3, "c"), (1, "a")]);
    }
}
