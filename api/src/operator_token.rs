//! Tokens of operators for the REST API.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// Token that the server issued to a person or a program. The server does not store the token
/// itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorTokenResource {
    /// ID of the token: its claim `jti`.
    pub token_id: String,
    /// Subject of the token: its claim `sub`.
    pub subject: String,
    /// Name of a token for automation; empty for other tokens.
    pub name: String,
    /// Name of the project of a token for automation; empty for other tokens, and if the project was
    /// deleted.
    pub project: String,
    /// Roles of the token.
    pub roles: Vec<String>,
    /// Roles of the token with the names of their projects, such as `operator@shops`. Roles in
    /// deleted projects are left out.
    pub named_roles: Vec<String>,
    /// Time at which the token was issued.
    pub issued_at: DateTime<Utc>,
    /// Time at which the token expires.
    pub expires_at: DateTime<Utc>,
    /// Time of the revocation; null if the token is not revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// Name of the administrator who revoked the token; empty if the token is not revoked.
    pub revoked_by: String,
    /// Time of the last use of a token for automation, about one minute exact; null if it was never
    /// used, and for other tokens.
    pub last_used_at: Option<DateTime<Utc>>,
    /// The token. Returned only when the token is created; the server does not store it.
    pub token: Option<String>,
}

/// Token for automation to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OperatorTokenInput {
    /// Name: at most 50 letters, digits, spaces and `-_./:`. No two valid tokens of a project have
    /// the same name.
    #[schema(min_length = 1, max_length = 50, pattern = "^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// Role in the project: `viewer`, `operator`, `approver` or `administrator`.
    pub role: String,
    /// Lifetime in seconds, by the server's clock; default 7776000 (90 days), at most 31536000 (1
    /// year).
    #[serde(default = "default_lifetime_seconds")]
    #[schema(minimum = 1, maximum = 31_536_000)]
    pub lifetime_seconds: u32,
}

impl OperatorTokenInput {
    /// Maximum lifetime of a token in seconds: one year.
    pub const MAX_LIFETIME_SECONDS: u32 = 31_536_000;
    /// Lifetime of a token in seconds, if the request states none: 90 days.
    pub const DEFAULT_LIFETIME_SECONDS: u32 = 7_776_000;
}

fn default_lifetime_seconds() -> u32 {
    OperatorTokenInput::DEFAULT_LIFETIME_SECONDS
}

impl Input for OperatorTokenInput {
    const READ_ONLY: &[&str] = &[
        "tokenId",
        "subject",
        "project",
        "roles",
        "namedRoles",
        "issuedAt",
        "expiresAt",
        "revokedAt",
        "revokedBy",
        "lastUsedAt",
        "token",
    ];
}

/// Subject whose tokens are to be revoked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubjectRevocationInput {
    /// Subject of the tokens: their claim `sub`. For a user who logs in with a password, the name
    /// of the user.
    #[schema(min_length = 1, max_length = 512)]
    pub subject: String,
    /// Issuer of the tokens: their claim `iss`, as in the configuration of the server. If empty:
    /// the server itself.
    #[serde(default)]
    #[schema(max_length = 512)]
    pub issuer: String,
}

impl SubjectRevocationInput {
    /// Maximum length of a subject and of an issuer, in bytes.
    pub const MAX_TEXT_BYTES: usize = 512;
}

/// Result of the revocation of all tokens of a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectRevocationResult {
    /// Whether the server has no record of a token or a login of the subject, so that the name may
    /// be wrong. Always false for a subject of an identity provider: the server does not record its
    /// tokens.
    pub unknown_subject: bool,
}

impl Input for SubjectRevocationInput {
    const READ_ONLY: &[&str] = &[];
}
