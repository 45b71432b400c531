//! `os-update-runs`: what happened.

mod shape;

use std::collections::HashMap;

use axum::extract::State;
use evenkeel_api::Empty;
use evenkeel_api::update_run::{OsUpdateRun, OsUpdateRunList};
use evenkeel_domain::id::parse_id;
use evenkeel_domain::id::{InstanceId, PolicyId, RunId};
use evenkeel_domain::run::UpdateRun;
use evenkeel_store::{StoreError, Tx, hosts, instances, policies, runs};
use utoipa::IntoParams;

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::{ListParams, envelope, page};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};
use crate::{instances as instance, policies as policy};

const WHAT: &str = "os_update_run_resource";

/// Whose runs to list, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the value"
)]
pub struct FilterParams {
    /// Only those of one instance, newest first: `instance.resourceId="inst-0a1b2c3d"`.
    filter: Option<String>,
}

/// List the update runs.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-update-runs", tag = "update runs",
    params(InProject, ListParams, FilterParams),
    responses((status = 200, description = "The runs without their events, by id.", body = OsUpdateRunList), Problem),
)]
pub async fn list_update_runs(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<OsUpdateRunList> {
    params.refuse(&["orderBy"])?;
    let page = page(&params)?;
    let of = params.text("filter").map(instance_of).transpose()?;
    let tx = app.read(&call).await?;
    let listed = runs::list(&tx, of, page).await?;
    let (total_elements, has_next) = envelope(&listed, page);
    let os_update_runs = resources(&tx, &listed.items).await?;
    tx.commit().await?;
    Ok(Json(OsUpdateRunList {
        os_update_runs,
        total_elements,
        has_next,
    }))
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

/// The one filter that is understood: runs of an instance.
fn instance_of(filter: &str) -> Result<InstanceId, Problem> {
    let value = filter.split_once('=').and_then(|(name, value)| {
        let known = matches!(name.trim(), "instance.resourceId" | "instance.resource_id");
        let value = value.trim();
        let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
        if known {
            quoted('"').or_else(|| quoted('\''))
        } else {
            None
        }
    });
    let value = value.ok_or_else(|| {
        Problem::invalid(
            "filter",
            "this list understands only instance.resourceId=\"inst-0a1b2c3d\"",
        )
    })?;
    Ok(parse_id("filter", value)?)
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
