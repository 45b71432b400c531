//! One change as the log has it.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use evenkeel_domain::Time;
use sea_orm::QueryResult;
use serde_json::Value;

use super::cursor::{InvalidCursor, parse_number};
use super::secrets::hide_secrets;
use crate::error::StoreError;
use crate::fields::RowReader;

/// Names a change of a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId {
    /// The transaction that made the change.
    pub xid: u64,
    /// The number of the change.
    pub seq: u64,
}

impl Display for ChangeId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.xid, self.seq)
    }
}

impl FromStr for ChangeId {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (xid, seq) = text.split_once('-').ok_or(InvalidCursor)?;
        Ok(Self { xid: parse_number(xid)?, seq: parse_number(seq)? })
    }
}

/// A change of a resource, with who made it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedChange {
    pub id: ChangeId,
    pub at: Time,
    /// The kind, as the triggers name it: `host`, `policy`, `update_order`.
    pub kind: String,
    /// The bits of the id of the object; 0 for objects that exist once per project.
    pub object: u32,
    /// `insert`, `update` or `delete`.
    pub operation: String,
    /// The level of the affected scope, such as `host`, if the log has it.
    pub level: Option<String>,
    /// None for changes of the server itself.
    pub actor: Option<String>,
    pub request_id: Option<String>,
    pub client_address: Option<String>,
    /// The row before the change, without secrets; none if the change has no actor, or the row is too
    /// long.
    pub before: Option<Value>,
    /// The row after the change; likewise.
    pub after: Option<Value>,
    /// Whether a row was left out because it is too long.
    pub is_cut: bool,
}

/// Longest row of a change that is read alone, in bytes as JSON.
pub(super) const MAX_ROW_BYTES: u32 = 1_048_576;

/// Longest row of one of many changes.
pub(super) const MAX_LISTED_ROW_BYTES: u32 = 16_384;

/// Columns of `change_log c`, as [`read_change`] reads them. Longer rows are left out.
pub(super) fn columns(max_row_bytes: u32) -> String {
    let row = |name: &str| {
        format!("CASE WHEN octet_length(c.{name}::text) <= {max_row_bytes} THEN c.{name} END")
    };
    let is_long =
        |name: &str| format!("coalesce(octet_length(c.{name}::text) > {max_row_bytes}, false)");
    format!(
        "c.xid::text::bigint, c.seq, c.at, c.kind, c.id, c.operation, c.scope_level, c.actor, \
         c.request_id, c.client_address, {}, {}, {} OR {}",
        row("before"),
        row("after"),
        is_long("before"),
        is_long("after")
    )
}

pub(super) fn read_change(row: &QueryResult) -> Result<RecordedChange, StoreError> {
    let mut row = RowReader::new(row);
    let id = ChangeId {
        xid: row.take::<i64>()?.cast_unsigned(),
        seq: row.take::<i64>()?.cast_unsigned(),
    };
    Ok(RecordedChange {
        id,
        at: row.take()?,
        kind: row.take()?,
        object: row.take::<i32>()?.cast_unsigned(),
        operation: row.take()?,
        level: row.take()?,
        actor: row.take()?,
        request_id: row.take()?,
        client_address: row.take()?,
        before: row.take::<Option<Value>>()?.map(hide_secrets),
        after: row.take::<Option<Value>>()?.map(hide_secrets),
        is_cut: row.take()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_change_is_read_as_it_was_written() {
        let id = ChangeId { xid: 0x1a2b, seq: 10 };
        assert_eq!(id.to_string(), "1a2b-a");
        assert_eq!("1a2b-a".parse(), Ok(id));
        for bad in ["", "1a2b", "1A2B-a", "-", "1a2b-a-1", "01-1"] {
            assert_eq!(bad.parse::<ChangeId>(), Err(InvalidCursor), "{bad}");
        }
    }
}
