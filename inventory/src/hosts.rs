//! `compute/hosts`: the machines of the fleet.

pub mod summary;
pub mod transitions;

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::host::{HostInput, HostList, HostRegister, HostResource};
use evenkeel_domain::Time;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::host::{Host, Registration};
use evenkeel_domain::id::{HostId, SiteId};
use evenkeel_domain::location::Metadata;
use evenkeel_domain::text::Name;
use evenkeel_store::hosts::HostChange;
use evenkeel_store::listing::in_order;
use evenkeel_store::{Tx, hosts};

use crate::call::{Call, parse_resource_id};
use crate::effective::{self, PolicyParams};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::location_tree::{labels, metadata};
use crate::problem::Problem;
use crate::shape::hosts::{full_resource, load_related};
use crate::shape::{Answer, InProject, Item, MaskParams, optional_id};

const RESOURCE_KIND: &str = "host_resource";

/// List hosts
///
/// Returns each host with its hardware, site, provider and instance. The instance lacks the fields
/// that only the response for a single instance has; `showEffectivePolicy` adds the policy that
/// applies to it.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/hosts", tag = "hosts",
    params(InProject, ListParams, PolicyParams),
    responses((status = 200, description = "The hosts; by default ordered by id.", body = HostList), Problem),
)]
pub async fn list_hosts(call: Call, params: Params) -> Result<Response, Problem> {
    let with_policies = effective::shows_policies(&params)?;
    listing::answer(Hosts { with_policies }, &call, &params).await
}

struct Hosts {
    /// Whether to load the policies that apply.
    with_policies: bool,
}

impl Listable for Hosts {
    const RESOURCE: Resource = Resource::Host;
    const KEY: &'static str = "hosts";
    // A host contains its instance, which can be large.
    const CHUNK_SIZE: u32 = 100;
    type Item = HostResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<HostResource>, Problem> {
        let host_ids: Vec<_> = ids.iter().map(|bits| HostId::from_bits(*bits)).collect();
        let hosts = hosts::find_many_details(tx, &host_ids).await?;
        let hosts = in_order(ids, hosts, |record| record.host.id.bits());
        let related = load_related(tx, &hosts).await?;
        let mut policies = Vec::new();
        if self.with_policies {
            let nodes = hosts.iter().filter_map(|it| Some((&it.host, it.instance.as_ref()?)));
            let nodes: Vec<_> = nodes.collect();
            policies = effective::load_policies(tx, &nodes, &related).await?;
        }
        let resources = hosts.into_iter().map(|record| full_resource(record, &related));
        let mut resources: Vec<_> = resources.collect();
        let instances = resources.iter_mut().filter_map(|host| host.instance.as_deref_mut());
        for (instance, policy) in instances.zip(policies) {
            instance.effective_update_policy = policy;
        }
        Ok(resources)
    }
}

/// Create a host
///
/// Creates a host that the server onboards as soon as its machine connects. The host may have no
/// UUID and no serial number yet. To announce a machine by its serial number, register it instead.
///
/// The server refuses a UUID that another host of the project has, and a site that does not exist
/// (`failed-precondition`). It refuses a field of out-of-band management that has another value
/// than its default (`invalid-argument`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/hosts", tag = "hosts", params(InProject),
    request_body = HostInput,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn create_host(call: Call, Json(body): Json<HostInput>) -> Answer<HostResource> {
    let tx = call.write().await?;
    let registration = Registration::without_registration(&body.name, &body.uuid)?;
    let desired = parse_desired(body)?;
    let now = tx.database_time();
    tx.lock_for_change().await?;
    let host = hosts::register(&tx, &registration, now).await?;
    apply(&tx, &host, desired, now).await?;
    let answer = load_host_resource(&tx, host.id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Register a host
///
/// Announces a machine by its UUID, its serial number or both, before it connects. With
/// `autoOnboard` the server onboards the machine as soon as it connects.
///
/// The server refuses a body with neither of the two (`invalid-argument`). It refuses a UUID that
/// another host of the project has, without a UUID the serial number of another host without a
/// UUID, and a site that does not exist (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/hosts/register", tag = "hosts", params(InProject),
    request_body = HostRegister,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn register_host(call: Call, Json(body): Json<HostRegister>) -> Answer<HostResource> {
    let tx = call.write().await?;
    let registration =
        Registration::parse(&body.name, &body.uuid, &body.serial_number, body.auto_onboard)?
            .with_user_lvm_size(body.user_lvm_size)?;
    let desired = DesiredHost {
        name: registration.name.clone(),
        site: optional_id("siteId", &body.site_id)?,
        metadata: Metadata::default(),
    };
    let now = tx.database_time();
    if desired.site.is_some() {
        tx.lock_for_change().await?;
    }
    let host = hosts::register(&tx, &registration, now).await?;
    apply(&tx, &host, desired, now).await?;
    let answer = load_host_resource(&tx, host.id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get a host
///
/// Returns the host with its hardware, site, provider and instance.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item),
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn get_host(call: Call, Path(path): Path<Item>) -> Answer<HostResource> {
    let tx = call.read().await?;
    let id: HostId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    load_host_resource(&tx, id).await
}

/// Replace a host
///
/// Sets the name, the site and the labels. A missing site or missing labels are cleared. The server
/// ignores `uuid` and the read-only fields, so a client can send back what it has read. A repeated
/// request has the same result.
///
/// The server refuses a site that does not exist (`failed-precondition`), and a field of
/// out-of-band management that has another value than its default (`invalid-argument`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item),
    request_body = HostInput,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn put_host(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<HostInput>,
) -> Answer<HostResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: HostId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let desired = parse_desired(body)?;
    let host = hosts::find(&tx, id).await?;
    apply(&tx, &host, desired, tx.database_time()).await?;
    let answer = load_host_resource(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a host
///
/// Changes the name, the site or the labels. Other fields stay unchanged.
///
/// The server refuses the same as for PUT.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item, MaskParams),
    request_body = HostInput,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn patch_host(
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<HostInput>,
) -> Answer<HostResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: HostId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let host = hosts::find(&tx, id).await?;
    let desired = parse_desired(change.apply_to(&to_input(&host), params.text("fieldMask"))?)?;
    apply(&tx, &host, desired, tx.database_time()).await?;
    let answer = load_host_resource(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a host
///
/// Deletes the host with its hardware, its assignment and its schedules.
///
/// The server refuses a host that has an instance (`failed-precondition`): delete the instance
/// first.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item),
    responses((status = 200, description = "The host is deleted.", body = Empty), Problem),
)]
pub async fn delete_host(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: HostId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    hosts::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Desired values of the fields of a host that can be changed.
struct DesiredHost {
    name: Name,
    site: Option<SiteId>,
    metadata: Metadata,
}

fn parse_desired(body: HostInput) -> Result<DesiredHost, Problem> {
    if let Some(field) = body.out_of_band_field() {
        let why = "Evenkeel has no out-of-band management; omit this field";
        return Err(Problem::invalid(field, why));
    }
    Ok(DesiredHost {
        name: Name::parse("name", &body.name)?,
        site: optional_id("siteId", &body.site_id)?,
        metadata: metadata(body.metadata)?,
    })
}

/// The input that describes a host.
fn to_input(host: &Host) -> HostInput {
    HostInput {
        name: host.name.to_string(),
        site_id: host.site.map(|id| id.to_string()).unwrap_or_default(),
        metadata: labels(&host.metadata),
        ..HostInput::default()
    }
}

/// Applies the desired values, if they differ from the current ones.
async fn apply(tx: &Tx, host: &Host, desired: DesiredHost, now: Time) -> Result<(), Problem> {
    let change = HostChange {
        name: (host.name != desired.name).then_some(desired.name),
        site: (host.site != desired.site).then_some(desired.site),
        metadata: (host.metadata != desired.metadata).then_some(desired.metadata),
    };
    if change != HostChange::default() {
        hosts::change(tx, host.id, &change, now).await?;
    }
    Ok(())
}

async fn load_host_resource(tx: &Tx, id: HostId) -> Answer<HostResource> {
    let (host, related) = hosts::find_details(tx, id).await?;
    Ok(Json(full_resource(host, &related)))
}
