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
    /// Roles of the token.
    pub roles: Vec<String>,
    /// Time at which the token was issued.
    pub issued_at: DateTime<Utc>,
    /// Time at which the token expires.
    pub expires_at: DateTime<Utc>,
    /// Time of the revocation; null if the token is not revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// Name of the administrator who revoked the token; empty if the token is not revoked.
    pub revoked_by: String,
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
