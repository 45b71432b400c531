//! `compute/hosts`: the machines of the fleet.

mod hardware;
mod show;
pub mod summary;
pub mod transitions;

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::host::{HostInput, HostList, HostRegister, HostResource};
use evenkeel_domain::Time;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::host::{Host, Registration};
use evenkeel_domain::id::{HostId, SiteId};
use evenkeel_domain::place::Metadata;
use evenkeel_domain::text::Name;
use evenkeel_store::hosts::HostChange;
use evenkeel_store::listing::in_order;
use evenkeel_store::{Tx, hosts};

use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::places::{labels, metadata};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams, optional_id};
use crate::{App, Inventory};

use show::{resources, whole};

pub use show::{brought, resource};

const WHAT: &str = "host_resource";

/// List the hosts.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/hosts", tag = "hosts", params(InProject, ListParams),
    responses((status = 200, description = "The hosts, by id if nothing else is asked for.", body = HostList), Problem),
)]
pub async fn list_hosts(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    listing::answer(Hosts, &app, &call, &params).await
}

/// Hosts, to be listed.
struct Hosts;

impl Listed for Hosts {
    const RESOURCE: Resource = Resource::Host;
    const KEY: &'static str = "hosts";
    // A host holds what its instance holds.
    const PIECE: u32 = 100;
    type Item = HostResource;

    async fn load(
        &self,
        _app: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<HostResource>, Problem> {
        let wanted: Vec<_> = ids.iter().map(|bits| HostId::from_bits(*bits)).collect();
        let found = hosts::find_many_whole(tx, &wanted).await?;
        resources(tx, in_order(ids, found, |whole| whole.host.id.bits())).await
    }
}

/// Make a host without announcing it. It should be onboarded.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/hosts", tag = "hosts", params(InProject),
    request_body = HostInput,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn create_host(
    State(app): State<App>,
    call: Call,
    Json(body): Json<HostInput>,
) -> Answer<HostResource> {
    let tx = app.write(&call).await?;
    let made = Registration::made(&body.name, &body.uuid)?;
    let wanted = wanted(body)?;
    let now = app.clock.now();
    tx.write_wanted().await?;
    let host = hosts::register(&tx, &made, now).await?;
    apply(&tx, &host, wanted, now).await?;
    let answer = one(&tx, host.id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Announce a machine that will come.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/compute/hosts/register", tag = "hosts", params(InProject),
    request_body = HostRegister,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn register_host(
    State(app): State<App>,
    call: Call,
    Json(body): Json<HostRegister>,
) -> Answer<HostResource> {
    let tx = app.write(&call).await?;
    let registration = Registration::parse(
        &body.name,
        &body.uuid,
        &body.serial_number,
        body.auto_onboard,
    )?
    .with_user_lvm_size(body.user_lvm_size)?;
    let wanted = Wanted {
        name: registration.name.clone(),
        site: optional_id("siteId", &body.site_id)?,
        metadata: Metadata::default(),
    };
    let now = app.clock.now();
    if wanted.site.is_some() {
        tx.write_wanted().await?;
    }
    let host = hosts::register(&tx, &registration, now).await?;
    apply(&tx, &host, wanted, now).await?;
    let answer = one(&tx, host.id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show a host.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item),
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn get_host(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<HostResource> {
    let tx = app.read(&call).await?;
    let id: HostId = id_of_path(WHAT, &path.resource_id)?;
    one(&tx, id).await
}

/// Describe a host anew: its name, its site and its labels. Site and labels that are left out are emptied.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item),
    request_body = HostInput,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn put_host(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<HostInput>,
) -> Answer<HostResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: HostId = id_of_path(WHAT, &path.resource_id)?;
    let wanted = wanted(body)?;
    let host = hosts::find(&tx, id).await?;
    apply(&tx, &host, wanted, app.clock.now()).await?;
    let answer = one(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a host: its name, its site or its labels.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item, MaskParams),
    request_body = HostInput,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn patch_host(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<HostInput>,
) -> Answer<HostResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: HostId = id_of_path(WHAT, &path.resource_id)?;
    let host = hosts::find(&tx, id).await?;
    let wanted = wanted(change.over(&input(&host), params.text("fieldMask"))?)?;
    apply(&tx, &host, wanted, app.clock.now()).await?;
    let answer = one(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a host on which nothing runs.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}", tag = "hosts", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_host(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: HostId = id_of_path(WHAT, &path.resource_id)?;
    hosts::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// What of a host can be changed, as it should be.
struct Wanted {
    name: Name,
    site: Option<SiteId>,
    metadata: Metadata,
}

fn wanted(body: HostInput) -> Result<Wanted, Problem> {
    if let Some(field) = body.out_of_band() {
        let why = "Evenkeel does no out-of-band management; leave it out";
        return Err(Problem::invalid(field, why));
    }
    Ok(Wanted {
        name: Name::parse("name", &body.name)?,
        site: optional_id("siteId", &body.site_id)?,
        metadata: metadata(body.metadata)?,
    })
}

/// What a host is, as it would be asked for.
fn input(host: &Host) -> HostInput {
    HostInput {
        name: host.name.to_string(),
        site_id: host.site.map(|id| id.to_string()).unwrap_or_default(),
        metadata: labels(&host.metadata),
        ..HostInput::default()
    }
}

/// Makes a host what it should be, if it is otherwise.
async fn apply(tx: &Tx, host: &Host, wanted: Wanted, now: Time) -> Result<(), Problem> {
    let change = HostChange {
        name: (host.name != wanted.name).then_some(wanted.name),
        site: (host.site != wanted.site).then_some(wanted.site),
        metadata: (host.metadata != wanted.metadata).then_some(wanted.metadata),
    };
    if change != HostChange::default() {
        hosts::change(tx, host.id, &change, now).await?;
    }
    Ok(())
}

async fn one(tx: &Tx, id: HostId) -> Answer<HostResource> {
    let (host, related) = hosts::find_whole(tx, id).await?;
    Ok(Json(whole(host, &related)))
}
