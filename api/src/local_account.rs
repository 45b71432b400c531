//! Local accounts: users that may log in to nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

/// User account that may log in to a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalAccountResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "localAccountID")]
    pub local_account_id: String,
    /// User name; unique in the project.
    pub username: String,
    /// SSH public key.
    pub ssh_key: String,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of local accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalAccountList {
    /// Local accounts on this page.
    pub local_accounts: Vec<LocalAccountResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}

/// Local account to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalAccountInput {
    /// User name: a lower-case letter and at most 31 lower-case letters, digits and dashes; unique
    /// in the project.
    #[schema(pattern = "^[a-z][a-z0-9-]{0,31}$")]
    pub username: String,
    /// SSH public key: one line in the format of `authorized_keys`, of type `ssh-ed25519` or
    /// `ecdsa-sha2-nistp521`.
    #[schema(
        max_length = 800,
        pattern = "^(ssh-ed25519|ecdsa-sha2-nistp521) [A-Za-z0-9+/=]+( .*)?$"
    )]
    pub ssh_key: String,
}

impl Input for LocalAccountInput {
    const READ_ONLY: &[&str] = &["resourceId", "localAccountID", "timestamps"];
}
