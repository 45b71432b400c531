//! Errors to problem documents: every error has its row here.

use std::collections::BTreeMap;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use evenkeel_api as api;
use evenkeel_auth::AuthError;
use evenkeel_domain::invalid::Invalid;
use evenkeel_kit::chain;
use evenkeel_store::{Conflict, StoreError};
use utoipa::openapi::{Content, Ref, RefOr, Response as Documented, ResponseBuilder};

/// A request that cannot be served, and what is said about it.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: Kind,
    message: String,
    field: Option<String>,
}

/// The kinds of problems. Each has a gRPC code for the ancestor's clients, a status, a type and a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Invalid,
    Precondition,
    Unauthenticated,
    Forbidden,
    NotFound,
    NoSuchPath,
    NoSuchMethod,
    Stale,
    TooLarge,
    Unavailable,
    TooSlow,
    Internal,
}

impl Kind {
    /// The status, the gRPC code and the last part of the type.
    const fn row(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::Invalid => (S::BAD_REQUEST, "InvalidArgument", "invalid-argument"),
            Self::Precondition => (S::BAD_REQUEST, "FailedPrecondition", "failed-precondition"),
            Self::Unauthenticated => (S::UNAUTHORIZED, "Unauthenticated", "unauthenticated"),
            Self::Forbidden => (S::FORBIDDEN, "PermissionDenied", "permission-denied"),
            Self::NotFound => (S::NOT_FOUND, "NotFound", "not-found"),
            Self::NoSuchPath => (S::NOT_FOUND, "NotFound", "no-such-path"),
            Self::NoSuchMethod => (S::METHOD_NOT_ALLOWED, "Unimplemented", "no-such-method"),
            Self::Stale => (S::CONFLICT, "Aborted", "aborted"),
            Self::TooLarge => (S::PAYLOAD_TOO_LARGE, "ResourceExhausted", "too-large"),
            Self::Unavailable => (S::SERVICE_UNAVAILABLE, "Unavailable", "unavailable"),
            Self::TooSlow => (S::SERVICE_UNAVAILABLE, "Unavailable", "request-timeout"),
            Self::Internal => (S::INTERNAL_SERVER_ERROR, "Internal", "internal"),
        }
    }

    /// What all problems of the kind have in common.
    const fn title(self) -> &'static str {
        match self {
            Self::Invalid => "The request is not valid",
            Self::Precondition => "The request cannot be met as things are",
            Self::Unauthenticated => "A valid token is needed",
            Self::Forbidden => "The token does not allow this",
            Self::NotFound => "There is no such resource",
            Self::NoSuchPath => "There is nothing at this path",
            Self::NoSuchMethod => "The path does not take this method",
            Self::Stale => "Somebody else was faster",
            Self::TooLarge => "The body is too large",
            Self::Unavailable => "The service cannot answer now",
            Self::TooSlow => "The request took too long",
            Self::Internal => "Something went wrong on our side",
        }
    }
}

impl Problem {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            field: None,
        }
    }

    fn about(self, field: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..self
        }
    }

    /// A field or parameter cannot be what it is.
    pub fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("{field}: {why}")).about(field)
    }

    /// The request cannot be read.
    pub fn malformed(why: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, why)
    }

    /// Nobody known asks.
    pub fn unauthenticated(why: impl Into<String>) -> Self {
        Self::new(Kind::Unauthenticated, why)
    }

    /// Who asks may not.
    pub fn forbidden(why: impl Into<String>) -> Self {
        Self::new(Kind::Forbidden, why)
    }

    /// The body is larger than it may be.
    pub fn too_large() -> Self {
        Self::new(Kind::TooLarge, "the body is larger than it may be")
    }

    /// The request took longer than it may.
    pub fn too_slow() -> Self {
        Self::new(Kind::TooSlow, "request timeout")
    }

    /// Something went wrong that the caller cannot mend. The log says what.
    pub fn internal() -> Self {
        Self::new(Kind::Internal, "something went wrong on our side")
    }

    /// What is sent, for a request with this id.
    pub fn body(&self, request_id: &str) -> api::Problem {
        let (status, code, name) = self.kind.row();
        let instance = match request_id {
            "" => String::new(),
            id => format!("urn:evenkeel:request:{id}"),
        };
        api::Problem {
            code: code.to_owned(),
            message: self.message.clone(),
            kind: format!("urn:evenkeel:problem:{name}"),
            title: self.kind.title().to_owned(),
            status: status.as_u16(),
            detail: self.message.clone(),
            instance,
            field: self.field.clone(),
        }
    }

    /// The answer to a request with this id.
    pub fn answer(&self, request_id: &str) -> Response {
        let (status, ..) = self.kind.row();
        let body = axum::Json(self.body(request_id));
        let mut response = (status, body).into_response();
        let media_type = HeaderValue::from_static(api::Problem::MEDIA_TYPE);
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, media_type);
        if self.kind == Kind::Unauthenticated {
            let bearer = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

/// The layer around all handlers renders it again with the id of the request.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.answer("");
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.field, &invalid.why)
    }
}

impl From<AuthError> for Problem {
    fn from(error: AuthError) -> Self {
        Self::unauthenticated(error.to_string())
    }
}

/// Every error has its row here. A new one does not compile until it has.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        use StoreError as E;
        let kind = match &error {
            E::NotFound { .. } => Kind::NotFound,
            E::Conflict(_) | E::Refused(_) => Kind::Precondition,
            E::Stale { .. } => Kind::Stale,
            E::Busy(_) | E::Unreachable(_) => Kind::Unavailable,
            E::Corrupt { .. } | E::Database(_) => Kind::Internal,
        };
        match kind {
            Kind::Unavailable if matches!(error, E::Busy(_)) => {
                tracing::warn!(error = %chain(&error), "a request waited too long for others");
                Self::new(kind, "others are changing this; try again in a moment")
            }
            Kind::Unavailable => {
                tracing::warn!(error = %chain(&error), "the database is away, or does not answer in time");
                Self::new(
                    kind,
                    "the database cannot be reached; try again in a moment",
                )
            }
            // Nothing about the inside leaves the house; the log has the whole chain.
            Kind::Internal => {
                tracing::error!(error = %chain(&error), "request failed");
                Self::internal()
            }
            _ => {
                let problem = Self::new(kind, error.to_string());
                match &error {
                    E::Conflict(
                        Conflict::Taken { field, .. } | Conflict::Dangling { field, .. },
                    ) => problem.about(*field),
                    // Only regions lie in each other.
                    E::Conflict(Conflict::InItself { .. } | Conflict::TooDeep { .. }) => {
                        problem.about("parentId")
                    }
                    _ => problem,
                }
            }
        }
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::malformed(rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::malformed(rejection.body_text())
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            return Self::too_large();
        }
        Self::malformed(rejection.body_text())
    }
}

/// There is nothing at this path.
pub async fn no_such_path(uri: Uri) -> Problem {
    Problem::new(
        Kind::NoSuchPath,
        format!("there is nothing at {}", uri.path()),
    )
}

/// The path does not take this method.
pub async fn no_such_method(method: Method, uri: Uri) -> Problem {
    Problem::new(
        Kind::NoSuchMethod,
        format!("{} does not take {method}", uri.path()),
    )
}

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
pub fn documented() -> BTreeMap<String, RefOr<Documented>> {
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
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        let refer = |(status, name, _): (StatusCode, &str, &str)| {
            (
                status.as_str().to_owned(),
                Ref::from_response_name(name).into(),
            )
        };
        ANY.map(refer).into()
    }
}
