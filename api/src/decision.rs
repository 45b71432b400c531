//! Decisions: what a node should do now, and why.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::order::OrderResource;
use crate::pause::PauseResource;
use crate::update_run::{OsUpdateRun, RunTarget};

/// What a node should do now, why, and until when that holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Decision {
    /// The instance that it is about.
    pub instance_id: String,
    /// Its host.
    pub host_id: String,
    /// When it was decided. The decision is that of this instant.
    pub time: DateTime<Utc>,
    /// `idle`, `fetch`, `apply`, `continue` or `cancel`.
    pub act: String,
    /// Whether a request of the node to begin would be granted.
    pub may_start: bool,
    /// What it should reach; null if it should do nothing.
    pub target: Option<RunTarget>,
    /// Until when it may be applied.
    pub before: Option<DateTime<Utc>>,
    /// Why.
    pub reason: Reason,
    /// When the decision may change by time alone; null if never.
    pub next: Option<DateTime<Utc>>,
    /// Leave to begin without asking, as a node that may be offline has it; null if there is none.
    pub grant: Option<DecisionGrant>,
    /// The policy that applies; null if there is none.
    pub policy: Option<EffectivePolicy>,
    /// The policies that are nearer and do not fit.
    pub skipped_policies: Vec<SkippedPolicy>,
    /// How fast the assignment of the policy may go; null if it has no limits.
    pub slots: Option<DecisionSlots>,
    /// What stops new starts here.
    pub pauses: Vec<PauseResource>,
    /// What was ordered last for this instance, also if its time is over; null if nothing.
    pub order: Option<OrderResource>,
    /// The windows that are open or to come, earliest first.
    pub windows: Vec<DecisionWindow>,
    /// The run that is open; null if there is none.
    #[schema(no_recursion)]
    pub run: Option<Box<OsUpdateRun>>,
    /// What the node could update, as it said last.
    pub available_updates: Vec<AvailableUpdate>,
    /// Since when nothing was heard of the node, if that is too long; else null.
    pub silent_since: Option<DateTime<Utc>>,
    /// Why the node itself does not let a prepared change begin, as it said last; empty if it does.
    pub waiting: String,
    /// The limits that the machine's owner set, as the node said them last; empty if there are none.
    pub owner_limits: String,
}

/// Leave to begin without asking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionGrant {
    /// In which windows.
    pub windows: Vec<GrantWindow>,
    /// Until when the leave counts.
    pub expires: DateTime<Utc>,
}

/// A span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GrantWindow {
    /// The first instant inside.
    pub start: DateTime<Utc>,
    /// The first instant after.
    pub end: DateTime<Utc>,
}

/// A policy that is assigned along the chain and does not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SkippedPolicy {
    /// Its id.
    pub resource_id: String,
    /// Its name.
    pub name: String,
    /// `instance`, `host`, `site`, `region` or `project`.
    pub level: String,
    /// What it is assigned to: an id, or `project`.
    pub assigned_to: String,
    /// Why it does not fit.
    pub why: String,
}

/// How fast an assignment may go, and how far that is used up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionSlots {
    /// What the policy is assigned to: an id, or `project`.
    pub assigned_to: String,
    /// How many nodes may be changed at the same time; null if there is no limit.
    pub max_concurrent: Option<u32>,
    /// After how many failures nothing is started any more; null if never.
    pub stop_after_failures: Option<u32>,
    /// How many other nodes hold a slot.
    pub held: u32,
    /// Whether this node holds one.
    pub mine: bool,
    /// How many runs failed since the assignment was written.
    pub failures: u32,
}

/// Why a node should do what it should do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reason {
    /// Such as `window_closed`.
    pub code: String,
    /// For people, complete.
    pub text: String,
    /// What belongs to the code, such as `opens`.
    #[schema(value_type = Object)]
    pub data: serde_json::Map<String, serde_json::Value>,
}

/// The policy that applies to an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectivePolicy {
    /// Its id.
    pub resource_id: String,
    /// Its name.
    pub name: String,
    /// How near it is assigned: `instance`, `host`, `site`, `region` or `project`.
    pub level: String,
    /// What it is assigned to: an id, or `project`.
    pub assigned_to: String,
    /// What it wishes for.
    pub target: RunTarget,
}

/// When a node may be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionWindow {
    /// The first instant inside.
    pub start: DateTime<Utc>,
    /// The first instant after.
    pub end: DateTime<Utc>,
    /// The schedule that opens it; empty for an order.
    pub schedule_id: String,
    /// `single_schedule`, `repeated_schedule` or `order`.
    pub opened_by: String,
    /// Whether it is open.
    pub open: bool,
}

/// A package that could be updated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AvailableUpdate {
    /// Which.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// What is installed.
    pub installed: String,
    /// What could be.
    pub available: String,
    /// Whether the policy that applies leaves it out, by name or by suite.
    pub left_out: bool,
}
