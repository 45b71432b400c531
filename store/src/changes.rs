//! The change log as people and programs read it: who changed what in a project, newest first, and
//! from a position on.

mod cursor;
mod events;
mod query;
mod recorded;
mod secrets;

use evenkeel_domain::Time;
use sea_orm::{ColumnTrait, QueryFilter, QueryOrder};
use serde_json::Value;

use crate::error::StoreError;
use crate::rows::change::{Column, Entity};
use crate::tx::Tx;

pub use cursor::{ChangeCursor, InvalidCursor};
pub use events::{EventKind, record_event, record_fleet_event};
pub use query::{
    ChangeFilter, ChangeObject, MAX_OBJECTS, current_cursor, find, has_expired, list, read_after,
};
pub use recorded::{ChangeId, RecordedChange};

#[derive(Clone, Debug, PartialEq)]
pub struct ResourceChange {
    pub at: Time,
    /// `insert`, `update` or `delete`.
    pub operation: String,
    /// Who made the change; none for changes that the server makes on its own.
    pub actor: Option<String>,
    /// Id of the request that made the change.
    pub request_id: Option<String>,
    /// The row before the change; only if the change has an actor.
    pub before: Option<Value>,
    /// The row after the change; only if the change has an actor.
    pub after: Option<Value>,
}

/// The changes of one resource, oldest first. `kind` is the name in the migrations, such as `host`
/// or `policy`.
pub async fn list_for_resource(
    tx: &Tx,
    kind: &str,
    id: u32,
) -> Result<Vec<ResourceChange>, StoreError> {
    let rows = tx
        .scope::<Entity>()
        .filter(Column::Kind.eq(kind))
        .filter(Column::Id.eq(id.cast_signed()))
        .order_by_asc(Column::Seq)
        .all(tx.conn())
        .await?;
    let change = |row: crate::rows::change::Model| ResourceChange {
        at: row.at,
        operation: row.operation,
        actor: row.actor,
        request_id: row.request_id,
        before: row.before,
        after: row.after,
    };
    Ok(rows.into_iter().map(change).collect())
}
