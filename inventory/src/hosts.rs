//! `compute/hosts`: the machines of the fleet.

use std::collections::HashMap;

use axum::extract::State;
use evenkeel_api as api;
use evenkeel_api::host::{HostInput, HostList, HostRegister, HostResource};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::Time;
use evenkeel_domain::host::{Host, HostState, Registration};
use evenkeel_domain::id::{HostId, SiteId};
use evenkeel_domain::text::Name;
use evenkeel_store::hosts::HostChange;
use evenkeel_store::{Tx, hosts, instances};

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::instances::{Related, resource as instance_resource};
use crate::listing::{ListParams, envelope, page};
use crate::places::Places;
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams, optional_id, triplet};

const WHAT: &str = "host_resource";

/// List the hosts.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/hosts", tag = "hosts", params(InProject, ListParams),
    responses((status = 200, description = "The hosts, by id.", body = HostList), Problem),
)]
pub async fn list_hosts(State(app): State<App>, call: Call, params: Params) -> Answer<HostList> {
    params.refuse(&["filter", "orderBy"])?;
    let page = page(&params)?;
    let tx = app.read(&call).await?;
    let listed = hosts::list(&tx, page).await?;
    let (total_elements, has_next) = envelope(&listed, page);
    let hosts = resources(&tx, listed.items).await?;
    tx.commit().await?;
    Ok(Json(HostList {
        hosts,
        total_elements,
        has_next,
    }))
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
    )?;
    let site = optional_id("siteId", &body.site_id)?;
    let now = app.clock.now();
    if site.is_some() {
        tx.write_wanted().await?;
    }
    let host = hosts::register(&tx, &registration, now).await?;
    let placed = (host.name.clone(), site);
    let host = changed(&tx, host, placed, now).await?;
    let answer = one(&tx, host).await?;
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
    let host = hosts::find(&tx, id).await?;
    let answer = one(&tx, host).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Describe a host anew: its name and its site. What is left out is emptied.
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
    let change = change_of(&body)?;
    let host = hosts::find(&tx, id).await?;
    let host = changed(&tx, host, change, app.clock.now()).await?;
    let answer = one(&tx, host).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a host: its name or its site.
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
    let now = HostInput {
        name: host.name.to_string(),
        site_id: host.site.map(|id| id.to_string()).unwrap_or_default(),
        ..HostInput::default()
    };
    let wanted = change.over(&now, params.text("fieldMask"))?;
    let host = changed(&tx, host, change_of(&wanted)?, app.clock.now()).await?;
    let answer = one(&tx, host).await?;
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

fn change_of(body: &HostInput) -> Result<(Name, Option<SiteId>), Problem> {
    if !body.metadata.is_empty() {
        let why = "labels of hosts cannot be kept yet";
        return Err(Problem::invalid("metadata", why));
    }
    if let Some(field) = body.out_of_band() {
        let why = "Evenkeel does no out-of-band management; leave it out";
        return Err(Problem::invalid(field, why));
    }
    let name = Name::parse("name", &body.name)?;
    Ok((name, optional_id("siteId", &body.site_id)?))
}

/// A host under another name or at another site, if it is another.
async fn changed(
    tx: &Tx,
    host: Host,
    (name, site): (Name, Option<SiteId>),
    now: Time,
) -> Result<Host, Problem> {
    let change = HostChange {
        name: (host.name != name).then_some(name),
        site: (host.site != site).then_some(site),
    };
    if change == HostChange::default() {
        return Ok(host);
    }
    Ok(hosts::change(tx, host.id, &change, now).await?)
}

async fn one(tx: &Tx, host: Host) -> Answer<HostResource> {
    let mut found = resources(tx, vec![host]).await?;
    found.pop().map(Json).ok_or_else(Problem::internal)
}

/// Hosts with what runs on them and where they stand: the same number of statements for any number of hosts.
async fn resources(tx: &Tx, hosts: Vec<Host>) -> Result<Vec<HostResource>, Problem> {
    let ids: Vec<_> = hosts.iter().map(|host| host.id).collect();
    let instances = instances::of_hosts(tx, &ids).await?;
    let related = Related::of(tx, &instances).await?;
    let places = Places::of_hosts(tx, &hosts).await?;
    let by_host: HashMap<_, _> = instances.iter().map(|on| (on.host, on)).collect();
    let whole = |host: &Host| HostResource {
        instance: by_host
            .get(&host.id)
            .map(|instance| Box::new(instance_resource(instance, &related))),
        ..resource(host, &places)
    };
    Ok(hosts.iter().map(whole).collect())
}

/// A host without what runs on it.
pub fn resource(host: &Host, places: &Places) -> HostResource {
    let (host_status, host_status_indicator, host_status_timestamp) = triplet(&host.status);
    let onboarded = host.current == HostState::Onboarded;
    HostResource {
        resource_id: host.id.to_string(),
        name: host.name.to_string(),
        desired_state: state(host.desired),
        current_state: state(host.current),
        site_id: host.site.map(|id| id.to_string()).unwrap_or_default(),
        site: host.site.and_then(|id| places.site(id)),
        note: host.note.clone(),
        serial_number: host
            .serial
            .as_ref()
            .map(|serial| serial.as_str().to_owned())
            .unwrap_or_default(),
        uuid: host.uuid.map(|uuid| uuid.to_string()).unwrap_or_default(),
        hostname: host.hostname.clone(),
        host_status,
        host_status_indicator,
        host_status_timestamp,
        onboarding_status: if onboarded {
            "Onboarded"
        } else {
            "Not Connected"
        }
        .to_owned(),
        onboarding_status_indicator: if onboarded {
            api::status::StatusIndication::Idle
        } else {
            api::status::StatusIndication::Unspecified
        },
        registration_status: "Unknown".to_owned(),
        power_status: "Unknown".to_owned(),
        amt_status: "Unknown".to_owned(),
        inherited_metadata: places.inherited_by(host),
        timestamps: Some(Timestamps::new(host.created_at, host.updated_at)),
        ..HostResource::default()
    }
}

const fn state(state: HostState) -> api::host::HostState {
    use api::host::HostState as Wire;
    match state {
        HostState::Unspecified => Wire::Unspecified,
        HostState::Registered => Wire::Registered,
        HostState::Onboarded => Wire::Onboarded,
        HostState::Untrusted => Wire::Untrusted,
        HostState::Deleted => Wire::Deleted,
    }
}
