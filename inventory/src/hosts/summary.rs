//! `compute/hosts/summary`: numbers of hosts.

use evenkeel_api::host_summary::HostSummary;
use evenkeel_domain::filter::{self, Filter, Resource};
use evenkeel_store::hosts;
use utoipa::IntoParams;

use crate::call::Call;
use crate::extract::{Json, Params};
use crate::listing;
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

/// Query parameters of the summary.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct SummaryParams {
    /// Filter, as for the list of hosts. Without it all hosts are counted.
    #[param(min_length = 1, max_length = 4000)]
    filter: Option<String>,
}

/// Count hosts by status
///
/// Counts all hosts, or the hosts that match `filter`: those with an error, those that run, and
/// those without a site. All numbers are of one instant.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/hosts/summary", tag = "hosts", params(InProject, SummaryParams),
    responses((status = 200, description = "The numbers of hosts.", body = HostSummary), Problem),
)]
pub async fn summarize_hosts(call: Call, params: Params) -> Answer<HostSummary> {
    let filter = params
        .text("filter")
        .map(|text| filter::parse_filter(Resource::Host, text))
        .transpose()
        .map_err(|bad| Problem::invalid_expression("filter", &bad))?;
    let permit = listing::wait_for_turn(&call, filter.as_ref().map_or(0, Filter::cost)).await?;
    let tx = call.snapshot().await?;
    let counted = hosts::summary(&tx, filter.as_ref()).await?;
    drop(permit);
    let saturate = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Json(HostSummary {
        total: saturate(counted.total),
        error: saturate(counted.error),
        running: saturate(counted.running),
        unallocated: saturate(counted.unallocated),
    }))
}
