//! `pauses`: where nothing new starts.

use axum::extract::State;
use evenkeel_api::Empty;
use evenkeel_api::pause::{PauseInput, PauseList, PauseResource};
use evenkeel_domain::order::reason;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_store::{StoreError, Tx, pauses, policies, sites};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::call::{Call, named_of_path};
use crate::extract::{Json, Params, Path};
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

const WHAT: &str = "pause";

/// Where a pause holds.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct At {
    /// The name of the project.
    #[serde(rename = "projectName")]
    _project_name: String,
    /// `project`, or the id of a site or of a policy.
    scope: String,
}

/// List the pauses.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/pauses", tag = "pauses", params(InProject),
    responses((status = 200, description = "The pauses, longest first.", body = PauseList), Problem),
)]
pub async fn list_pauses(State(app): State<App>, call: Call, params: Params) -> Answer<PauseList> {
    params.refuse(&["filter", "orderBy", "pageSize", "offset"])?;
    let tx = app.read(&call).await?;
    let pauses: Vec<_> = pauses::list(&tx).await?.iter().map(resource).collect();
    tx.commit().await?;
    Ok(Json(PauseList {
        total_elements: i32::try_from(pauses.len()).unwrap_or(i32::MAX),
        has_next: false,
        pauses,
    }))
}

/// Start nothing new here until the pause is taken back. What goes on goes on.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/pauses/{scope}", tag = "pauses", params(At), request_body = PauseInput,
    responses((status = 200, description = "The pause.", body = PauseResource), Problem),
)]
pub async fn put_pause(
    State(app): State<App>,
    call: Call,
    Path(path): Path<At>,
    Json(body): Json<PauseInput>,
) -> Answer<PauseResource> {
    let (tx, by) = app.write_by_name(&call).await?;
    let scope: PauseScope = named_of_path("scope", WHAT, &path.scope)?;
    let pause = Pause {
        scope,
        reason: reason(&body.reason)?,
        by,
        at: app.clock.now(),
    };
    pauses::set(&tx, &pause).await?;
    tx.commit().await?;
    Ok(Json(resource(&pause)))
}

/// Take a pause back, and let assignments of the same that stopped after failures go on: failures count anew. Nothing was
/// paused: they go on all the same.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/pauses/{scope}", tag = "pauses", params(At),
    responses((status = 200, description = "It is taken back.", body = Empty), Problem),
)]
pub async fn delete_pause(
    State(app): State<App>,
    call: Call,
    Path(path): Path<At>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let scope: PauseScope = named_of_path("scope", WHAT, &path.scope)?;
    must_be_there(&tx, scope).await?;
    pauses::clear(&tx, scope, app.clock.now()).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

async fn must_be_there(tx: &Tx, scope: PauseScope) -> Result<(), StoreError> {
    match scope {
        PauseScope::Project => {}
        PauseScope::Site(id) => drop(sites::find(tx, id).await?),
        PauseScope::Policy(id) => drop(policies::find(tx, id).await?),
    }
    Ok(())
}

/// A pause on the wire.
pub fn resource(pause: &Pause) -> PauseResource {
    PauseResource {
        scope: pause.scope.to_string(),
        reason: pause.reason.clone(),
        by: pause.by.clone(),
        since: pause.at,
    }
}
