//! `pauses`: where nothing new starts.

use axum::extract::State;
use evenkeel_api::Empty;
use evenkeel_api::pause::{PauseInput, PauseList, PauseResource};
use evenkeel_domain::order::reason;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_store::{StoreError, Tx, pauses};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::call::{Call, named_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::few::{Page, PageParams};
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
    get, path = "/v1/projects/{projectName}/pauses", tag = "pauses", params(InProject, PageParams),
    responses((status = 200, description = "The pauses, longest first.", body = PauseList), Problem),
)]
pub async fn list_pauses(State(app): State<App>, call: Call, params: Params) -> Answer<PauseList> {
    let page = Page::of(&params)?;
    let tx = app.read(&call).await?;
    let all = pauses::all(&tx).await?;
    let few = page.of_all(all);
    Ok(Json(PauseList {
        pauses: few.items.iter().map(resource).collect(),
        total_elements: few.total_elements,
        has_next: few.has_next,
        next_page_token: few.next_page_token,
    }))
}

/// Show a pause.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/pauses/{scope}", tag = "pauses", params(At),
    responses((status = 200, description = "The pause.", body = PauseResource), Problem),
)]
pub async fn get_pause(
    State(app): State<App>,
    call: Call,
    Path(path): Path<At>,
) -> Answer<PauseResource> {
    let tx = app.read(&call).await?;
    let found = find(&tx, &path).await?;
    Ok(Json(resource(&found)))
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

/// Take a pause back. Other pauses stay, and an assignment that stopped after failures stays stopped.
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
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let found = find(&tx, &path).await?;
    pauses::clear(&tx, found.scope).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

async fn find(tx: &Tx, path: &At) -> Result<Pause, Problem> {
    let scope: PauseScope = named_of_path("scope", WHAT, &path.scope)?;
    let found = pauses::find(tx, scope).await?;
    Ok(found.ok_or(StoreError::NotFound { what: WHAT })?)
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
