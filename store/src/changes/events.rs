//! Events that change no row of a table, in the change log.

use evenkeel_domain::tenant::TenantId;
use sea_orm::ConnectionTrait;
use serde_json::Value;

use crate::error::StoreError;
use crate::tx::{FleetTx, Tx, execute};

/// What happened without a change of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A request of a user was refused because the user lacks a role.
    Refusal,
    /// A user logged in with a password.
    Login,
    /// A login with a password was refused.
    LoginFailure,
    /// All tokens of a subject were revoked.
    SubjectRevocation,
    /// The password of a user was changed. The row of the user does not show it: it has no hash.
    PasswordChange,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Refusal,
        Self::Login,
        Self::LoginFailure,
        Self::SubjectRevocation,
        Self::PasswordChange,
    ];

    /// The name in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refusal => "refusal",
            Self::Login => "login",
            Self::LoginFailure => "login_failure",
            Self::SubjectRevocation => "subject_revocation",
            Self::PasswordChange => "password_change",
        }
    }
}

/// Records an event of the user for whom the transaction was opened. The caller limits how many
/// events a user can cause.
pub async fn record_event(tx: &Tx, kind: EventKind, details: Value) -> Result<(), StoreError> {
    insert(tx.conn(), tx.tenant(), kind, details).await
}

/// Records an event that belongs to no project, as [`record_event`].
pub async fn record_fleet_event(
    tx: &FleetTx,
    kind: EventKind,
    details: Value,
) -> Result<(), StoreError> {
    insert(tx.conn(), TenantId::NO_PROJECT, kind, details).await
}

async fn insert(
    db: &impl ConnectionTrait,
    tenant: TenantId,
    kind: EventKind,
    details: Value,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO change_log (tenant_id, kind, id, operation, actor, request_id, after) \
               VALUES ($1, $2, 0, 'insert', nullif(current_setting('evenkeel.actor', true), ''), \
               nullif(current_setting('evenkeel.request', true), ''), $3)";
    let values = [tenant.uuid().into(), kind.name().into(), details.into()];
    execute(db, sql, values).await.map(drop)
}
