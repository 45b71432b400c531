//! The bearer of a token.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Identity of the caller, according to the token of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WhoamiResource {
    /// Subject of the token: its claim `sub`.
    pub subject: String,
    /// Issuer of the token: its claim `iss`.
    pub issuer: String,
    /// ID of the token: its claim `jti`; empty if it is not a UUID.
    pub token_id: String,
    /// Name of a token for automation; empty for other tokens.
    pub token_name: String,
    /// Roles with the names of their projects, such as `operator@shops`. Roles in projects that do
    /// not exist are left out.
    pub roles: Vec<String>,
    /// Time at which the token expires.
    pub expires_at: DateTime<Utc>,
}

/// Result of a logout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LogoutResult {
    /// Whether the token is revoked. The server does not revoke tokens of identity providers.
    pub revoked: bool,
}
