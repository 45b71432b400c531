//! The SQL statements of a list.

use sea_orm::{QueryResult, Value};
use serde_json::Value as Json;

use super::condition;
use super::key::{PageKey, list_fingerprint};
use super::order::SortOrder;
use super::sql_builder::{Level, SqlBuilder};
use super::{Listing, PageStart};
use crate::error::StoreError;
use crate::tallies;
use crate::tx::{Tx, query_all, query_one};

/// A list in SQL.
#[derive(Debug)]
pub struct Query {
    from_clause: String,
    /// The `FROM` clause without the tables that only the order needs.
    unordered_from_clause: String,
    condition: String,
    /// Whether the condition searches in texts or reads other resources. No index answers it alone,
    /// and a single pass is expensive enough.
    is_wide_search: bool,
    values: Vec<Value>,
    id: String,
    order: SortOrder,
    /// The kind under which the length of the whole list is tallied, if it is.
    tally: Option<&'static str>,
    /// The fingerprint of the filter and the order, which tells this list from others.
    fingerprint: String,
}

/// The position of a resource in a list.
#[derive(Debug)]
pub struct ResourcePosition {
    pub id: u32,
    order_values: Vec<Json>,
}

/// Where a page starts: after a position, if there is one, and after `offset` further resources.
#[derive(Debug)]
pub struct StartPoint {
    after: Option<Vec<Value>>,
    offset: u64,
}

/// A page of positions.
#[derive(Debug)]
pub struct Page {
    /// The positions in the order of the list.
    pub positions: Vec<ResourcePosition>,
    /// Length of the whole list.
    pub total: u64,
    pub is_last: bool,
}

impl Page {
    /// The first `limit` positions. One more than `limit` means that more pages follow.
    fn trim(total: u64, mut positions: Vec<ResourcePosition>, limit: u64) -> Self {
        let is_last = u64::try_from(positions.len()).is_ok_and(|count| count <= limit);
        if !is_last {
            positions.pop();
        }
        Self { positions, total, is_last }
    }
}

impl Query {
    /// Builds the SQL of a list.
    pub fn new(tx: &Tx, listing: &Listing) -> Result<Self, StoreError> {
        let mut builder = SqlBuilder::new(tx.tenant().uuid());
        let mut level = builder.add_table(listing.resource);
        let mut condition = level.resolve(level.table.tenant);
        if let Some(filter) = &listing.filter {
            let filter_sql = condition::filter_sql(&mut builder, &mut level, filter)?;
            condition = format!("{condition} AND {filter_sql}");
        }
        let identity = builder.unfolded(&condition);
        let identity = format!("{} {identity} {:?}", from_clause(&mut level), builder.values());
        if let Some(filter) = &listing.within {
            let filter_sql = condition::filter_sql(&mut builder, &mut level, filter)?;
            condition = format!("{condition} AND {filter_sql}");
        }
        let unordered_from_clause = from_clause(&mut level);
        let id = level.resolve(level.table.id);
        let order = SortOrder::new(&mut level, &listing.order)?;
        let mark = list_fingerprint(&format!("{identity} {}", order.order_by()));
        let is_whole = listing.filter.is_none() && listing.within.is_none();
        Ok(Self {
            from_clause: from_clause(&mut level),
            unordered_from_clause,
            condition,
            is_wide_search: builder.is_wide_search(),
            tally: level.table.tally.filter(|_| is_whole),
            values: builder.into_values(),
            id,
            order,
            fingerprint: mark,
        })
    }

    /// Length of the list.
    pub async fn count(&self, tx: &Tx) -> Result<u64, StoreError> {
        if let Some(kind) = self.tally {
            return tallies::sum(tx, kind).await;
        }
        let sql =
            format!("SELECT count(*) FROM {} WHERE {}", self.unordered_from_clause, self.condition);
        let row = query_one(tx.conn(), sql, self.values.clone()).await?;
        let count: i64 = match row {
            Some(row) => row.try_get_by_index(0)?,
            None => 0,
        };
        Ok(count.cast_unsigned())
    }

    /// A page of at most `limit` resources. With a wide search, one statement reads and counts;
    /// otherwise an index serves each of the two statements.
    pub async fn page(&self, tx: &Tx, start: StartPoint, limit: u64) -> Result<Page, StoreError> {
        let counted_total = if self.is_wide_search { None } else { Some(self.count(tx).await?) };
        if let Some(total) = counted_total
            && start.after.is_none()
            && start.offset > total / 2
        {
            return self.page_from_end(tx, total, start.offset, limit).await;
        }
        let (sql, values) = self.statement(start, limit.saturating_add(1));
        let rows = query_all(tx.conn(), sql, values).await?;
        let (total, positions) = match counted_total {
            Some(total) => (total, self.positions(&rows)?),
            None => self.counted_positions(&rows)?,
        };
        Ok(Page::trim(total, positions, limit))
    }

    /// The statement that reads a page forwards, and its values.
    pub fn statement(&self, start: StartPoint, limit: u64) -> (String, Vec<Value>) {
        if self.is_wide_search {
            self.counted_statement(start, limit)
        } else {
            self.part_statement(&self.order, start, limit)
        }
    }

    /// A page in the second half of a list, read from its end, so that no page skips more than half
    /// of the list. The count must still be valid, so pages are read in a snapshot.
    async fn page_from_end(
        &self,
        tx: &Tx,
        total: u64,
        offset: u64,
        limit: u64,
    ) -> Result<Page, StoreError> {
        let remaining = total.saturating_sub(offset);
        let count = remaining.min(limit);
        let behind = remaining - count;
        let mut positions = Vec::new();
        if count > 0 {
            let start = StartPoint { after: None, offset: behind };
            let (sql, values) = self.part_statement(&self.order.reversed(), start, count);
            positions = self.positions(&query_all(tx.conn(), sql, values).await?)?;
            positions.reverse();
        }
        Ok(Page { positions, total, is_last: behind == 0 })
    }

    /// The statement for a part of the list in this order, and its values.
    fn part_statement(
        &self,
        order: &SortOrder,
        start: StartPoint,
        limit: u64,
    ) -> (String, Vec<Value>) {
        let mut builder = SqlBuilder::from_values(self.values.clone());
        let mut condition = self.condition.clone();
        if let Some(behind) = start.after {
            condition = format!("{condition} AND {}", order.after_position(&mut builder, behind));
        }
        let [limit, offset] = [limit, start.offset].map(|n| builder.bind(as_bigint(n)));
        let sql = format!(
            "SELECT {}, {} FROM {} WHERE {condition} ORDER BY {} LIMIT {limit} OFFSET {offset}",
            self.id,
            order.select_list(),
            self.from_clause,
            order.order_by(),
        );
        (sql, builder.into_values())
    }

    /// The statement for a part of the list, with the total length in the first column of each row,
    /// and its values. The matching rows are found once and used for both. An empty part is one row
    /// without a position.
    fn counted_statement(&self, start: StartPoint, limit: u64) -> (String, Vec<Value>) {
        let mut builder = SqlBuilder::from_values(self.values.clone());
        let [matches, page] = ["found", "page"].map(|rows| self.order.for_selection(rows));
        let behind = match start.after {
            Some(behind) => format!(" WHERE {}", matches.after_position(&mut builder, behind)),
            None => String::new(),
        };
        let [limit, offset] = [limit, start.offset].map(|n| builder.bind(as_bigint(n)));
        let sql = format!(
            "WITH found AS MATERIALIZED (SELECT {} AS id, {} FROM {} WHERE {}) \
             SELECT whole.n, page.* FROM (SELECT count(*) AS n FROM found) whole \
             LEFT JOIN (SELECT * FROM found{behind} ORDER BY {} LIMIT {limit} OFFSET {offset}) page ON TRUE \
             ORDER BY {}",
            self.id,
            self.order.select_list(),
            self.from_clause,
            self.condition,
            matches.order_by(),
            page.order_by(),
        );
        (sql, builder.into_values())
    }

    /// The positions of the rows of a [`part_statement`](Self::part_statement).
    fn positions(&self, rows: &[QueryResult]) -> Result<Vec<ResourcePosition>, StoreError> {
        rows.iter().map(|row| self.position(row, 0)).collect()
    }

    /// The length of the list and the positions of the rows of a
    /// [`counted_statement`](Self::counted_statement).
    fn counted_positions(
        &self,
        rows: &[QueryResult],
    ) -> Result<(u64, Vec<ResourcePosition>), StoreError> {
        let (mut total, mut positions) = (0, Vec::with_capacity(rows.len()));
        for row in rows {
            total = row.try_get_by_index::<i64>(0)?.cast_unsigned();
            if row.try_get_by_index::<Option<i32>>(1)?.is_some() {
                positions.push(self.position(row, 1)?);
            }
        }
        Ok((total, positions))
    }

    /// The position of a row: its id is in column `first`, followed by its order values.
    fn position(&self, row: &QueryResult, first: usize) -> Result<ResourcePosition, StoreError> {
        Ok(ResourcePosition {
            id: row.try_get_by_index::<i32>(first)?.cast_unsigned(),
            order_values: self.order.position(row, first + 1)?,
        })
    }

    /// The statement that selects the ids in order after `offset` resources, and its values.
    pub fn ids_statement(&self, offset: u64) -> (String, Vec<Value>) {
        let mut builder = SqlBuilder::from_values(self.values.clone());
        let offset = builder.bind(as_bigint(offset));
        let sql = format!(
            "SELECT {} AS id FROM {} WHERE {} ORDER BY {} OFFSET {offset}",
            self.id,
            self.from_clause,
            self.condition,
            self.order.order_by(),
        );
        (sql, builder.into_values())
    }

    /// The statement that selects the ids in no particular order, and its values. The first value
    /// is the project.
    pub fn unordered_statement(self) -> (String, Vec<Value>) {
        let sql = format!(
            "SELECT {} FROM {} WHERE {}",
            self.id, self.unordered_from_clause, self.condition
        );
        (sql, self.values)
    }

    /// The position values of a page key, if the key belongs to this list.
    pub fn position_of(&self, key: &PageKey) -> Option<Vec<Value>> {
        self.order.position_values(key.values(&self.fingerprint)?)
    }

    /// Where a page starts; none if its key belongs to another list.
    pub fn start_point(&self, from: &PageStart) -> Option<StartPoint> {
        let (behind, offset) = match from {
            PageStart::Offset(offset) => (None, *offset),
            PageStart::After(key) => (Some(self.position_of(key)?), 0),
        };
        Some(StartPoint { after: behind, offset })
    }

    pub fn page_key(&self, position: &ResourcePosition) -> PageKey {
        PageKey::new(&self.fingerprint, &position.order_values)
    }
}

fn from_clause(level: &mut Level) -> String {
    let rows = level.resolve(level.table.rows);
    format!("{rows}{}", level.join_clause())
}

/// No list is longer than a `bigint`.
fn as_bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
