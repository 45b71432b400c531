//! Features of EIM that Evenkeel does not have. EIM's clients request these lists, which are always
//! empty.

use evenkeel_api::absent::{
    LogGroupList, LogProfileList, MetricGroupList, MetricProfileList, WorkloadList,
    WorkloadMemberList,
};

use crate::call::Call;
use crate::extract::{Json, Params};
use crate::listing::ListParams;
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

/// List workloads
///
/// Always empty: Evenkeel does not manage workloads. The server checks `pageSize` and `offset`, and
/// ignores the other parameters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/workloads", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No workloads.", body = WorkloadList), Problem),
)]
pub async fn list_workloads(call: Call, params: Params) -> Answer<WorkloadList> {
    empty_list(&call, &params).await
}

/// List workload members
///
/// Always empty: Evenkeel does not manage workloads. The server checks `pageSize` and `offset`, and
/// ignores the other parameters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/workload_members", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No members.", body = WorkloadMemberList), Problem),
)]
pub async fn list_workload_members(call: Call, params: Params) -> Answer<WorkloadMemberList> {
    empty_list(&call, &params).await
}

/// List telemetry log groups
///
/// Always empty: Evenkeel does not collect telemetry. The server checks `pageSize` and `offset`,
/// and ignores the other parameters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/groups/logs", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No groups.", body = LogGroupList), Problem),
)]
pub async fn list_log_groups(call: Call, params: Params) -> Answer<LogGroupList> {
    empty_list(&call, &params).await
}

/// List telemetry metric groups
///
/// Always empty: Evenkeel does not collect telemetry. The server checks `pageSize` and `offset`,
/// and ignores the other parameters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/groups/metrics", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No groups.", body = MetricGroupList), Problem),
)]
pub async fn list_metric_groups(call: Call, params: Params) -> Answer<MetricGroupList> {
    empty_list(&call, &params).await
}

/// List telemetry log profiles
///
/// Always empty: Evenkeel does not collect telemetry. The server checks `pageSize` and `offset`,
/// and ignores the other parameters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/profiles/logs", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No profiles.", body = LogProfileList), Problem),
)]
pub async fn list_log_profiles(call: Call, params: Params) -> Answer<LogProfileList> {
    empty_list(&call, &params).await
}

/// List telemetry metric profiles
///
/// Always empty: Evenkeel does not collect telemetry. The server checks `pageSize` and `offset`,
/// and ignores the other parameters.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/profiles/metrics", tag = "absent",
    params(InProject, ListParams),
    responses((status = 200, description = "No profiles.", body = MetricProfileList), Problem),
)]
pub async fn list_metric_profiles(call: Call, params: Params) -> Answer<MetricProfileList> {
    empty_list(&call, &params).await
}

/// An empty list, if the caller may read the project.
async fn empty_list<T: Default>(call: &Call, params: &Params) -> Answer<T> {
    params.number("pageSize", 1, 100)?;
    params.number("offset", 0, u32::MAX)?;
    drop(call.read().await?);
    Ok(Json(T::default()))
}
