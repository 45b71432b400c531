//! `compute/instances`: the operating systems that run on hosts.

mod change;

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::instance::{InstanceInput, InstanceList, InstancePatch, InstanceResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::instance::Instance;
use evenkeel_store::instances::InstanceDetails;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, Related, RelatedIds};
use evenkeel_store::{Tx, instances};

use crate::call::{Call, parse_resource_id};
use crate::effective::PolicyParams;
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::problem::Problem;
use crate::shape::instances as shape;
use crate::shape::{Answer, InProject, Item, MaskParams, hosts};
use crate::{custom_configs, effective, local_accounts};

pub use change::check_policy_matches_os;

/// Name of the resource kind in errors of the store.
pub const RESOURCE_KIND: &str = "instance_resource";

struct Instances {
    /// Whether to load the policies that apply.
    with_policies: bool,
}

impl Listable for Instances {
    const RESOURCE: Resource = Resource::Instance;
    const KEY: &'static str = "instances";
    // An instance can hold half a megabyte of available updates, but most are small, and pages have
    // up to 100.
    const CHUNK_SIZE: u32 = 100;
    type Item = InstanceResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<InstanceResource>, Problem> {
        let instance_ids: Vec<_> = ids.iter().copied().map(InstanceId::from_bits).collect();
        let instances = instances::find_with_hosts(tx, &instance_ids).await?;
        let instances = in_order(ids, instances, |(instance, _)| instance.id.bits());
        let mut related_ids = RelatedIds::default();
        for (instance, host) in &instances {
            add_related_ids(&mut related_ids, instance, host);
        }
        let related = related::load(tx, &related_ids).await?;
        let resources =
            instances.iter().map(|(instance, host)| full_resource(instance, host, &related));
        let mut resources: Vec<_> = resources.collect();
        if self.with_policies {
            let nodes: Vec<_> = instances.iter().map(|(instance, host)| (host, instance)).collect();
            let policies = effective::load_policies(tx, &nodes, &related).await?;
            for (resource, policy) in resources.iter_mut().zip(policies) {
                resource.effective_update_policy = policy;
            }
        }
        Ok(resources)
    }
}

/// List instances
///
/// Returns each instance with its host, operating system, local account and policy.
/// `showEffectivePolicy` adds the policy that applies. Only the response for a single instance has
/// the custom configurations, installed packages, CVEs, image slots and failed images, the reasons
/// for a reboot, the updates that are held back, the services that run replaced files, and the last
/// change of packages by others.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances", tag = "instances",
    params(InProject, ListParams, PolicyParams),
    responses((status = 200, description = "The instances; by default ordered by id.", body = InstanceList), Problem),
)]
pub async fn list_instances(call: Call, params: Params) -> Result<Response, Problem> {
    let with_policies = effective::shows_policies(&params)?;
    listing::answer(Instances { with_policies }, &call, &params).await
}

/// Create the instance of a host
///
/// Creates the instance of a host, and assigns a policy to it if the body names one. A host has at
/// most one instance.
///
/// The server refuses a host that has an instance, and a host, operating system, policy, local
/// account or custom configuration that does not exist (`failed-precondition`). It refuses a policy
/// that does not fit the operating system (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/instances", tag = "instances", params(InProject),
    request_body = InstanceInput,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn create_instance(
    call: Call,
    Json(body): Json<InstanceInput>,
) -> Answer<InstanceResource> {
    let tx = call.write().await?;
    let new = change::parse_new_instance(&body)?;
    change::check_new_instance(&tx, &new).await?;
    let instance = instances::create(&tx, &new, tx.database_time()).await?;
    let answer = load_instance_resource(&tx, instance.id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get an instance
///
/// Returns what lists omit as well: the effective policy, custom configurations, installed
/// packages, CVEs, image slots and failed images, the reasons for a reboot, the updates that are
/// held back, the services that run replaced files, and the last change of packages by others.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn get_instance(call: Call, Path(path): Path<Item>) -> Answer<InstanceResource> {
    let tx = call.read().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    load_instance_resource(&tx, id).await
}

/// Replace an instance
///
/// Sets the name, the kind and the update policy; those that are missing are cleared. Other fields
/// that are missing stay unchanged. The same policy keeps its limits and its failures, another
/// policy keeps only the limits. A repeated request has the same result.
///
/// The server refuses another host, local account, custom configuration or security feature,
/// another operating system after the node has reported, and a policy that does not fit the
/// operating system (`invalid-argument`). It refuses a policy or an operating system that does not
/// exist (`failed-precondition`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    request_body = InstancePatch,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn put_instance(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<InstancePatch>,
) -> Answer<InstanceResource> {
    let tx = call.write().await?;
    // Read under the locks, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let instance = instances::lock(&tx, id).await?;
    let desired = change::complete_replacement(&instance, body);
    change::apply_change(&tx, &instance, &desired, tx.database_time()).await?;
    let answer = load_instance_resource(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change an instance
///
/// Fields that the body does not name stay unchanged.
///
/// The server refuses the same as for PUT.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances",
    params(Item, MaskParams), request_body = InstancePatch,
    responses((status = 200, description = "The instance.", body = InstanceResource), Problem),
)]
pub async fn patch_instance(
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    changes: Change<InstancePatch>,
) -> Answer<InstanceResource> {
    let tx = call.write().await?;
    // Read under the locks, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let instance = instances::lock(&tx, id).await?;
    let desired = changes.apply_to(&change::to_input(&instance), params.text("fieldMask"))?;
    change::apply_change(&tx, &instance, &desired, tx.database_time()).await?;
    let answer = load_instance_resource(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Invalidate an instance
///
/// Withdraws the trust in the instance: the server refuses its node from now on. This cannot be
/// undone: to use the host again, delete the instance and create another one. A repeated request
/// changes nothing.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/invalidate", tag = "instances", params(Item),
    responses((status = 200, description = "The instance is no longer trusted.", body = Empty), Problem),
)]
pub async fn invalidate_instance(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    instances::invalidate(&tx, id, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Delete an instance
///
/// Deletes the instance with its runs, its order and its assignment. The host stays.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/instances/{resourceId}", tag = "instances", params(Item),
    responses((status = 200, description = "The instance is deleted.", body = Empty), Problem),
)]
pub async fn delete_instance(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: InstanceId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    instances::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// REST form of one instance, with the fields that are too large for lists.
async fn load_instance_resource(tx: &Tx, id: InstanceId) -> Answer<InstanceResource> {
    let (record, related) = instances::find_details(tx, id).await?;
    let InstanceDetails { instance, host, .. } = &record;
    let policy = effective::load_policies(tx, &[(host, instance)], &related).await?.pop().flatten();
    let configs = instance.custom_configs.iter();
    let configs = configs.filter_map(|id| related.custom_configs.get(id));
    let resource = InstanceResource {
        custom_config: configs.map(custom_configs::resource).collect(),
        effective_update_policy: policy,
        ..full_resource(instance, host, &related)
    };
    Ok(Json(InstanceResource {
        runtime_packages: record.packages.unwrap_or_default(),
        existing_cves: record.existing_cves.unwrap_or_default(),
        slots: record.slots.into_iter().map(shape::slot).collect(),
        bad_images: record.failed_images.into_iter().map(shape::bad_image).collect(),
        reboot_reasons: record.reboot_reasons,
        held_back_packages: record
            .held_back_updates
            .into_iter()
            .map(shape::held_back_package)
            .collect(),
        stale_units: record.stale_services.into_iter().map(shape::stale_unit).collect(),
        foreign_change: record.foreign_change.map(shape::foreign_change),
        ..resource
    }))
}

/// Adds the ids of everything that an instance is shown with.
fn add_related_ids(related_ids: &mut RelatedIds, instance: &Instance, host: &Host) {
    related_ids.add_instance(instance);
    related_ids.add_host(host);
    related_ids.local_accounts.extend(instance.local_account);
}

/// REST form of an instance with its host and the other resources that it refers to.
fn full_resource(instance: &Instance, host: &Host, related: &Related) -> InstanceResource {
    let account = instance.local_account;
    let account = account.and_then(|id| related.local_accounts.get(&id));
    InstanceResource {
        host: Some(Box::new(hosts::resource_with_provider(host, related))),
        localaccount: account.map(local_accounts::resource),
        ..shape::resource(instance, related)
    }
}
