//! Where hosts should stand: `register`, `onboard`, `invalidate`.

use axum::extract::State;
use evenkeel_api::Empty;
use evenkeel_api::host::{HostRegister, HostResource};
use evenkeel_domain::host::{HostState, Note, Registration};
use evenkeel_domain::id::HostId;
use evenkeel_domain::text::Name;
use evenkeel_store::hosts;
use evenkeel_store::hosts::HostChange;
use utoipa::IntoParams;

use super::{WHAT, one};
use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Patch, Path};
use crate::problem::Problem;
use crate::shape::{Answer, Item};

/// Announce a machine otherwise: its name, and whether it is to be onboarded as soon as it comes. What is not given
/// stays; anything else that was announced stays as well.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}/register", tag = "hosts", params(Item),
    request_body = HostRegister,
    responses((status = 200, description = "The host.", body = HostResource), Problem),
)]
pub async fn reregister_host(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    asked: Patch<HostRegister>,
) -> Answer<HostResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: HostId = id_of_path(WHAT, &path.resource_id)?;
    let name = Name::parse_up_to("name", &asked.body.name, Registration::MAX_NAME)?;
    let now = app.clock.now();
    let host = hosts::find(&tx, id).await?;
    if asked.given.contains_key("name") && host.name != name {
        let change = HostChange {
            name: Some(name),
            ..HostChange::default()
        };
        hosts::change(&tx, id, &change, now).await?;
    }
    if asked.given.contains_key("autoOnboard") {
        let state = Registration::desired_if(asked.body.auto_onboard);
        hosts::want(&tx, id, state, now).await?;
    }
    let answer = one(&tx, id).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Let a machine be onboarded as soon as it comes.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}/onboard", tag = "hosts", params(Item),
    responses((status = 200, description = "It is to be onboarded.", body = Empty), Problem),
)]
pub async fn onboard_host(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: HostId = id_of_path(WHAT, &path.resource_id)?;
    hosts::want(&tx, id, HostState::Onboarded, app.clock.now()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Why a host is invalidated, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the value"
)]
pub struct NoteParams {
    /// Why it is invalidated; kept and shown with the host.
    #[param(min_length = 1, max_length = 512)]
    note: Option<String>,
}

/// Invalidate a host: whoever claims to be it is refused from now on. There is no way back but to delete it and to
/// announce it again.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/compute/hosts/{resourceId}/invalidate", tag = "hosts",
    params(Item, NoteParams),
    responses((status = 200, description = "It is invalidated.", body = Empty), Problem),
)]
pub async fn invalidate_host(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: HostId = id_of_path(WHAT, &path.resource_id)?;
    let note = Note::parse(params.text("note").unwrap_or_default());
    let note = note.map_err(|invalid| Problem::from(invalid).of_parameter())?;
    hosts::invalidate(&tx, id, &note, app.clock.now()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}
