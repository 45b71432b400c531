//! `changes`: who changed what, as a list and as a stream: in a project, and outside of projects.

mod events;
pub mod fleet;
mod objects;
mod watch;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use chrono::DateTime;
use evenkeel_api::change::{ChangeList, ChangeResource};
use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::changes::{self, ChangeCursor, ChangeFilter, ChangeId, MAX_OBJECTS};
use evenkeel_store::{StoreError, Tx};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::call::Call;
use crate::extract::{Json, Params, Path};
use crate::problem::{CursorExpired, Problem};
use crate::shape::{Answer, InProject};

/// Items of a page without `pageSize`.
const DEFAULT_PAGE_SIZE: u32 = 100;

/// Longest name of an actor in a filter, in bytes.
const MAX_ACTOR_BYTES: usize = 1_024;

/// Header in which browsers send the ID of the last event when they connect again.
const LAST_EVENT_ID: &str = "last-event-id";

/// Which changes a request reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeScope {
    /// Those of its project.
    Project,
    /// Those that belong to no project.
    Fleet,
    /// Those of a project that may be deleted, for an administrator of all projects.
    AnyProject(TenantId),
}

impl ChangeScope {
    /// Opens a transaction that reads them as of one instant, if the caller may read them.
    async fn snapshot(self, call: &Call) -> Result<Tx, Problem> {
        match self {
            Self::Project => call.snapshot().await,
            Self::Fleet => call.snapshot_of_any(TenantId::NO_PROJECT).await,
            Self::AnyProject(project) => call.snapshot_of_any(project).await,
        }
    }
}

/// Query parameters of the list and the stream of changes.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the values")]
pub struct ChangeParams {
    /// Only changes of this actor, exactly as in `actor`.
    #[param(min_length = 1, max_length = 1024)]
    actor: Option<String>,
    /// Only changes of this kind, such as `host`, `policy` or `update_order`.
    #[param(min_length = 1)]
    kind: Option<String>,
    /// Only changes of these objects: `project` or IDs, at most 10, separated by commas. The changes of
    /// an object include those of assignments and of pauses of sites with this scope.
    #[param(min_length = 1)]
    object: Option<String>,
    /// Only changes at this time or later (RFC 3339).
    since: Option<DateTime<chrono::Utc>>,
    /// Only changes before this time (RFC 3339).
    until: Option<DateTime<chrono::Utc>>,
    /// Whether to include changes that the server made by itself, for example because of a report of a
    /// node. They have no rows.
    include_server: Option<bool>,
    /// Size of a page, from 1 to 100; by default 100.
    #[param(minimum = 1, maximum = 100)]
    page_size: Option<u32>,
    /// `nextPageToken` of the previous page, to be used with the same filters.
    #[param(min_length = 1)]
    page_token: Option<String>,
    /// Whether to stream changes from a cursor on. It excludes `pageSize` and `pageToken`.
    watch: Option<bool>,
    /// Where the stream begins: the `cursor` of a list, or the ID of the last event. Without it, the
    /// stream begins now. It requires `watch=true`.
    #[param(min_length = 1)]
    cursor: Option<String>,
}

/// Header of a request that continues a stream of changes.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only the OpenAPI document uses it; the handler reads the header")]
pub struct StreamHeaders {
    /// ID of the last event of a stream. It replaces `cursor`.
    #[param(rename = "Last-Event-ID")]
    last_event_id: Option<String>,
}

/// A change, by its ID.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
#[serde(rename_all = "camelCase")]
pub struct ChangePath {
    /// Name of the project.
    #[serde(rename = "projectName")]
    _project_name: String,
    /// ID of the change.
    change_id: String,
}

/// List or watch changes
///
/// Returns who changed what, newest first. The server deletes changes of users after
/// `maintenance_manager.user_change_retention`, and its own after `change_log_retention`. The list has
/// neither `filter`, `orderBy`, `offset` nor a total.
///
/// With `watch=true` the response has the type `text/event-stream` and does not end. An event `change`
/// has a change as its data. An event `bookmark`, every 15 seconds without changes, has only an ID. The
/// ID of each event is a cursor: a client that connects again sends the last one in the header
/// `Last-Event-ID` or as `cursor`, and misses and repeats nothing. An event `end` precedes the end of
/// the stream; its data has the `reason`: `access` (the token expired or was revoked, or the project
/// was deleted), `cursor` (changes after the cursor were deleted), `stopping` (connect again) or
/// `failed` (an internal error; connect again later).
///
/// The server refuses a cursor of another project, and one that is too old (`cursor-expired`): list
/// the changes again, and watch from the cursor of that list.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/changes", tag = "changes",
    params(InProject, ChangeParams, StreamHeaders),
    responses(
        (
            status = 200, description = "The changes, newest first, or a stream of them.",
            content((ChangeList = "application/json"), (String = "text/event-stream")),
        ),
        CursorExpired,
        Problem,
    ),
)]
pub async fn list_changes(
    call: Call,
    headers: HeaderMap,
    params: Params,
) -> Result<Response, Problem> {
    list_or_watch(call, ChangeScope::Project, &headers, &params).await
}

/// Responds with a page or a stream.
async fn list_or_watch(
    call: Call,
    scope: ChangeScope,
    headers: &HeaderMap,
    params: &Params,
) -> Result<Response, Problem> {
    let token = params.text("pageToken");
    let before = token.map(|token| parse_cursor("pageToken", token)).transpose()?;
    params.reject(&["filter", "orderBy", "offset"])?;
    let filter = parse_filter(params)?;
    if params.flag("watch")? {
        params.reject(&["pageSize", "pageToken"])?;
        let last_event = headers.get(LAST_EVENT_ID).filter(|id| !id.is_empty());
        let last_event = last_event.map(|id| id.to_str().unwrap_or_default());
        let cursor = match (last_event, params.text("cursor")) {
            (Some(id), _) => Some(parse_cursor("Last-Event-ID", id)?),
            (None, Some(text)) => Some(parse_cursor("cursor", text)?),
            (None, None) => None,
        };
        return watch::answer(call, scope, filter, cursor).await;
    }
    if params.text("cursor").is_some() {
        return Err(Problem::parameter("cursor", "needs watch=true; use pageToken for pages"));
    }
    let size = params.number("pageSize", 1, DEFAULT_PAGE_SIZE)?.unwrap_or(DEFAULT_PAGE_SIZE);
    let tx = scope.snapshot(&call).await?;
    list(&tx, &filter, before, size).await.map(IntoResponse::into_response)
}

/// A page of changes.
async fn list(
    tx: &Tx,
    filter: &ChangeFilter,
    before: Option<ChangeCursor>,
    size: u32,
) -> Answer<ChangeList> {
    if before.is_some_and(|before| !before.is_of(tx.tenant())) {
        let why =
            "is not a token of this list; use the nextPageToken of a page with the same filters";
        return Err(Problem::parameter("pageToken", why));
    }
    let cursor = changes::current_cursor(tx).await?;
    // One more shows whether another page follows.
    let mut found = changes::list(tx, filter, before.as_ref(), size.saturating_add(1)).await?;
    let has_next = found.len() > usize::try_from(size).unwrap_or(usize::MAX);
    if has_next {
        found.pop();
    }
    let last = found.last().filter(|_| has_next);
    let next_page_token = last.map(|last| cursor.after(last.id).to_string()).unwrap_or_default();
    Ok(Json(ChangeList {
        changes: found.into_iter().map(objects::resource).collect(),
        has_next,
        next_page_token,
        cursor: cursor.to_string(),
    }))
}

/// Get a change
///
/// Returns one change with the rows before and after it.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/changes/{changeId}", tag = "changes", params(ChangePath),
    responses((status = 200, description = "The change.", body = ChangeResource), Problem),
)]
pub async fn get_change(call: Call, Path(path): Path<ChangePath>) -> Answer<ChangeResource> {
    let tx = call.read().await?;
    find(&tx, &path.change_id).await
}

async fn find(tx: &Tx, id: &str) -> Answer<ChangeResource> {
    let id: Result<ChangeId, _> = id.parse();
    let id = id.map_err(|_| StoreError::NotFound { what: "change" })?;
    Ok(Json(objects::resource(changes::find(tx, id).await?)))
}

fn parse_filter(params: &Params) -> Result<ChangeFilter, Problem> {
    let actor = params.text("actor");
    if actor.is_some_and(|actor| actor.len() > MAX_ACTOR_BYTES) {
        return Err(Problem::parameter("actor", format!("has at most {MAX_ACTOR_BYTES} bytes")));
    }
    let kind = params.text("kind");
    if let Some(kind) = kind.filter(|kind| !objects::is_kind(kind)) {
        let kinds: Vec<&str> = objects::kinds().collect();
        let why = format!("there is no kind `{kind}`; the kinds are {}", kinds.join(", "));
        return Err(Problem::parameter("kind", why));
    }
    let texts: Vec<&str> =
        params.text("object").into_iter().flat_map(|ids| ids.split(',')).collect();
    if texts.len() > MAX_OBJECTS {
        return Err(Problem::parameter("object", format!("names at most {MAX_OBJECTS} objects")));
    }
    let parsed = texts.into_iter().map(|text| {
        let why = || format!("`{text}` is neither `project` nor an ID such as host-0a1b2c3d");
        objects::parse_object(text).ok_or_else(|| Problem::parameter("object", why()))
    });
    Ok(ChangeFilter {
        actor: actor.map(str::to_owned),
        kind: kind.map(str::to_owned),
        objects: parsed.collect::<Result<_, _>>()?,
        since: parse_time(params, "since")?,
        until: parse_time(params, "until")?,
        with_server: params.flag("includeServer")?,
    })
}

fn parse_time(params: &Params, name: &str) -> Result<Option<Time>, Problem> {
    let time = params.text(name).map(DateTime::parse_from_rfc3339).transpose();
    let time = time.map_err(|_| {
        Problem::parameter(name, "must be a time in RFC 3339, such as 2026-03-01T12:00:00Z")
    })?;
    Ok(time.map(|time| time.to_utc()))
}

fn parse_cursor(name: &str, text: &str) -> Result<ChangeCursor, Problem> {
    text.parse().map_err(|error| Problem::parameter(name, error))
}
