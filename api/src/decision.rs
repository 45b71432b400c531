//! Decisions: what a node should do now, and why.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
    /// `idle`, `fetch`, `apply`, `granted`, `continue` or `cancel`.
    pub act: String,
    /// What it should reach; null if it should do nothing.
    pub target: Option<RunTarget>,
    /// Until when it may be applied.
    pub before: Option<DateTime<Utc>>,
    /// Why.
    pub reason: Reason,
    /// When the decision may change by time alone; null if never.
    pub next: Option<DateTime<Utc>>,
    /// The policy that applies; null if there is none.
    pub policy: Option<EffectivePolicy>,
    /// The windows that are open or to come, earliest first.
    pub windows: Vec<DecisionWindow>,
    /// The run that is open; null if there is none.
    #[schema(no_recursion)]
    pub run: Option<Box<OsUpdateRun>>,
    /// What the node could update, as it said last.
    pub available_updates: Vec<AvailableUpdate>,
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
    /// What it is assigned to: `instance`, `host` or `project`.
    pub level: String,
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
    /// The schedule that opens it.
    pub schedule_id: String,
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
}
