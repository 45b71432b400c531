//! Accounts that may log in to nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

/// An account that may log in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalAccountResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "localAccountID")]
    pub local_account_id: String,
    /// Unique in its project.
    pub username: String,
    /// With which key it logs in.
    pub ssh_key: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalAccountList {
    /// The accounts of this page.
    pub local_accounts: Vec<LocalAccountResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Asks for the next page; empty if there is none.
    pub next_page_token: String,
}

/// An account to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalAccountInput {
    /// Unique in its project.
    #[schema(pattern = "^[a-z][a-z0-9-]{0,31}$")]
    pub username: String,
    /// With which key it logs in, one line as in `authorized_keys`.
    #[schema(
        max_length = 800,
        pattern = "^(ssh-ed25519|ecdsa-sha2-nistp521) [A-Za-z0-9+/=]+( .*)?$"
    )]
    pub ssh_key: String,
}

impl Input for LocalAccountInput {
    const READ_ONLY: &[&str] = &["resourceId", "localAccountID", "timestamps"];
}
