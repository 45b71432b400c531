//! Host summary: numbers of hosts by state.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Numbers of hosts by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostSummary {
    /// Total number of hosts.
    pub total: u32,
    /// Number of hosts that have an error status, or whose instance has one.
    pub error: u32,
    /// Number of hosts with a running instance and without an error status.
    pub running: u32,
    /// Number of hosts without a site.
    pub unallocated: u32,
}
