//! Reads changes of a project.

use evenkeel_domain::Time;
use sea_orm::Value;

use super::cursor::{ChangeCursor, project_mark};
use super::recorded::{
    ChangeId, MAX_LISTED_ROW_BYTES, MAX_ROW_BYTES, RecordedChange, columns, read_change,
};
use crate::error::StoreError;
use crate::tx::{Tx, query_all, query_one};

/// Largest number of objects in a filter.
pub const MAX_OBJECTS: usize = 10;

/// Which changes are read. The default is all changes of users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeFilter {
    /// Only changes of this actor.
    pub actor: Option<String>,
    /// Only changes of this kind, as the triggers name it.
    pub kind: Option<String>,
    /// Only changes of one of these objects; of all objects if it is empty.
    pub objects: Vec<ChangeObject>,
    /// Only changes at this time or later.
    pub since: Option<Time>,
    /// Only changes before this time.
    pub until: Option<Time>,
    /// Changes of the server itself as well, which have no actor.
    pub with_server: bool,
}

/// An object whose changes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeObject {
    /// Kinds of changes whose id is that of the object.
    pub kinds: &'static [&'static str],
    /// The level of scopes that name the object, such as `site`; none if no scope can.
    pub level: Option<&'static str>,
    /// The bits of its id.
    pub id: u32,
}

/// Kinds of changes whose id is that of a scope.
const KINDS_BY_SCOPE: &str = "'assignment', 'slot', 'pause'";

/// SQL text with its parameters.
struct SqlText {
    text: String,
    values: Vec<Value>,
}

impl SqlText {
    /// Adds a parameter and returns how the text refers to it.
    fn parameter(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// Adds a condition.
    fn and(&mut self, condition: &str) {
        self.text.push_str(" AND ");
        self.text.push_str(condition);
    }
}

/// Selects the changes of the project that match the filter, without an order.
fn select(tx: &Tx, filter: &ChangeFilter) -> SqlText {
    let columns = columns(MAX_LISTED_ROW_BYTES);
    let text = format!("SELECT {columns} FROM change_log c WHERE c.tenant_id = $1");
    let mut sql = SqlText { text, values: vec![tx.tenant().uuid().into()] };
    // Named even if a certain actor is requested: only then the database uses the index of changes
    // of users.
    if !filter.with_server || filter.actor.is_some() {
        sql.and("c.actor IS NOT NULL");
    }
    if let Some(actor) = &filter.actor {
        let actor = sql.parameter(actor.clone());
        sql.and(&format!("c.actor = {actor}"));
    }
    if let Some(kind) = &filter.kind {
        let kind = sql.parameter(kind.clone());
        sql.and(&format!("c.kind = {kind}"));
    }
    if let Some(since) = filter.since {
        let since = sql.parameter(since);
        sql.and(&format!("c.at >= {since}"));
    }
    if let Some(until) = filter.until {
        let until = sql.parameter(until);
        sql.and(&format!("c.at < {until}"));
    }
    if !filter.objects.is_empty() {
        let conditions: Vec<String> =
            filter.objects.iter().map(|object| object_condition(&mut sql, object)).collect();
        sql.and(&format!("({})", conditions.join(" OR ")));
    }
    sql
}

fn object_condition(sql: &mut SqlText, object: &ChangeObject) -> String {
    let id = sql.parameter(object.id.cast_signed());
    let kinds: Vec<String> = object.kinds.iter().map(|kind| (*kind).to_owned()).collect();
    let kinds = sql.parameter(kinds);
    let by_kind = format!("c.kind = ANY ({kinds}::text[])");
    match object.level {
        None => format!("(c.id = {id} AND {by_kind})"),
        Some(level) => {
            let level = sql.parameter(level.to_owned());
            format!(
                "(c.id = {id} AND ({by_kind} OR (c.kind IN ({KINDS_BY_SCOPE}) AND c.scope_level = {level})))"
            )
        }
    }
}

/// At most `limit` changes before a cursor, newest first; without a cursor, the newest ones.
pub async fn list(
    tx: &Tx,
    filter: &ChangeFilter,
    before: Option<&ChangeCursor>,
    limit: u32,
) -> Result<Vec<RecordedChange>, StoreError> {
    let mut sql = select(tx, filter);
    if let Some(before) = before {
        let (xid, seq) = position(&mut sql, before);
        sql.and(&format!("(c.xid, c.seq) < ({xid}, {seq})"));
    }
    let SqlText { text, values } = sql;
    let text = format!("{text} ORDER BY c.xid DESC, c.seq DESC LIMIT {limit}");
    let rows = query_all(tx.conn(), text, values).await?;
    rows.iter().map(read_change).collect()
}

/// At most `limit` changes after a cursor, oldest first, of transactions below `end`: every
/// transaction below it must have ended (see [`crate::log::Tail::durable_end`]). Then no later call
/// finds a change before one of these.
pub async fn read_after(
    tx: &Tx,
    filter: &ChangeFilter,
    after: &ChangeCursor,
    end: u64,
    limit: u32,
) -> Result<Vec<RecordedChange>, StoreError> {
    let mut sql = select(tx, filter);
    let (xid, seq) = position(&mut sql, after);
    let end = sql.parameter(end.cast_signed());
    sql.and(&format!("(c.xid, c.seq) > ({xid}, {seq}) AND c.xid < {end}::bigint::text::xid8"));
    let SqlText { text, values } = sql;
    let text = format!("{text} ORDER BY c.xid, c.seq LIMIT {limit}");
    let rows = query_all(tx.conn(), text, values).await?;
    rows.iter().map(read_change).collect()
}

/// The parameters of a position, for a comparison with `(c.xid, c.seq)`.
fn position(sql: &mut SqlText, cursor: &ChangeCursor) -> (String, String) {
    let xid = sql.parameter(cursor.xid.cast_signed());
    let seq = sql.parameter(cursor.seq.cast_signed());
    (format!("{xid}::bigint::text::xid8"), seq)
}

/// One change.
///
/// # Errors
/// The log has no such change of the project, or no longer.
pub async fn find(tx: &Tx, id: ChangeId) -> Result<RecordedChange, StoreError> {
    let sql = format!(
        "SELECT {} FROM change_log c WHERE c.tenant_id = $1 AND c.xid = $2::bigint::text::xid8 AND c.seq = $3",
        columns(MAX_ROW_BYTES)
    );
    let values =
        [tx.tenant().uuid().into(), id.xid.cast_signed().into(), id.seq.cast_signed().into()];
    let row = query_one(tx.conn(), sql, values).await?;
    read_change(&row.ok_or(StoreError::NotFound { what: "change" })?)
}

/// Condition on `change_log c`: every transaction up to that of the row has ended. Ids of other
/// databases make it stricter than necessary.
const IS_SETTLED: &str = "c.xid < pg_snapshot_xmin(pg_current_snapshot())";

/// A cursor such that a list of the same snapshot contains every change before it. Later reads after
/// the cursor contain the others, and possibly some that the list contains as well.
///
/// It is the position of a row, because the ids of transactions that wrote nothing may be assigned
/// again after a crash of the database.
pub async fn current_cursor(tx: &Tx) -> Result<ChangeCursor, StoreError> {
    let sql = format!(
        "SELECT coalesce((SELECT d.epoch FROM database_identity d), 0), s.epoch, \
         greatest(l.xid, s.floor_xid)::text::bigint, \
         CASE WHEN l.xid > s.floor_xid THEN l.seq WHEN l.xid = s.floor_xid THEN greatest(l.seq, s.floor_seq) \
         ELSE s.floor_seq END \
         FROM log_state s LEFT JOIN LATERAL (SELECT c.xid, c.seq FROM change_log c \
         WHERE c.tenant_id = $1 AND {IS_SETTLED} ORDER BY c.xid DESC, c.seq DESC LIMIT 1) l ON true"
    );
    let row = query_one(tx.conn(), sql, [tx.tenant().uuid().into()]).await?;
    let row = row.ok_or(StoreError::NotFound { what: "change log" })?;
    Ok(ChangeCursor {
        project: project_mark(tx.tenant()),
        database_epoch: row.try_get_by_index::<i32>(0)?.cast_unsigned(),
        log_epoch: row.try_get_by_index::<i32>(1)?.cast_unsigned(),
        xid: row.try_get_by_index::<i64>(2)?.cast_unsigned(),
        seq: row.try_get_by_index::<i64>(3)?.cast_unsigned(),
    })
}

/// Whether changes after a cursor may be missing: rows behind it were pruned or removed, it comes
/// from another project or another database, or the database has lost changes since. In a snapshot,
/// the answer also holds for what [`read_after`] returns.
pub async fn has_expired(tx: &Tx, cursor: &ChangeCursor) -> Result<bool, StoreError> {
    if !cursor.is_of(tx.tenant()) {
        return Ok(true);
    }
    let sql = "SELECT coalesce((SELECT d.epoch FROM database_identity d), 0) = $4 AND s.epoch = $5 \
               AND (s.floor_xid, s.floor_seq) <= ($2::bigint::text::xid8, $3) \
               AND $2::bigint::text::xid8 <= pg_snapshot_xmax(pg_current_snapshot()) \
               AND ($3 = 0 OR (s.floor_xid, s.floor_seq) = ($2::bigint::text::xid8, $3) \
               OR EXISTS (SELECT FROM change_log c WHERE c.tenant_id = $1 \
               AND c.xid = $2::bigint::text::xid8 AND c.seq = $3)) FROM log_state s";
    let values = [
        tx.tenant().uuid().into(),
        cursor.xid.cast_signed().into(),
        cursor.seq.cast_signed().into(),
        cursor.database_epoch.cast_signed().into(),
        cursor.log_epoch.cast_signed().into(),
    ];
    let row = query_one(tx.conn(), sql, values).await?;
    let is_valid: Option<bool> = row.map(|row| row.try_get_by_index(0)).transpose()?;
    Ok(is_valid != Some(true))
}
