//! Pauses: where nothing new starts.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// A stop of all new starts, until it is taken back. What goes on goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PauseResource {
    /// Where: `project`, or the id of a site or of a policy.
    pub scope: String,
    /// Why, for people.
    pub reason: String,
    /// Who said so.
    pub by: String,
    /// Since when.
    pub since: DateTime<Utc>,
}

/// A page of pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PauseList {
    /// The pauses of this page.
    pub pauses: Vec<PauseResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}

/// Why nothing new should start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PauseInput {
    /// Why, for people.
    #[schema(max_length = 500)]
    pub reason: String,
}

impl Input for PauseInput {
    const READ_ONLY: &[&str] = &["scope", "by", "since"];
}
