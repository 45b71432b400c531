//! The change log: every change of a resource, in the transaction that made it.

use evenkeel_domain::Time;
use sea_orm::{ColumnTrait, QueryFilter, QueryOrder};
use serde_json::Value;

use crate::error::StoreError;
use crate::rows::change::{Column, Entity};
use crate::tx::Tx;

/// One change of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// When it was made.
    pub at: Time,
    /// `insert`, `update` or `delete`.
    pub operation: String,
    /// Who made it; none if the program did by itself.
    pub actor: Option<String>,
    /// The request that it came with.
    pub request_id: Option<String>,
    /// The row before, if somebody made the change.
    pub before: Option<Value>,
    /// The row after, if somebody made the change.
    pub after: Option<Value>,
}

/// The changes of one resource, oldest first. Kinds are those of the migrations, such as `host` or `policy`.
///
/// # Errors
/// The database cannot be reached.
pub async fn of(tx: &Tx, kind: &str, id: u32) -> Result<Vec<Change>, StoreError> {
    let rows = tx
        .scope::<Entity>()
        .filter(Column::Kind.eq(kind))
        .filter(Column::Id.eq(id.cast_signed()))
        .order_by_asc(Column::Seq)
        .all(tx.conn())
        .await?;
    let change = |row: crate::rows::change::Model| Change {
        at: row.at,
        operation: row.operation,
        actor: row.actor,
        request_id: row.request_id,
        before: row.before,
        after: row.after,
    };
    Ok(rows.into_iter().map(change).collect())
}
