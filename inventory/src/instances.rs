//! `compute/instances`: what runs on hosts.

mod change;
mod shape;

use std::collections::HashMap;
use std::slice;

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::{InstanceInput, InstanceList, InstancePatch, InstanceResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, InstanceId, LocalAccountId};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccount;
use evenkeel_store::decisions::{Reading, world};
use evenkeel_store::listing::in_order;
use evenkeel_store::{
    StoreError, Tx, contents, custom_configs, hosts, instances, local_accounts, nodes,
};

use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::places::Places;
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams};
use crate::{App, Inventory, effective};

pub use change::check_fit;
pub use shape::{Related, resource, shallow};

/// What the store calls it.
pub const WHAT: &str = "instance_resource";

/// The list of instances.
struct Instances;

impl Listed for Instances {
    const RESOURCE: Resource = Resource::Instance;
    const KEY: &'static str = "instances";
    // An instance can hold half a megabyte of updates; most hold little, and pages are as long.
    const PIECE: u32 = 100;
    type Item = InstanceResource;

    async fn load(
        &self,
        _app: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<InstanceResource>, Problem> {
        let wanted: Vec<_> = ids.iter().copied().map(InstanceId::from_bits).collect();
        let found = instances::find_many(tx, &wanted).await?;
        let found = in_order(ids, found, |instance| instance.id.bits());
        Ok(resources(tx, &found).await?)
    }
}

/// List the instances.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances", tag = "instances", params(InProject, ListParams),
    responses((status = 200, description = "The instances, by id if nothing else is said.", body = InstanceList), Problem),
)]
pub async fn list_instances(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    listing::answer(Instances, &app, &call, &params).await
}

/// Make the instance of a host.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/instances", tag = "instances", params(InProject),
    request_body = InstanceInput,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn create_instance(
    State(app): State<App>,
    call: Call,
    Json(body): Json<InstanceInput>,
) -> Answer<InstanceResource> {
    let tx = app.write(&call).await?;
    let new = change::new_instance(&body)?;
    change::check_new(&tx, &new).await?;
    let instance = instances::create(&tx, &new, app.clock.now()).await?;
    let answer = one(&app, &tx, instance).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show an instance.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn get_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<InstanceResource> {
    let tx = app.read(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    let instance = instances::find(&tx, id).await?;
    let answer = one(&app, &tx, instance).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Describe an instance anew: its name, its kind and its policy. What is left out of these is emptied; what else is left
/// out stays.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    request_body = InstancePatch,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn put_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<InstancePatch>,
) -> Answer<InstanceResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the locks, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    let instance = instances::lock(&tx, id).await?;
    let wanted = change::anew(&instance, body);
    let instance = change::change(&tx, instance, &wanted, app.clock.now()).await?;
    let answer = one(&app, &tx, instance).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change an instance.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances",
    params(Item, MaskParams), request_body = InstancePatch,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn patch_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    asked: Change<InstancePatch>,
) -> Answer<InstanceResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the locks, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    let instance = instances::lock(&tx, id).await?;
    let wanted = asked.over(&change::input(&instance), params.text("fieldMask"))?;
    let instance = change::change(&tx, instance, &wanted, app.clock.now()).await?;
    let answer = one(&app, &tx, instance).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Withdraw the trust in an instance: from now on its node is not listened to.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/invalidate", tag = "instances", params(Item),
    responses((status = 200, description = "It is not trusted any more.", body = Empty), Problem),
)]
pub async fn invalidate_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    instances::invalidate(&tx, id, app.clock.now()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Delete an instance with its runs.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_instance(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: InstanceId = id_of_path(WHAT, &path.resource_id)?;
    instances::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// An instance with all that is known of it: also with what is too much for a list.
async fn one(app: &App, tx: &Tx, instance: Instance) -> Answer<InstanceResource> {
    let host = hosts::find(tx, instance.host).await?;
    let mut found = whole(tx, slice::from_ref(&instance), vec![host.clone()]).await?;
    let found = found.pop().ok_or_else(Problem::internal)?;
    let mut configs = match instance.custom_configs.as_slice() {
        [] => Vec::new(),
        ids => custom_configs::find_many(tx, ids).await?,
    };
    configs.sort_unstable_by_key(|config| config.id);
    let node = nodes::find(tx, instance.id).await?;
    let packages = match &node.packages_digest {
        None => None,
        Some(digest) => contents::get(tx, digest).await?,
    };
    let now = Reading::Look(app.clock.now());
    let world = world(tx, &host, &node, &app.settings.horizon, now).await?;
    Ok(Json(InstanceResource {
        custom_config: configs
            .iter()
            .map(crate::custom_configs::resource)
            .collect(),
        runtime_packages: packages.unwrap_or_default(),
        effective_update_policy: world.applies().map(effective::policy),
        ..found
    }))
}

/// Instances with their hosts: the same number of statements for any number of instances.
async fn resources(tx: &Tx, instances: &[Instance]) -> Result<Vec<InstanceResource>, StoreError> {
    let ids: Vec<_> = instances.iter().map(|instance| instance.host).collect();
    let hosts = hosts::find_many(tx, &ids).await?;
    whole(tx, instances, hosts).await
}

/// Puts instances together with their hosts and what else they refer to.
async fn whole(
    tx: &Tx,
    instances: &[Instance],
    hosts: Vec<Host>,
) -> Result<Vec<InstanceResource>, StoreError> {
    let related = Related::of(tx, instances).await?;
    let accounts = accounts(tx, instances).await?;
    let places = Places::of_hosts(tx, &hosts).await?;
    let providers = crate::providers::of_hosts(tx, &hosts).await?;
    let hosts: HashMap<HostId, Host> = hosts.into_iter().map(|host| (host.id, host)).collect();
    let host = |host: &Host| HostResource {
        provider: host
            .provider
            .and_then(|id| providers.get(&id))
            .map(crate::providers::resource),
        ..crate::hosts::resource(host, &places)
    };
    let whole = |instance: &Instance| InstanceResource {
        host: hosts.get(&instance.host).map(|on| Box::new(host(on))),
        localaccount: instance
            .local_account
            .and_then(|id| accounts.get(&id))
            .map(crate::local_accounts::resource),
        ..resource(instance, &related)
    };
    Ok(instances.iter().map(whole).collect())
}

/// The accounts that may log in to instances.
async fn accounts(
    tx: &Tx,
    instances: &[Instance],
) -> Result<HashMap<LocalAccountId, LocalAccount>, StoreError> {
    let mut ids: Vec<_> = instances
        .iter()
        .filter_map(|instance| instance.local_account)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    let found = match ids.as_slice() {
        [] => Vec::new(),
        ids => local_accounts::find_many(tx, ids).await?,
    };
    let by_id = found.into_iter().map(|account| (account.id, account));
    Ok(by_id.collect())
}
