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
        "The request is not valid, or cannot be fulfilled in the current state.",
    ),
    (StatusCode::UNAUTHORIZED, "Unauthorized", "A valid token is required."),
    (
        StatusCode::FORBIDDEN,
        "Forbidden",
        "The token does not allow this, or there is no such project.",
    ),
    (StatusCode::NOT_FOUND, "NotFound", "There is no such resource."),
    (StatusCode::CONFLICT, "Conflict", "Another request changed the resource first."),
    (StatusCode::PAYLOAD_TOO_LARGE, "PayloadTooLarge", "The body is too large."),
    (StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", "An internal error occurred."),
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "ServiceUnavailable",
        "The service cannot answer now, or the request took too long.",
    ),
];

/// Problem responses, which all operations share in the document.
pub fn documented_responses() -> BTreeMap<String, RefOr<Response>> {
    let document = |(_, name, text): (StatusCode, &str, &str)| {
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        let response = ResponseBuilder::new()
            .description(text)
            .content(api::Problem::MEDIA_TYPE, content)
            .build();
        (name.to_owned(), response.into())
    };
    DOCUMENTED_PROBLEMS.map(document).into()
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
