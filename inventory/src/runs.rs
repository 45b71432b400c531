//! `os-update-runs`: what happened.

mod shape;

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::update_run::{OsUpdateRun, OsUpdateRunList};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::RunId;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, Related, Wanted};
use evenkeel_store::runs::WholeRun;
use evenkeel_store::{StoreError, Tx, runs};

use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};
use crate::{App, Inventory, instances as instance, policies as policy};

use shape::Actions;

const WHAT: &str = "os_update_run_resource";

/// List the update runs.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-runs", tag = "update runs",
    params(InProject, ListParams),
    responses((status = 200, description = "The runs without their events.", body = OsUpdateRunList), Problem),
)]
pub async fn list_update_runs(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    listing::answer(Runs, &app, &call, &params).await
}

/// The list of runs.
struct Runs;

impl Listed for Runs {
    const RESOURCE: Resource = Resource::Run;
    const KEY: &'static str = "osUpdateRuns";
    // A run can hold a long log and every package of its machine.
    const PIECE: u32 = 20;
    type Item = OsUpdateRun;

    async fn load(&self, _: &Inventory, tx: &Tx, ids: &[u32]) -> Result<Vec<OsUpdateRun>, Problem> {
        let wanted: Vec<_> = ids.iter().copied().map(RunId::from_bits).collect();
        let found = runs::find_many_whole(tx, &wanted).await?;
        let found = in_order(ids, found, |whole| whole.run.id.bits());
        Ok(resources(tx, &found).await?)
    }
}

/// Show an update run with everything that happened.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-runs/{resourceId}", tag = "update runs", params(Item),
    responses((status = 200, description = "The run.", body = OsUpdateRun), Problem),
)]
pub async fn get_update_run(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<OsUpdateRun> {
    let tx = app.read(&call).await?;
    let id: RunId = id_of_path(WHAT, &path.resource_id)?;
    let (run, related) = runs::find_whole(&tx, id).await?;
    let events = runs::events(&tx, id).await?;
    Ok(Json(OsUpdateRun {
        events: events.into_iter().map(shape::event).collect(),
        ..resource(&run, &related, &mut Actions::default())
    }))
}

/// Delete the record of a run that is over.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/os-update-runs/{resourceId}", tag = "update runs", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_update_run(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: RunId = id_of_path(WHAT, &path.resource_id)?;
    runs::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Runs with what they refer to, without their events: one statement for any number of runs.
pub async fn resources(tx: &Tx, runs: &[WholeRun]) -> Result<Vec<OsUpdateRun>, StoreError> {
    let policies = runs.iter().filter_map(|whole| whole.run.origin.policy_id());
    let wanted = Wanted {
        wishes: policies.collect(),
        ..Wanted::default()
    };
    let related = related::read(tx, &wanted).await?;
    let mut actions = Actions::default();
    let resource = |run| resource(run, &related, &mut actions);
    Ok(runs.iter().map(resource).collect())
}

/// A run with what it refers to, without its events.
fn resource<'a>(whole: &'a WholeRun, related: &Related, actions: &mut Actions<'a>) -> OsUpdateRun {
    let applied = whole.run.origin.policy_id();
    let applied = applied.and_then(|id| related.policies.get(&id));
    OsUpdateRun {
        applied_policy: applied
            .map(|applied| policy::with_target(applied, related))
            .unwrap_or_default(),
        instance: instance::shallow(&whole.instance),
        host_id: whole.instance.host.to_string(),
        host_name: whole.host_name.to_string(),
        ..shape::run(&whole.run, actions)
    }
}
