//! Pauses: stop new update runs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// Pause: no new run starts in its scope until the pause is removed. Runs that have begun continue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PauseResource {
    /// Scope: `project`, or the ID of a site or a policy.
    pub scope: String,
    /// Reason, as free text; may be empty.
    pub reason: String,
    /// Subject of the caller who set the pause.
    pub by: String,
    /// Time at which the pause was set.
    pub since: DateTime<Utc>,
}

/// A page of pauses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PauseList {
    /// Pauses on this page.
    pub pauses: Vec<PauseResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
}

/// Pause to set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PauseInput {
    /// Reason, for people: one line of at most 500 bytes; may be empty.
    #[schema(max_length = 500)]
    pub reason: String,
}

impl Input for PauseInput {
    const READ_ONLY: &[&str] = &["scope", "by", "since"];
}
