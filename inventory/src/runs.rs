//! `os-update-runs`: past and current updates.

mod shape;

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::update_run::{OsUpdateRun, OsUpdateRunList};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::RunId;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, Related, RelatedIds};
use evenkeel_store::runs::RunDetails;
use evenkeel_store::{StoreError, Tx, runs};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};
use crate::shape::{instances as instance, policies as policy};

use shape::PackageActions;
pub use shape::plan_packages;

const RESOURCE_KIND: &str = "os_update_run_resource";

/// List update runs
///
/// Returns open and ended runs, without their events and the packages that are held back. The server
/// deletes ended runs after the retention time of the project.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-runs", tag = "update runs",
    params(InProject, ListParams),
    responses((status = 200, description = "The runs, without their events.", body = OsUpdateRunList), Problem),
)]
pub async fn list_update_runs(call: Call, params: Params) -> Result<Response, Problem> {
    listing::answer(Runs, &call, &params).await
}

struct Runs;

impl Listable for Runs {
    const RESOURCE: Resource = Resource::Run;
    const KEY: &'static str = "osUpdateRuns";
    // A run can hold a long log and every package of its machine.
    const CHUNK_SIZE: u32 = 20;
    type Item = OsUpdateRun;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<OsUpdateRun>, Problem> {
        let run_ids: Vec<_> = ids.iter().copied().map(RunId::from_bits).collect();
        let runs = runs::find_many_details(tx, &run_ids).await?;
        let mut runs = in_order(ids, runs, |record| record.run.id.bits());
        // Up to 500 for each run: a list of the runs of a fleet would be gigabytes.
        for record in &mut runs {
            record.run.report.held_back.clear();
        }
        Ok(load_resources(tx, &runs).await?)
    }
}

/// Get an update run
///
/// Returns the run with all of its events, oldest first.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-runs/{resourceId}", tag = "update runs", params(Item),
    responses((status = 200, description = "The run.", body = OsUpdateRun), Problem),
)]
pub async fn get_update_run(call: Call, Path(path): Path<Item>) -> Answer<OsUpdateRun> {
    let tx = call.read().await?;
    let id: RunId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let (run, related) = runs::find_details(&tx, id).await?;
    let events = runs::events(&tx, id).await?;
    Ok(Json(OsUpdateRun {
        events: events.into_iter().map(shape::event).collect(),
        ..resource(&run, &related, &mut PackageActions::default())
    }))
}

/// Delete an update run
///
/// Deletes an ended run with its events.
///
/// The server refuses a run that has not ended (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/os-update-runs/{resourceId}", tag = "update runs", params(Item),
    responses((status = 200, description = "The run is deleted.", body = Empty), Problem),
)]
pub async fn delete_update_run(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: RunId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    runs::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// REST form of runs with related resources, without their events. Runs one query for any number of
/// runs.
pub async fn load_resources(tx: &Tx, runs: &[RunDetails]) -> Result<Vec<OsUpdateRun>, StoreError> {
    let policies = runs.iter().filter_map(|record| record.run.origin.policy_id());
    let related_ids = RelatedIds { policies_with_os: policies.collect(), ..RelatedIds::default() };
    let related = related::load(tx, &related_ids).await?;
    let mut actions = PackageActions::default();
    let resource = |run| resource(run, &related, &mut actions);
    Ok(runs.iter().map(resource).collect())
}

/// REST form of a run with related resources, without its events.
fn resource<'a>(
    record: &'a RunDetails,
    related: &Related,
    actions: &mut PackageActions<'a>,
) -> OsUpdateRun {
    let applied = record.run.origin.policy_id();
    let applied = applied.and_then(|id| related.policies.get(&id));
    OsUpdateRun {
        applied_policy: applied
            .map(|applied| policy::resource_with_target(applied, related))
            .unwrap_or_default(),
        instance: instance::shallow(&record.instance),
        host_id: record.instance.host.to_string(),
        host_name: record.host_name.to_string(),
        ..shape::run(&record.run, actions)
    }
}
