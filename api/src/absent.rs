//! Lists of EIM features that Evenkeel does not have. EIM clients request these lists, so the
//! server returns empty ones.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Workloads. Evenkeel has none, so the list is always empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadList {
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub workloads: Vec<Value>,
    /// Always 0.
    pub total_elements: i32,
    /// Always false.
    pub has_next: bool,
    /// Always empty.
    pub next_page_token: String,
}

/// Members of workloads. Evenkeel has no workloads, so the list is always empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadMemberList {
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub workload_members: Vec<Value>,
    /// Always 0.
    pub total_elements: i32,
    /// Always false.
    pub has_next: bool,
    /// Always empty.
    pub next_page_token: String,
}

/// Telemetry log groups. Evenkeel has none, so the list is always empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogGroupList {
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub telemetry_logs_groups: Vec<Value>,
    /// Always 0.
    pub total_elements: i32,
    /// Always false.
    pub has_next: bool,
    /// Always empty.
    pub next_page_token: String,
}

/// Telemetry metric groups. Evenkeel has none, so the list is always empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricGroupList {
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub telemetry_metrics_groups: Vec<Value>,
    /// Always 0.
    pub total_elements: i32,
    /// Always false.
    pub has_next: bool,
    /// Always empty.
    pub next_page_token: String,
}

/// Telemetry log profiles. Evenkeel has none, so the list is always empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogProfileList {
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub telemetry_logs_profiles: Vec<Value>,
    /// Always 0.
    pub total_elements: i32,
    /// Always false.
    pub has_next: bool,
    /// Always empty.
    pub next_page_token: String,
}

/// Telemetry metric profiles. Evenkeel has none, so the list is always empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricProfileList {
    /// Always empty.
    #[schema(value_type = Vec<Object>)]
    pub telemetry_metrics_profiles: Vec<Value>,
    /// Always 0.
    pub total_elements: i32,
    /// Always false.
    pub has_next: bool,
    /// Always empty.
    pub next_page_token: String,
}
