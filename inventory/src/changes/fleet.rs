//! `/v1/changes`: changes that belong to no project.

use axum::http::HeaderMap;
use axum::response::Response;
use evenkeel_api::change::{ChangeList, ChangeResource};
use evenkeel_domain::tenant::TenantId;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::{ChangeParams, ChangeScope, StreamHeaders, find, list_or_watch};
use crate::call::Call;
use crate::extract::{Params, Path};
use crate::problem::{CursorExpired, Problem};
use crate::shape::Answer;

/// A change outside of projects, by its ID.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
#[serde(rename_all = "camelCase")]
pub struct FleetChangePath {
    /// ID of the change.
    change_id: String,
}

/// Query parameter of the project whose changes are read.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct AnyProjectParams {
    /// UUID of a project, which may be deleted: read its changes instead. The change `delete` of a
    /// project has the UUID in its row. It excludes `watch=true`.
    #[param(min_length = 1)]
    project_uuid: Option<String>,
}

/// The scope of a request. The nil UUID is no project.
fn parse_scope(params: &Params) -> Result<ChangeScope, Problem> {
    let Some(text) = params.text("projectUuid") else {
        return Ok(ChangeScope::Fleet);
    };
    let uuid = Uuid::try_parse(text).ok().filter(|uuid| !uuid.is_nil());
    let uuid = uuid.ok_or_else(|| Problem::parameter("projectUuid", "must be a UUID"))?;
    if params.flag("watch")? {
        let why = "excludes watch=true; watch the changes of the project by its name";
        return Err(Problem::parameter("projectUuid", why));
    }
    Ok(ChangeScope::AnyProject(TenantId::new(uuid)))
}

/// List or watch changes outside of projects
///
/// Returns the changes that belong to no project, newest first: of users, of tokens without a project,
/// the creation and the deletion of projects, logins with a password (`login`, `login_failure`), and
/// changed passwords (`password_change`). The parameters, the stream and its cursors are those of the
/// changes of a project. With `projectUuid`, returns the changes of a project, also of a deleted one.
///
/// Role: `evenkeel-admin`.
#[utoipa::path(
    get, path = "/v1/changes", tag = "changes",
    params(ChangeParams, AnyProjectParams, StreamHeaders),
    responses(
        (
            status = 200, description = "The changes, newest first, or a stream of them.",
            content((ChangeList = "application/json"), (String = "text/event-stream")),
        ),
        CursorExpired,
        Problem,
    ),
)]
pub async fn list_fleet_changes(
    call: Call,
    headers: HeaderMap,
    params: Params,
) -> Result<Response, Problem> {
    let scope = parse_scope(&params)?;
    list_or_watch(call, scope, &headers, &params).await
}

/// Get a change outside of projects
///
/// Returns one change with the rows before and after it. With `projectUuid`, returns a change of that
/// project.
///
/// Role: `evenkeel-admin`.
#[utoipa::path(
    get, path = "/v1/changes/{changeId}", tag = "changes", params(FleetChangePath, AnyProjectParams),
    responses((status = 200, description = "The change.", body = ChangeResource), Problem),
)]
pub async fn get_fleet_change(
    call: Call,
    Path(path): Path<FleetChangePath>,
    params: Params,
) -> Answer<ChangeResource> {
    let tx = parse_scope(&params)?.snapshot(&call).await?;
    find(&tx, &path.change_id).await
}
