//! Join tokens: leave for machines to join a project.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

/// Leave to join a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JoinTokenResource {
    /// Its id.
    pub resource_id: String,
    /// For people; may be empty.
    pub name: String,
    /// From then on it is worth nothing.
    pub expires_at: DateTime<Utc>,
    /// Whether it is worth nothing after its first use.
    pub one_time: bool,
    /// Whether machines that nobody registered may join with it.
    pub may_create_hosts: bool,
    /// How often it was used.
    pub used_count: u32,
    /// When it was last used.
    pub last_used_at: Option<DateTime<Utc>>,
    /// When it was taken back.
    pub revoked_at: Option<DateTime<Utc>>,
    /// Whether a machine could join with it when it was read.
    pub usable: bool,
    /// The token itself. Only the answer to its making has it; it is kept nowhere.
    pub token: Option<String>,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of join tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenList {
    /// The join tokens of this page.
    pub join_tokens: Vec<JoinTokenResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}

/// A join token to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JoinTokenInput {
    /// For people; may be empty.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// How long it is worth something, by the server's clock.
    #[schema(minimum = 1, maximum = 31_536_000)]
    pub lifetime_seconds: u32,
    /// Whether it is worth nothing after its first use.
    pub one_time: bool,
    /// Whether machines that nobody registered may join with it.
    pub may_create_hosts: bool,
}

impl JoinTokenInput {
    /// The longest life of a token: a year.
    pub const MAX_LIFETIME: u32 = 31_536_000;
}

impl Default for JoinTokenInput {
    fn default() -> Self {
        Self {
            name: String::new(),
            lifetime_seconds: 3_600,
            one_time: false,
            may_create_hosts: true,
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
