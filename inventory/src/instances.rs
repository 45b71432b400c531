//! `compute/instances`: what runs on hosts.

mod change;
mod shape;

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::instance::{InstanceInput, InstanceList, InstancePatch, InstanceResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::instance::Instance;
use evenkeel_store::instances::WholeInstance;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, Related, Wanted};
use evenkeel_store::{Tx, decisions, instances};

use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams};
use crate::{App, Inventory, custom_configs, effective, hosts, local_accounts};

pub use change::check_fit;
pub use shape::{resource, shallow};

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
        let found = instances::find_with_hosts(tx, &wanted).await?;
        let found = in_order(ids, found, |(instance, _)| instance.id.bits());
        let mut wanted = Wanted::default();
        for (instance, host) in &found {
            want(&mut wanted, instance, host);
        }
        let related = related::read(tx, &wanted).await?;
        let shown = found
            .iter()
            .map(|(instance, host)| whole(instance, host, &related));
        Ok(shown.collect())
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
    let answer = one(&tx, instance.id).await?;
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
    one(&tx, id).await
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
    change::change(&tx, &instance, &wanted, app.clock.now()).await?;
    let answer = one(&tx, id).await?;
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
    change::change(&tx, &instance, &wanted, app.clock.now()).await?;
    let answer = one(&tx, id).await?;
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
async fn one(tx: &Tx, id: InstanceId) -> Answer<InstanceResource> {
    let (found, related) = instances::find_whole(tx, id).await?;
    let WholeInstance {
        instance,
        host,
        packages,
        existing_cves,
        slots,
        failed_images,
    } = found;
    let applied = decisions::applied(tx, &host, &instance).await?;
    let configs = instance.custom_configs.iter();
    let configs = configs.filter_map(|id| related.custom_configs.get(id));
    Ok(Json(InstanceResource {
        custom_config: configs.map(custom_configs::resource).collect(),
        runtime_packages: packages.unwrap_or_default(),
        existing_cves: existing_cves.unwrap_or_default(),
        effective_update_policy: applied.as_ref().map(effective::policy),
        slots: slots.into_iter().map(shape::slot).collect(),
        bad_images: failed_images.into_iter().map(shape::bad_image).collect(),
        ..whole(&instance, &host, &related)
    }))
}

/// Adds what an instance is shown with.
fn want(wanted: &mut Wanted, instance: &Instance, host: &Host) {
    wanted.add_instance(instance);
    wanted.add_host(host);
    wanted.local_accounts.extend(instance.local_account);
}

/// An instance with its host and what else it refers to.
fn whole(instance: &Instance, host: &Host, related: &Related) -> InstanceResource {
    let account = instance.local_account;
    let account = account.and_then(|id| related.local_accounts.get(&id));
    InstanceResource {
        host: Some(Box::new(hosts::brought(host, related))),
        localaccount: account.map(local_accounts::resource),
        ..resource(instance, related)
    }
}
