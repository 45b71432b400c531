//! Assignments: which policy applies to which target, with update limits.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// An update policy that is assigned to an instance, a host, a site, a region or the whole project.
/// If several assignments apply to an instance, the most specific policy that fits its kind of
/// operating system is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AssignmentResource {
    /// Target of the assignment: a resource ID, or `project`.
    pub target: String,
    /// Kind of the target: `instance`, `host`, `site`, `region` or `project`.
    pub target_kind: String,
    /// ID of the assigned update policy.
    pub os_update_policy_id: String,
    /// Maximum number of nodes that may be updated at the same time; null for no limit.
    pub max_concurrent: Option<u32>,
    /// Number of failed runs after which no further run starts; null for no limit.
    pub stop_after_failures: Option<u32>,
    /// Number of nodes that are being updated or have permission to start. Counted only if the
    /// assignment has limits.
    pub slots_in_use: u32,
    /// Number of runs that failed since `since`. Counted only if the assignment has limits.
    pub failures: u32,
    /// Start of the period in which failures count: the time of the assignment, or of its last
    /// resumption.
    pub since: DateTime<Utc>,
    /// Last resumption after a stop because of failures; null if there was none since the policy
    /// was assigned.
    pub resumption: Option<AssignmentResumption>,
}

/// Resumption of an assignment that had stopped because of failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AssignmentResumption {
    /// Time of the resumption.
    pub at: DateTime<Utc>,
    /// Subject of the caller who resumed the assignment.
    pub by: String,
    /// Reason, as free text; may be empty.
    pub reason: String,
}

/// A page of assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentList {
    /// Assignments on this page.
    pub assignments: Vec<AssignmentResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
}

/// Assignment to create or change. PUT replaces the whole assignment and restarts the count of
/// failures. PATCH changes only the fields in the body, and restarts the count of failures only if
/// the policy changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AssignmentInput {
    /// ID of the update policy to assign. The policy must exist.
    #[schema(pattern = "^osupdatepolicy-[0-9a-f]{8}$")]
    pub os_update_policy_id: String,
    /// Maximum number of nodes that may be updated at the same time; null or omitted for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub max_concurrent: Option<u32>,
    /// Number of failed runs after which no further run starts; null or omitted for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub stop_after_failures: Option<u32>,
}

impl Input for AssignmentInput {
    const READ_ONLY: &[&str] =
        &["target", "targetKind", "slotsInUse", "failures", "since", "resumption"];
}

/// Resumption of an assignment that has stopped because of failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AssignmentResumptionInput {
    /// Reason, for people: one line of at most 500 bytes; may be empty.
    #[schema(max_length = 500)]
    pub reason: String,
}

impl Input for AssignmentResumptionInput {
    const READ_ONLY: &[&str] = &["at", "by"];
}
