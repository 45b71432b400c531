//! Problem responses in the OpenAPI document.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use evenkeel_api as api;
use utoipa::openapi::{Content, Ref, RefOr, Response, ResponseBuilder};

use super::Problem;

/// The problems of every operation: status, name in the document, description.
const DOCUMENTED_PROBLEMS: [(StatusCode, &str, &str); 8] = [
    (
        StatusCode::BAD_REQUEST,
        "BadRequest",
        "`invalid-argument`: the request is not valid. `failed-precondition`: it is, but not now.",
    ),
    (StatusCode::UNAUTHORIZED, "Unauthorized", "`unauthenticated`: a valid token is required."),
    (
        StatusCode::FORBIDDEN,
        "Forbidden",
        "`missing-role`: the token lacks the role for this. `permission-denied`: the token does not \
         allow this, or there is no such project.",
    ),
    (StatusCode::NOT_FOUND, "NotFound", "`not-found`: there is no such resource."),
    (StatusCode::CONFLICT, "Conflict", "`aborted`: another request changed the resource first."),
    (StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge", "`too-large`: the body is too large."),
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        "InternalServerError",
        "`internal`: the server's log has the details, with the ID of the request.",
    ),
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "ServiceUnavailable",
        "`unavailable`: there is no answer now. `request-timeout`: the request took too long.",
    ),
];

/// Problem responses, which all operations share in the document.
pub fn documented_responses() -> BTreeMap<String, RefOr<Response>> {
    let document =
        |(_, name, text): (StatusCode, &str, &str)| (name.to_owned(), response(text).into());
    DOCUMENTED_PROBLEMS.map(document).into()
}

/// A problem with this description.
fn response(text: &str) -> Response {
    let content = Content::new(Some(Ref::from_schema_name("Problem")));
    ResponseBuilder::new().description(text).content(api::Problem::MEDIA_TYPE, content).build()
}

/// Every operation refers to [`documented_responses`].
impl utoipa::IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let refer = |(status, name, _): (StatusCode, &str, &str)| {
            (status.as_str().to_owned(), Ref::from_response_name(name).into())
        };
        DOCUMENTED_PROBLEMS.map(refer).into()
    }
}

/// The problem of a stream whose cursor is too old, in addition to [`Problem`].
#[derive(Debug)]
pub struct CursorExpired;

impl utoipa::IntoResponses for CursorExpired {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let text = "`cursor-expired`: changes after the cursor may be missing.";
        [(StatusCode::GONE.as_str().to_owned(), response(text).into())].into()
    }
}
