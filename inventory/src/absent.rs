//! What the ancestor's platform has and Evenkeel has not: its clients ask for the lists, and these are empty whatever is
//! asked of them.

use axum::extract::State;
use evenkeel_api::absent::{
    LogGroupList, LogProfileList, MetricGroupList, MetricProfileList, WorkloadList,
    WorkloadMemberList,
};

use crate::App;
use crate::call::Call;
use crate::extract::{Json, Params};
use crate::listing::ListParams;
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

/// List the workloads: there are none.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/workloads", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No workloads.", body = WorkloadList), Problem),
)]
pub async fn list_workloads(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<WorkloadList> {
    nothing(&app, &call, &params).await
}

/// List what belongs to workloads: there is nothing.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/workload_members", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No members.", body = WorkloadMemberList), Problem),
)]
pub async fn list_workload_members(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<WorkloadMemberList> {
    nothing(&app, &call, &params).await
}

/// List the groups of logs: there are none.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/groups/logs", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No groups.", body = LogGroupList), Problem),
)]
pub async fn list_log_groups(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<LogGroupList> {
    nothing(&app, &call, &params).await
}

/// List the groups of metrics: there are none.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/groups/metrics", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No groups.", body = MetricGroupList), Problem),
)]
pub async fn list_metric_groups(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<MetricGroupList> {
    nothing(&app, &call, &params).await
}

/// List the wishes for logs: there are none.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/profiles/logs", tag = "absent", params(InProject, ListParams),
    responses((status = 200, description = "No wishes.", body = LogProfileList), Problem),
)]
pub async fn list_log_profiles(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<LogProfileList> {
    nothing(&app, &call, &params).await
}

/// List the wishes for metrics: there are none.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/telemetry/profiles/metrics", tag = "absent",
    params(InProject, ListParams),
    responses((status = 200, description = "No wishes.", body = MetricProfileList), Problem),
)]
pub async fn list_metric_profiles(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<MetricProfileList> {
    nothing(&app, &call, &params).await
}

/// A list of nothing, for whoever may read in the project.
async fn nothing<T: Default>(app: &App, call: &Call, params: &Params) -> Answer<T> {
    params.number("pageSize", 1, 100)?;
    params.number("offset", 0, u32::MAX)?;
    drop(app.read(call).await?);
    Ok(Json(T::default()))
}
