//! Decisions: what a node should do now, and why.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::order::OrderResource;
use crate::pause::PauseResource;
use crate::update_run::{OsUpdateRun, RunPackage, RunTarget};

/// What a node should do now, why, and until when the decision is valid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Decision {
    /// ID of the instance.
    pub instance_id: String,
    /// ID of the host.
    pub host_id: String,
    /// Time for which the decision was made.
    pub time: DateTime<Utc>,
    /// Action: `idle`, `fetch` (download only), `apply`, `continue` (an open run) or `cancel` (an
    /// open run).
    pub act: String,
    /// Whether the server would permit the node to start an update now.
    pub may_start: bool,
    /// Target of the update; null if the node should do nothing.
    pub target: Option<RunTarget>,
    /// Time before which the update must start; null unless `act` is `apply`.
    pub start_deadline: Option<DateTime<Utc>>,
    /// Reason of the decision.
    pub reason: Reason,
    /// Time at which the decision may change without any other change; null if there is none.
    pub next_change: Option<DateTime<Utc>>,
    /// Permission to start an update while the node is offline; null if there is none.
    pub grant: Option<DecisionGrant>,
    /// Policy that applies to the instance; null if there is none.
    pub policy: Option<EffectivePolicy>,
    /// Policies with a more specific assignment that do not fit the instance.
    pub skipped_policies: Vec<SkippedPolicy>,
    /// Usage of the limits of the assignment; null if the assignment has no limits.
    pub slots: Option<DecisionSlots>,
    /// Pauses that stop new runs of the instance.
    pub pauses: Vec<PauseResource>,
    /// Last order for the instance, even if it has expired; null if there is none.
    pub order: Option<OrderResource>,
    /// Maintenance windows that are open or in the future, in ascending order.
    pub windows: Vec<DecisionWindow>,
    /// Open run; null if there is none.
    #[schema(no_recursion)]
    pub run: Option<Box<OsUpdateRun>>,
    /// Updates that are available to the node, from its last report.
    pub available_updates: Vec<AvailableUpdate>,
    /// Plan of the last run, while the node would plan the same again: the run has changed nothing,
    /// and the target, the installed packages and the available updates are still the same. Else
    /// empty; the plan of the open run is in `run`.
    pub last_plan: Vec<RunPackage>,
    /// Time of the last contact if the node is silent for too long; else null.
    pub silent_since: Option<DateTime<Utc>>,
    /// Why the node itself delays a prepared update, or the end of one that has begun, for example
    /// its reboot; from its last report. Empty if it does not.
    pub waiting: String,
    /// Local limits that the owner of the machine has set, from the node's last report; empty if
    /// there are none.
    pub owner_limits: String,
}

/// Permission to start an update while the node is offline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionGrant {
    /// Windows in which the node may start.
    pub windows: Vec<GrantWindow>,
    /// Time at which the permission expires.
    pub expires_at: DateTime<Utc>,
}

/// Time interval, including `start` and excluding `end`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GrantWindow {
    /// Start of the interval.
    pub start: DateTime<Utc>,
    /// End of the interval.
    pub end: DateTime<Utc>,
}

/// Assigned policy that does not fit the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SkippedPolicy {
    /// ID of the policy.
    pub resource_id: String,
    /// Name of the policy.
    pub name: String,
    /// Level of the assignment: `instance`, `host`, `site`, `region` or `project`.
    pub level: String,
    /// Target of the assignment: a resource ID, or `project`.
    pub assigned_to: String,
    /// Why the policy does not fit.
    pub reason: String,
}

/// Limits of an assignment and their usage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionSlots {
    /// Target of the assignment: a resource ID, or `project`.
    pub assigned_to: String,
    /// Maximum number of nodes that may be updated at the same time; null for no limit.
    pub max_concurrent: Option<u32>,
    /// Number of failed runs after which no further run starts; null for no limit.
    pub stop_after_failures: Option<u32>,
    /// Number of other nodes that hold a slot.
    pub held_by_others: u32,
    /// Whether this node holds a slot.
    pub holds_slot: bool,
    /// Number of runs that failed since the policy was assigned or the assignment was last resumed.
    pub failures: u32,
}

/// Reason of a decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reason {
    /// Machine-readable code, for example `window_closed`.
    pub code: String,
    /// Complete explanation in one sentence.
    pub text: String,
    /// Details that depend on the code, for example `opens`.
    #[schema(value_type = Object)]
    pub data: serde_json::Map<String, serde_json::Value>,
}

/// Policy that applies to an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectivePolicy {
    /// ID of the policy.
    pub resource_id: String,
    /// Name of the policy.
    pub name: String,
    /// Level of the assignment: `instance`, `host`, `site`, `region` or `project`.
    pub level: String,
    /// Target of the assignment: a resource ID, or `project`.
    pub assigned_to: String,
    /// Name of the site or region that the policy is assigned to; empty for other levels.
    pub assigned_to_name: String,
    /// Update that the policy requests.
    pub target: RunTarget,
}

/// Maintenance window in which a node may be updated. Includes `start` and excludes `end`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionWindow {
    /// Start of the window.
    pub start: DateTime<Utc>,
    /// End of the window.
    pub end: DateTime<Utc>,
    /// ID of the schedule that opens the window; empty for an order.
    pub schedule_id: String,
    /// What opens the window: `single_schedule`, `repeated_schedule` or `order`.
    pub opened_by: String,
    /// Whether the window is open now.
    pub open: bool,
}

/// Package for which a newer version is available.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AvailableUpdate {
    /// Package name.
    pub name: String,
    /// Debian architecture, for example `amd64`.
    pub architecture: String,
    /// Installed version.
    pub installed: String,
    /// Available version.
    pub available: String,
    /// Suites and codenames that contain the available version; empty if they are unknown.
    pub suites: Vec<String>,
    /// Labels of the repositories that contain the available version, from their Release files;
    /// empty if they are unknown.
    pub origins: Vec<String>,
    /// Whether the available version is a security update; null if its suites are unknown.
    pub security: Option<bool>,
    /// Whether the policy that applies excludes the package, by name or by suite.
    pub excluded: bool,
    /// Whether the policy that applies requires an age that the available version does not have.
    pub too_young: bool,
}
