//! What the ancestor's platform has and Evenkeel has not: its clients ask for the lists, and these are empty.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The workloads: none.
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

/// What belongs to workloads: nothing.
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

/// The groups of logs: none.
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

/// The groups of metrics: none.
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

/// The wishes for logs: none.
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

/// The wishes for metrics: none.
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
