//! The statements of a list.

use sea_orm::{QueryResult, Value};
use serde_json::Value as Json;

use super::condition;
use super::draft::{Draft, Level};
use super::key::{Key, mark};
use super::order::Order;
use super::{From, Listing};
use crate::error::StoreError;
use crate::tx::{Tx, all, one};

/// A list in SQL.
#[derive(Debug)]
pub struct Query {
    rows: String,
    /// What the list has, without its order.
    whole: String,
    condition: String,
    values: Vec<Value>,
    id: String,
    order: Order,
    /// What tells this list from others: what is asked for and how it is ordered.
    mark: String,
}

/// Where a resource stands in a list.
#[derive(Debug)]
pub struct Place {
    /// Its id.
    pub id: u32,
    ordered_by: Vec<Json>,
}

impl Query {
    /// Writes a list in SQL.
    pub fn new(tx: &Tx, listing: &Listing) -> Result<Self, StoreError> {
        let mut draft = Draft::new(tx.tenant().uuid());
        let mut level = draft.level(listing.resource);
        let mut condition = level.put(level.table.tenant);
        if let Some(filter) = &listing.filter {
            let written = condition::written(&mut draft, &mut level, filter)?;
            condition = format!("{condition} AND {written}");
        }
        let asked = format!("{} {condition} {:?}", rows(&mut level), draft.values());
        if let Some(filter) = &listing.within {
            let written = condition::written(&mut draft, &mut level, filter)?;
            condition = format!("{condition} AND {written}");
        }
        let whole = rows(&mut level);
        let id = level.put(level.table.id);
        let order = Order::new(&mut level, &listing.order)?;
        let mark = mark(&format!("{asked} {}", order.clause()));
        Ok(Self {
            rows: rows(&mut level),
            whole,
            condition,
            values: draft.into_values(),
            id,
            order,
            mark,
        })
    }

    /// How many there are.
    pub async fn count(&self, tx: &Tx) -> Result<u64, StoreError> {
        let sql = format!(
            "SELECT count(*) FROM {} WHERE {}",
            self.whole, self.condition
        );
        let row = one(tx.conn(), sql, self.values.clone()).await?;
        let count: i64 = match row {
            Some(row) => row.try_get_by_index(0)?,
            None => 0,
        };
        Ok(count.cast_unsigned())
    }

    /// Where those stand that come after a place and after so many, at most `limit`.
    pub async fn places(
        &self,
        tx: &Tx,
        after: Option<Vec<Value>>,
        offset: u64,
        limit: u64,
    ) -> Result<Vec<Place>, StoreError> {
        let (sql, values) = self.page(after, offset, limit);
        let found = all(tx.conn(), sql, values).await?;
        found.iter().map(|row| self.place(row)).collect()
    }

    /// The statement for [`places`](Self::places), and its values.
    pub fn page(&self, after: Option<Vec<Value>>, offset: u64, limit: u64) -> (String, Vec<Value>) {
        let mut draft = Draft::from_values(self.values.clone());
        let mut condition = self.condition.clone();
        if let Some(after) = after {
            condition = format!("{condition} AND {}", self.order.behind(&mut draft, after));
        }
        let [limit, offset] = [limit, offset].map(|n| draft.bind(in_sql(n)));
        let sql = format!(
            "SELECT {}, {} FROM {} WHERE {condition} ORDER BY {} LIMIT {limit} OFFSET {offset}",
            self.id,
            self.order.selected(),
            self.rows,
            self.order.clause(),
        );
        (sql, draft.into_values())
    }

    fn place(&self, row: &QueryResult) -> Result<Place, StoreError> {
        Ok(Place {
            id: row.try_get_by_index::<i32>(0)?.cast_unsigned(),
            ordered_by: self.order.place(row, 1)?,
        })
    }

    /// The statement that gives the ids in order, after so many, and its values.
    pub fn ids(&self, offset: u64) -> (String, Vec<Value>) {
        let mut draft = Draft::from_values(self.values.clone());
        let offset = draft.bind(in_sql(offset));
        let sql = format!(
            "SELECT {} AS id FROM {} WHERE {} ORDER BY {} OFFSET {offset}",
            self.id,
            self.rows,
            self.condition,
            self.order.clause(),
        );
        (sql, draft.into_values())
    }

    /// The statement that gives the ids in no order, and its values: the first one is the project.
    pub fn unordered(self) -> (String, Vec<Value>) {
        let sql = format!(
            "SELECT {} FROM {} WHERE {}",
            self.id, self.whole, self.condition
        );
        (sql, self.values)
    }

    /// The values of a place that a key names, if the key is of this list.
    pub fn place_of(&self, key: &Key) -> Option<Vec<Value>> {
        self.order.values(key.values(&self.mark)?)
    }

    /// Behind which place and how many a page begins; none if its key is of another list.
    pub fn start(&self, from: &From) -> Option<(Option<Vec<Value>>, u64)> {
        match from {
            From::Offset(offset) => Some((None, *offset)),
            From::After(key) => Some((Some(self.place_of(key)?), 0)),
        }
    }

    /// The key of a place.
    pub fn key_of(&self, place: &Place) -> Key {
        Key::new(&self.mark, &place.ordered_by)
    }
}

fn rows(level: &mut Level) -> String {
    let rows = level.put(level.table.rows);
    format!("{rows}{}", level.joined())
}

/// No list is longer than a number of the database.
fn in_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
