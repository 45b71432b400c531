//! `pauses`: scopes in which no new updates start.

use evenkeel_api::Empty;
use evenkeel_api::pause::{PauseInput, PauseList, PauseResource};
use evenkeel_domain::order::parse_reason;
use evenkeel_domain::pause::{Pause, PauseScope};
use evenkeel_store::{StoreError, Tx, pauses};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::call::{Call, parse_path_id};
use crate::extract::{Json, Params, Path};
use crate::listing::short_list::{PageParams, PageQuery};
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

const RESOURCE_KIND: &str = "pause";

/// The scope of a pause.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct PausePath {
    /// Name of the project.
    #[serde(rename = "projectName")]
    _project_name: String,
    /// `project`, or the ID of a site or of a policy.
    scope: String,
}

/// List pauses
///
/// The oldest pauses come first. The list has no `filter` and no `orderBy`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/pauses", tag = "pauses", params(InProject, PageParams),
    responses((status = 200, description = "The pauses, oldest first.", body = PauseList), Problem),
)]
pub async fn list_pauses(call: Call, params: Params) -> Answer<PauseList> {
    let page = PageQuery::from_params(&params)?;
    let tx = call.read().await?;
    let all = pauses::all(&tx).await?;
    let part = page.paginate(all);
    Ok(Json(PauseList {
        pauses: part.items.iter().map(resource).collect(),
        total_elements: part.total_elements,
        has_next: part.has_next,
        next_page_token: part.next_page_token,
    }))
}

/// Get a pause
///
/// Returns the pause of this scope only. For a scope without a pause the answer is `not-found`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/pauses/{scope}", tag = "pauses", params(PausePath),
    responses((status = 200, description = "The pause.", body = PauseResource), Problem),
)]
pub async fn get_pause(call: Call, Path(path): Path<PausePath>) -> Answer<PauseResource> {
    let tx = call.read().await?;
    let pause = find_pause(&tx, &path).await?;
    Ok(Json(resource(&pause)))
}

/// Pause updates
///
/// No new update starts in the scope until the pause is removed. Updates that have started
/// continue. A repeated request replaces the reason, the caller and the time of the pause.
///
/// The server refuses a site or policy that does not exist (`not-found`), and a reason that has
/// more than 500 bytes or several lines (`invalid-argument`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/pauses/{scope}", tag = "pauses", params(PausePath), request_body = PauseInput,
    responses((status = 200, description = "The pause.", body = PauseResource), Problem),
)]
pub async fn put_pause(
    call: Call,
    Path(path): Path<PausePath>,
    Json(body): Json<PauseInput>,
) -> Answer<PauseResource> {
    let (tx, by) = call.write_as_caller().await?;
    let scope: PauseScope = parse_path_id("scope", RESOURCE_KIND, &path.scope)?;
    let pause = Pause { scope, reason: parse_reason(&body.reason)?, by, at: tx.database_time() };
    pauses::set(&tx, &pause).await?;
    tx.commit().await?;
    Ok(Json(resource(&pause)))
}

/// Remove a pause
///
/// Other pauses stay in effect, and an assignment that stopped after failures stays stopped. For a
/// scope without a pause the answer is `not-found`.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/pauses/{scope}", tag = "pauses", params(PausePath),
    responses((status = 200, description = "The pause is removed.", body = Empty), Problem),
)]
pub async fn delete_pause(call: Call, Path(path): Path<PausePath>) -> Answer<Empty> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let pause = find_pause(&tx, &path).await?;
    pauses::clear(&tx, pause.scope).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

async fn find_pause(tx: &Tx, path: &PausePath) -> Result<Pause, Problem> {
    let scope: PauseScope = parse_path_id("scope", RESOURCE_KIND, &path.scope)?;
    let pause = pauses::find(tx, scope).await?;
    Ok(pause.ok_or(StoreError::NotFound { what: RESOURCE_KIND })?)
}

/// REST form of a pause.
pub fn resource(pause: &Pause) -> PauseResource {
    PauseResource {
        scope: pause.scope.to_string(),
        reason: pause.reason.clone(),
        by: pause.by.clone(),
        since: pause.at,
    }
}
