//! Desired state of hosts: `register`, `onboard`, `invalidate`.

use evenkeel_api::Empty;
use evenkeel_api::host::{HostRegister, HostResource};
use evenkeel_domain::host::{HostState, InvalidationNote, Registration};
use evenkeel_domain::id::HostId;
use evenkeel_domain::text::Name;
use evenkeel_store::hosts;
use evenkeel_store::hosts::HostChange;
use utoipa::IntoParams;

use super::{RESOURCE_KIND, load_host_resource};
use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Params, Patch, Path};
use crate::problem::Problem;
use crate::shape::{Answer, Item};

/// Change the registration of a host
///
/// Changes the name and `autoOnboard`, if the body has them. The server ignores the other fields.
/// The name has at most 20 bytes.
///
/// The server refuses `autoOnboard: false` for an onboarded host, and `autoOnboard` for an
/// invalidated host (`failed-precondition`).
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}/register", tag = "hosts", params(Item),
    request_body = HostRegister,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn reregister_host(
    call: Call,
    Path(path): Path<Item>,
    changes: Patch<HostRegister>,
) -> Answer<HostResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: HostId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let name = Name::parse_up_to("name", &changes.body.name, Registration::MAX_NAME_BYTES)?;
    let now = tx.database_time();
    let host = hosts::find(&tx, id).await?;
    if changes.fields.contains_key("name") && host.name != name {
        let change = HostChange { name: Some(name), ..HostChange::default() };
        hosts::change(&tx, id, &change, now).await?;
    }
    if changes.fields.contains_key("autoOnboard") {
        let state = Registration::desired_if(changes.body.auto_onboard);
        hosts::set_desired_state(&tx, id, state, now).await?;
    }
    let answer = load_host_resource(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Onboard a host
///
/// Sets the desired state: the server onboards the host as soon as its machine connects. The
/// request has no body. A repeated request changes nothing.
///
/// The server refuses an invalidated host (`failed-precondition`).
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}/onboard", tag = "hosts", params(Item),
    responses((status = 200, description = "The host will be onboarded.", body = Empty), Problem),
)]
pub async fn onboard_host(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: HostId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    hosts::set_desired_state(&tx, id, HostState::Onboarded, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Query parameters of an invalidation.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct NoteParams {
    /// Reason for the invalidation: one line of at most 512 characters. It is stored and shown with
    /// the host.
    #[param(min_length = 1, max_length = 512)]
    note: Option<String>,
}

/// Invalidate a host
///
/// Withdraws the trust in the machine: the server refuses it from now on. This cannot be undone: to
/// use the machine again, delete the host and register it again. A repeated request replaces the
/// note. A host whose machine has never connected can be invalidated as well.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}/invalidate", tag = "hosts",
    params(Item, NoteParams),
    responses((status = 200, description = "The host is invalidated.", body = Empty), Problem),
)]
pub async fn invalidate_host(call: Call, Path(path): Path<Item>, params: Params) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: HostId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let note = InvalidationNote::parse(params.text("note").unwrap_or_default());
    let note = note.map_err(|invalid| Problem::from(invalid).into_parameter())?;
    hosts::invalidate(&tx, id, &note, tx.database_time()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}
