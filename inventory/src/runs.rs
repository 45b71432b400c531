//! `os-update-runs`: what happened.

mod shape;

use std::collections::HashMap;

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::update_run::{OsUpdateRun, OsUpdateRunList};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::{PolicyId, RunId};
use evenkeel_domain::run::UpdateRun;
use evenkeel_store::listing::in_order;
use evenkeel_store::{StoreError, Tx, hosts, instances, policies, runs};

use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};
use crate::{App, Inventory, instances as instance, policies as policy};

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
        let found = runs::find_many(tx, &wanted).await?;
        let found = in_order(ids, found, |run: &UpdateRun| run.id.bits());
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
    let run = runs::find(&tx, id).await?;
    let events = runs::events(&tx, id).await?;
    let mut found = resources(&tx, std::slice::from_ref(&run)).await?;
    tx.commit().await?;
    let run = found.pop().ok_or_else(Problem::internal)?;
    Ok(Json(OsUpdateRun {
        events: events.into_iter().map(shape::event).collect(),
        ..run
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

/// Runs with what they refer to, without their events: the same number of statements for any number of runs.
pub async fn resources(tx: &Tx, runs: &[UpdateRun]) -> Result<Vec<OsUpdateRun>, StoreError> {
    let mut ids: Vec<_> = runs.iter().map(|run| run.instance).collect();
    ids.sort_unstable();
    ids.dedup();
    let instances = instances::find_many(tx, &ids).await?;
    let host_ids: Vec<_> = instances.iter().map(|instance| instance.host).collect();
    let hosts = hosts::find_many(tx, &host_ids).await?;
    let hosts: HashMap<_, _> = hosts.iter().map(|host| (host.id, host)).collect();
    let instances: HashMap<_, _> = instances.iter().map(|on| (on.id, on)).collect();
    let mut policy_ids: Vec<_> = runs
        .iter()
        .filter_map(|run| run.origin.policy_id())
        .collect();
    policy_ids.sort_unstable();
    policy_ids.dedup();
    let applied = policies::find_many(tx, &policy_ids).await?;
    let applied = policy::resources(tx, &applied).await?;
    let applied: HashMap<String, _> = applied
        .into_iter()
        .map(|policy| (policy.resource_id.clone(), policy))
        .collect();
    let whole = |run: &UpdateRun| {
        let on = instances.get(&run.instance).copied();
        let host = on.and_then(|on| hosts.get(&on.host));
        let policy = run.origin.policy_id().as_ref().map(PolicyId::to_string);
        OsUpdateRun {
            applied_policy: policy
                .and_then(|id| applied.get(&id).cloned())
                .unwrap_or_default(),
            instance: on.map(instance::shallow).unwrap_or_default(),
            host_id: host.map(|host| host.id.to_string()).unwrap_or_default(),
            host_name: host.map(|host| host.name.to_string()).unwrap_or_default(),
            ..shape::run(run)
        }
    };
    Ok(runs.iter().map(whole).collect())
}
