//! Events that change no row of a table, in the change log.

use serde_json::Value;

use crate::error::StoreError;
use crate::tx::{Tx, execute};

/// What happened in a project without a change of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A request of a user was refused because the user lacks a role.
    Refusal,
}

impl EventKind {
    /// The name in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
        }
    }
}

/// Records an event of the user for whom the transaction was opened. The caller limits how many
/// events a user can cause.
pub async fn record_event(tx: &Tx, kind: EventKind, details: Value) -> Result<(), StoreError> {
    let sql = "INSERT INTO change_log (tenant_id, kind, id, operation, actor, request_id, after) \
               VALUES ($1, $2, 0, 'insert', nullif(current_setting('evenkeel.actor', true), ''), \
               nullif(current_setting('evenkeel.request', true), ''), $3)";
    let values = [tx.tenant().uuid().into(), kind.name().into(), details.into()];
    execute(tx.conn(), sql, values).await.map(drop)
}
