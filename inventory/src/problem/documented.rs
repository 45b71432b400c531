//! Problems in the document.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use evenkeel_api as api;
use utoipa::openapi::{Content, Ref, RefOr, Response, ResponseBuilder};

use super::Problem;

/// The problems that any operation may answer with: status, name in the document, when.
const ANY: [(StatusCode, &str, &str); 8] = [
    (
        StatusCode::BAD_REQUEST,
        "BadRequest",
        "The request is not valid, or cannot be met as things are.",
    ),
    (
        StatusCode::UNAUTHORIZED,
        "Unauthorized",
        "A valid token is needed.",
    ),
    (
        StatusCode::FORBIDDEN,
        "Forbidden",
        "The token does not allow this, or there is no such project.",
    ),
    (
        StatusCode::NOT_FOUND,
        "NotFound",
        "There is no such resource.",
    ),
    (
        StatusCode::CONFLICT,
        "Conflict",
        "Somebody else was faster.",
    ),
    (
        StatusCode::PAYLOAD_TOO_LARGE,
        "PayloadTooLarge",
        "The body is too large.",
    ),
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        "InternalServerError",
        "Something went wrong on our side.",
    ),
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "ServiceUnavailable",
        "The service cannot answer now, or the request took too long.",
    ),
];

/// What the document says about problems, once for all operations.
pub fn documented() -> BTreeMap<String, RefOr<Response>> {
    let document = |(_, name, text): (StatusCode, &str, &str)| {
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        let response = ResponseBuilder::new()
            .description(text)
            .content(api::Problem::MEDIA_TYPE, content)
            .build();
        (name.to_owned(), response.into())
    };
    ANY.map(document).into()
}

/// Every operation refers to [`documented`].
impl utoipa::IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let refer = |(status, name, _): (StatusCode, &str, &str)| {
            (
                status.as_str().to_owned(),
                Ref::from_response_name(name).into(),
            )
        };
        ANY.map(refer).into()
    }
}
