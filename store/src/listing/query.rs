//! The statements of a list.

use sea_orm::{QueryResult, Value};
use serde_json::Value as Json;

use super::condition;
use super::draft::{Draft, Level};
use super::key::{Key, mark};
use super::order::Order;
use super::{From, Listing};
use crate::error::StoreError;
use crate::tallies;
use crate::tx::{Tx, all, one};

/// A list in SQL.
#[derive(Debug)]
pub struct Query {
    rows: String,
    /// What the list has, without its order.
    whole: String,
    condition: String,
    /// Whether the condition looks for parts of texts or at other resources: no index answers it alone, and to look once is
    /// dear enough.
    looks_far: bool,
    values: Vec<Value>,
    id: String,
    order: Order,
    /// The kind under which the whole list is tallied, if it is.
    tally: Option<&'static str>,
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

/// Where a page begins: behind a place, if there is one, and after so many.
#[derive(Debug)]
pub struct Start {
    behind: Option<Vec<Value>>,
    offset: u64,
}

/// A page.
#[derive(Debug)]
pub struct Page {
    /// What stands on it, in the order of the list.
    pub places: Vec<Place>,
    /// How many the whole list has.
    pub total: u64,
    /// Whether nothing comes after it.
    pub is_last: bool,
}

impl Page {
    /// The first `limit` of these: one more says that something comes after them.
    fn cut(total: u64, mut places: Vec<Place>, limit: u64) -> Self {
        let is_last = u64::try_from(places.len()).is_ok_and(|found| found <= limit);
        if !is_last {
            places.pop();
        }
        Self {
            places,
            total,
            is_last,
        }
    }
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
        let asked = draft.unfolded(&condition);
        let asked = format!("{} {asked} {:?}", rows(&mut level), draft.values());
        if let Some(filter) = &listing.within {
            let written = condition::written(&mut draft, &mut level, filter)?;
            condition = format!("{condition} AND {written}");
        }
        let whole = rows(&mut level);
        let id = level.put(level.table.id);
        let order = Order::new(&mut level, &listing.order)?;
        let mark = mark(&format!("{asked} {}", order.clause()));
        let is_whole = listing.filter.is_none() && listing.within.is_none();
        Ok(Self {
            rows: rows(&mut level),
            whole,
            condition,
            looks_far: draft.looks_far(),
            tally: level.table.tally.filter(|_| is_whole),
            values: draft.into_values(),
            id,
            order,
            mark,
        })
    }

    /// How many there are.
    pub async fn count(&self, tx: &Tx) -> Result<u64, StoreError> {
        if let Some(kind) = self.tally {
            return tallies::sum(tx, kind).await;
        }
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

    /// A page that begins there and has at most so many. Beside a condition that looks far, it is one statement that counts as
    /// well; else an index serves each of the two.
    pub async fn page(&self, tx: &Tx, start: Start, limit: u64) -> Result<Page, StoreError> {
        let counted = if self.looks_far {
            None
        } else {
            Some(self.count(tx).await?)
        };
        if let Some(total) = counted
            && start.behind.is_none()
            && start.offset > total / 2
        {
            return self.backwards(tx, total, start.offset, limit).await;
        }
        let (sql, values) = self.statement(start, limit.saturating_add(1));
        let rows = all(tx.conn(), sql, values).await?;
        let (total, places) = match counted {
            Some(total) => (total, self.places(&rows)?),
            None => self.counted_places(&rows)?,
        };
        Ok(Page::cut(total, places, limit))
    }

    /// The statement that reads a page forwards, and its values.
    pub fn statement(&self, start: Start, limit: u64) -> (String, Vec<Value>) {
        if self.looks_far {
            self.counted_part(start, limit)
        } else {
            self.part(&self.order, start, limit)
        }
    }

    /// A page in the second half of a list, read from the end of the list: so no page passes over more than half of it. What
    /// was counted must still be so, which it is in a snapshot; pages are read in one.
    async fn backwards(
        &self,
        tx: &Tx,
        total: u64,
        offset: u64,
        limit: u64,
    ) -> Result<Page, StoreError> {
        let left = total.saturating_sub(offset);
        let taken = left.min(limit);
        let behind = left - taken;
        let mut places = Vec::new();
        if taken > 0 {
            let start = Start {
                behind: None,
                offset: behind,
            };
            let (sql, values) = self.part(&self.order.reversed(), start, taken);
            places = self.places(&all(tx.conn(), sql, values).await?)?;
            places.reverse();
        }
        Ok(Page {
            places,
            total,
            is_last: behind == 0,
        })
    }

    /// The statement for a part of the list in this order, and its values.
    fn part(&self, order: &Order, start: Start, limit: u64) -> (String, Vec<Value>) {
        let mut draft = Draft::from_values(self.values.clone());
        let mut condition = self.condition.clone();
        if let Some(behind) = start.behind {
            condition = format!("{condition} AND {}", order.behind(&mut draft, behind));
        }
        let [limit, offset] = [limit, start.offset].map(|n| draft.bind(in_sql(n)));
        let sql = format!(
            "SELECT {}, {} FROM {} WHERE {condition} ORDER BY {} LIMIT {limit} OFFSET {offset}",
            self.id,
            order.selected(),
            self.rows,
            order.clause(),
        );
        (sql, draft.into_values())
    }

    /// The statement for a part of the list, each row behind how many the whole list has, and its values. What fits is found
    /// once and kept for both. A part with nothing in it is one row without a place.
    fn counted_part(&self, start: Start, limit: u64) -> (String, Vec<Value>) {
        let mut draft = Draft::from_values(self.values.clone());
        let [found, page] = ["found", "page"].map(|rows| self.order.of_selected(rows));
        let behind = match start.behind {
            Some(behind) => format!(" WHERE {}", found.behind(&mut draft, behind)),
            None => String::new(),
        };
        let [limit, offset] = [limit, start.offset].map(|n| draft.bind(in_sql(n)));
        let sql = format!(
            "WITH found AS MATERIALIZED (SELECT {} AS id, {} FROM {} WHERE {}) \
             SELECT whole.n, page.* FROM (SELECT count(*) AS n FROM found) whole \
             LEFT JOIN (SELECT * FROM found{behind} ORDER BY {} LIMIT {limit} OFFSET {offset}) page ON TRUE \
             ORDER BY {}",
            self.id,
            self.order.selected(),
            self.rows,
            self.condition,
            found.clause(),
            page.clause(),
        );
        (sql, draft.into_values())
    }

    /// The places of the rows of a [`part`](Self::part).
    fn places(&self, rows: &[QueryResult]) -> Result<Vec<Place>, StoreError> {
        rows.iter().map(|row| self.place(row, 0)).collect()
    }

    /// How many the whole list has, and the places of the rows of a [`counted_part`](Self::counted_part).
    fn counted_places(&self, rows: &[QueryResult]) -> Result<(u64, Vec<Place>), StoreError> {
        let (mut total, mut places) = (0, Vec::with_capacity(rows.len()));
        for row in rows {
            total = row.try_get_by_index::<i64>(0)?.cast_unsigned();
            if row.try_get_by_index::<Option<i32>>(1)?.is_some() {
                places.push(self.place(row, 1)?);
            }
        }
        Ok((total, places))
    }

    /// The place of a row; its id is the column `first`, and what it is ordered by comes next.
    fn place(&self, row: &QueryResult, first: usize) -> Result<Place, StoreError> {
        Ok(Place {
            id: row.try_get_by_index::<i32>(first)?.cast_unsigned(),
            ordered_by: self.order.place(row, first + 1)?,
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

    /// Where a page begins; none if its key is of another list.
    pub fn start(&self, from: &From) -> Option<Start> {
        let (behind, offset) = match from {
            From::Offset(offset) => (None, *offset),
            From::After(key) => (Some(self.place_of(key)?), 0),
        };
        Some(Start { behind, offset })
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
