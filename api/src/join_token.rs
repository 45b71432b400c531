//! Join tokens: permission for machines to join a project.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

/// Permission for machines to join a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the resource")]
pub struct JoinTokenResource {
    /// Resource ID.
    pub resource_id: String,
    /// Display name; may be empty.
    pub name: String,
    /// Time at which the token expires.
    pub expires_at: DateTime<Utc>,
    /// Whether the token is valid for one use only.
    pub one_time: bool,
    /// Whether machines that are not registered may join.
    pub may_create_hosts: bool,
    /// Whether machines may join whose hosts an agent of EIM uses.
    pub may_replace_eim_agents: bool,
    /// Number of uses.
    pub used_count: u32,
    /// Time of the last use; null if the token was never used.
    pub last_used_at: Option<DateTime<Utc>>,
    /// Time of the revocation; null if the token is not revoked.
    pub revoked_at: Option<DateTime<Utc>>,
    /// Whether a machine could join with the token at the time of the response.
    pub usable: bool,
    /// The token. Returned only when the token is created; the server does not store it.
    pub token: Option<String>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of join tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenList {
    /// Join tokens on this page.
    pub join_tokens: Vec<JoinTokenResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
}

/// Join token to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JoinTokenInput {
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// Lifetime in seconds, by the server's clock; default 3600 (1 hour), at most 31536000 (1
    /// year).
    #[schema(minimum = 1, maximum = 31_536_000)]
    pub lifetime_seconds: u32,
    /// Whether the token is valid for one use only; default false.
    pub one_time: bool,
    /// Whether machines that are not registered may join; default true.
    pub may_create_hosts: bool,
    /// Whether machines may join whose hosts an agent of EIM uses; default false. The agent that
    /// joins replaces EIM's agent.
    pub may_replace_eim_agents: bool,
}

impl JoinTokenInput {
    /// Maximum lifetime of a token in seconds: one year.
    pub const MAX_LIFETIME_SECONDS: u32 = 31_536_000;
}

impl Default for JoinTokenInput {
    fn default() -> Self {
        Self {
            name: String::new(),
            lifetime_seconds: 3_600,
            one_time: false,
            may_create_hosts: true,
            may_replace_eim_agents: false,
        }
    }
}

impl Input for JoinTokenInput {
    const READ_ONLY: &[&str] = &[
        "resourceId",
        "expiresAt",
        "usedCount",
        "lastUsedAt",
        "revokedAt",
        "usable",
        "token",
        "timestamps",
    ];
}
