//! Hosts, counted.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How many hosts there are, and how they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostSummary {
    /// How many there are.
    pub total: u32,
    /// How many have a status, of their own or of what runs on them, that somebody should look at.
    pub error: u32,
    /// On how many something runs, without such a status.
    pub running: u32,
    /// How many stand at no site.
    pub unallocated: u32,
}
