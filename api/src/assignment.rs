//! Assignments: what gets which policy, and how fast.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// A policy that is assigned to an instance, host, site, region or the whole project. The nearest that fits counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AssignmentResource {
    /// To what: an id, or `project`.
    pub target: String,
    /// `instance`, `host`, `site`, `region` or `project`.
    pub target_kind: String,
    /// The policy.
    pub os_update_policy_id: String,
    /// How many nodes may be changed at the same time; null if there is no limit.
    pub max_concurrent: Option<u32>,
    /// After how many failures nothing is started any more; null if never.
    pub stop_after_failures: Option<u32>,
    /// How many nodes are being changed, or may begin at any moment. Only what has a limit is counted.
    pub slots_in_use: u32,
    /// How many runs failed since `since`. Only what has a limit is counted.
    pub failures: u32,
    /// Since when failures count: when the policy was assigned, or when it was let go on after failures.
    pub since: DateTime<Utc>,
    /// Who let it go on last after it had stopped; null if nobody did since the policy was assigned.
    pub resumption: Option<AssignmentResumption>,
}

/// That somebody let an assignment go on that had stopped after failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AssignmentResumption {
    /// When.
    pub at: DateTime<Utc>,
    /// Who.
    pub by: String,
    /// Why, for people.
    pub reason: String,
}

/// A page of assignments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentList {
    /// The assignments of this page.
    pub assignments: Vec<AssignmentResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}

/// What to assign. To put it (PUT) replaces all of it and counts failures from now. A change (PATCH) counts only for the
/// fields that it names, and counts failures from now only if it names another policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AssignmentInput {
    /// The policy.
    #[schema(pattern = "^osupdatepolicy-[0-9a-f]{8}$")]
    pub os_update_policy_id: String,
    /// How many nodes may be changed at the same time; null or left out for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub max_concurrent: Option<u32>,
    /// After how many failures nothing is started any more; null or left out for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2_147_483_647)]
    pub stop_after_failures: Option<u32>,
}

impl Input for AssignmentInput {
    const READ_ONLY: &[&str] = &[
        "target",
        "targetKind",
        "slotsInUse",
        "failures",
        "since",
        "resumption",
    ];
}

/// Why an assignment that stopped after failures may go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AssignmentResumptionInput {
    /// Why, for people.
    #[schema(max_length = 500)]
    pub reason: String,
}

impl Input for AssignmentResumptionInput {
    const READ_ONLY: &[&str] = &["at", "by"];
}
