//! `/v1/changes`: changes that belong to no project.

use axum::http::HeaderMap;
use axum::response::Response;
use evenkeel_api::change::{ChangeList, ChangeResource};
use serde::Deserialize;
use utoipa::IntoParams;

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

/// List or watch changes outside of projects
///
/// Returns the changes that belong to no project, newest first: of users, of tokens without a project,
/// the creation and the deletion of projects, and logins with a password (`login`, `login_failure`).
/// The parameters, the stream and its cursors are those of the changes of a project.
///
/// Role: `evenkeel-admin`.
#[utoipa::path(
    get, path = "/v1/changes", tag = "changes",
    params(ChangeParams, StreamHeaders),
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
    list_or_watch(call, ChangeScope::Fleet, &headers, &params).await
}

/// Get a change outside of projects
///
/// Returns one change with the rows before and after it.
///
/// Role: `evenkeel-admin`.
#[utoipa::path(
    get, path = "/v1/changes/{changeId}", tag = "changes", params(FleetChangePath),
    responses((status = 200, description = "The change.", body = ChangeResource), Problem),
)]
pub async fn get_fleet_change(
    call: Call,
    Path(path): Path<FleetChangePath>,
) -> Answer<ChangeResource> {
    let tx = ChangeScope::Fleet.snapshot(&call).await?;
    find(&tx, &path.change_id).await
}
