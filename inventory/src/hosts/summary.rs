//! `compute/hosts/summary`: hosts, counted.

use axum::extract::State;
use evenkeel_api::host_summary::HostSummary;
use evenkeel_domain::filter::{self, Resource};
use evenkeel_store::hosts;
use utoipa::IntoParams;

use crate::App;
use crate::call::Call;
use crate::extract::{Json, Params};
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

/// Which hosts to count, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the value"
)]
pub struct SummaryParams {
    /// Only what this is true of, as for a list of hosts; all of them if it is left out.
    #[param(min_length = 1, max_length = 4000)]
    filter: Option<String>,
}

/// Count the hosts, and how they are.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/hosts/summary", tag = "hosts", params(InProject, SummaryParams),
    responses((status = 200, description = "How many there are.", body = HostSummary), Problem),
)]
pub async fn summarize_hosts(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<HostSummary> {
    let filter = params
        .text("filter")
        .map(|text| filter::parse(Resource::Host, text))
        .transpose()
        .map_err(|bad| Problem::not_understood("filter", &bad))?;
    let tx = app.snapshot(&call).await?;
    let counted = hosts::summary(&tx, filter.as_ref()).await?;
    let shown = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Json(HostSummary {
        total: shown(counted.total),
        error: shown(counted.error),
        running: shown(counted.running),
        unallocated: shown(counted.unallocated),
    }))
}
