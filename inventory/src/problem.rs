//! Converts errors to problem documents. Every error is handled here.

mod kind;
mod openapi_responses;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use evenkeel_api as api;
use evenkeel_auth::AuthError;
use evenkeel_domain::filter::BadFilter;
use evenkeel_domain::invalid::Invalid;
use evenkeel_kit::chain;
use evenkeel_store::{Conflict, ShareLimit, StoreError};

use crate::authentication_hook::ConnectionLimit;
use kind::Kind;
pub use openapi_responses::{CursorExpired, documented_responses};

/// Why a request cannot be served, as reported to the client.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: Kind,
    message: String,
    location: Option<ProblemLocation>,
    position: Option<usize>,
    hint: Option<String>,
}

/// The part of a request that is wrong.
#[derive(Clone, Debug)]
enum ProblemLocation {
    /// A field of the body.
    Field(String),
    /// A query or path parameter, or a header.
    Parameter(String),
}

impl Problem {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), location: None, position: None, hint: None }
    }

    fn with_location(self, location: ProblemLocation) -> Self {
        Self { location: Some(location), ..self }
    }

    /// A field of the body is invalid. A nested field is named `outer.inner` or `outer[0]`.
    pub fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("{field}: {why}"))
            .with_location(ProblemLocation::Field(field.to_owned()))
    }

    /// A parameter is invalid.
    pub fn parameter(name: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("{name}: {why}"))
            .with_location(ProblemLocation::Parameter(name.to_owned()))
    }

    /// A filter or an order cannot be parsed. The problem has the position of the error and a hint.
    pub fn invalid_expression(name: &str, bad: &BadFilter) -> Self {
        Self { position: Some(bad.position), hint: bad.hint.clone(), ..Self::parameter(name, bad) }
    }

    /// The same problem for a parameter instead of a field of the body.
    pub fn into_parameter(self) -> Self {
        let location = self.location.map(|location| match location {
            ProblemLocation::Field(name) | ProblemLocation::Parameter(name) => {
                ProblemLocation::Parameter(name)
            }
        });
        Self { location, ..self }
    }

    /// The request cannot be parsed.
    pub fn malformed(why: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, why)
    }

    /// The caller is not authenticated.
    pub fn unauthenticated(why: impl Into<String>) -> Self {
        Self::new(Kind::Unauthenticated, why)
    }

    /// The caller has no permission.
    pub fn forbidden(why: impl Into<String>) -> Self {
        Self::new(Kind::Forbidden, why)
    }

    /// The caller may use the project, but lacks the role for the request.
    pub fn missing_role(why: impl Into<String>) -> Self {
        Self::new(Kind::MissingRole, why)
    }

    /// The request is valid, but not in the current state.
    pub fn precondition(why: impl Into<String>) -> Self {
        Self::new(Kind::Precondition, why)
    }

    /// The body is too large.
    pub fn too_large() -> Self {
        Self::new(Kind::TooLarge, "the body is larger than it may be")
    }

    /// The request timed out.
    pub fn timed_out() -> Self {
        Self::new(Kind::TooSlow, "request timeout")
    }

    /// A stream of changes cannot begin at its cursor.
    pub fn cursor_expired() -> Self {
        let why = "changes after this cursor may be missing: it is too old, or not of this project; \
                   list the changes again, and watch from the cursor of the list";
        Self::new(Kind::CursorExpired, why)
    }

    /// Too many requests of this kind run at the same time.
    pub fn overloaded(why: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, why)
    }

    /// An internal error that the caller cannot fix. The log has the cause.
    pub fn internal() -> Self {
        Self::new(Kind::Internal, "something went wrong on our side")
    }

    pub const fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// The problem document for a request with this id.
    pub fn body(&self, request_id: &str) -> api::Problem {
        let instance = match request_id {
            "" => String::new(),
            id => format!("urn:evenkeel:request:{id}"),
        };
        let (field, pointer, parameter) = match &self.location {
            None => (None, None, None),
            Some(ProblemLocation::Field(name)) => (Some(name.clone()), Some(pointer(name)), None),
            Some(ProblemLocation::Parameter(name)) => {
                (Some(name.clone()), None, Some(name.clone()))
            }
        };
        api::Problem {
            code: self.kind.code().to_owned(),
            message: self.message.clone(),
            kind: format!("urn:evenkeel:problem:{}", self.kind.name()),
            title: self.kind.title().to_owned(),
            status: self.kind.status().as_u16(),
            detail: self.message.clone(),
            instance,
            field,
            pointer,
            parameter,
            position: self.position,
            hint: self.hint.clone(),
        }
    }

    pub fn to_response(&self, request_id: &str) -> Response {
        let body = axum::Json(self.body(request_id));
        let mut response = (self.kind.status(), body).into_response();
        let headers = response.headers_mut();
        let media_type = HeaderValue::from_static(api::Problem::MEDIA_TYPE);
        headers.insert(header::CONTENT_TYPE, media_type);
        match self.kind {
            Kind::Unauthenticated => {
                let bearer = HeaderValue::from_static("Bearer");
                headers.insert(header::WWW_AUTHENTICATE, bearer);
            }
            Kind::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

/// JSON pointer to a field as a URI fragment (RFC 6901): `rules.suites[0]` becomes
/// `#/rules/suites/0`.
fn pointer(field: &str) -> String {
    let mut pointer = String::from("#");
    for part in field.split(['.', '[']) {
        pointer.push('/');
        for byte in part.strip_suffix(']').unwrap_or(part).bytes() {
            match byte {
                b'~' => pointer.push_str("~0"),
                b'/' => pointer.push_str("~1"),
                b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                    pointer.push(char::from(byte));
                }
                _ => {
                    let digits = [byte >> 4, byte & 0xf];
                    pointer.push('%');
                    let hex = digits.map(|digit| char::from_digit(digit.into(), 16));
                    pointer.extend(hex.into_iter().flatten());
                }
            }
        }
    }
    pointer
}

/// The middleware around all handlers builds the response again, with the id of the request.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.to_response("");
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
        let kind = match error {
            // The token may be valid: the keys of its issuer were not fetched yet.
            AuthError::KeysUnavailable => Kind::Unavailable,
            _ => Kind::Unauthenticated,
        };
        Self::new(kind, error.to_string())
    }
}

/// Why the database cannot serve a request now.
fn explain_unavailable(error: &StoreError) -> &'static str {
    match error {
        StoreError::ShareInUse { limit: ShareLimit::Total, .. } => {
            "too many requests are being served; try again in a moment"
        }
        StoreError::ShareInUse { limit: ShareLimit::PerProject, .. } => {
            "too many requests in this project are being served; try again in a moment"
        }
        StoreError::ShareInUse { limit: ShareLimit::PerCaller, .. } => {
            "too many requests of this user are being served; try again in a moment"
        }
        StoreError::Busy(_) if error.is_statement_timeout() => {
            tracing::warn!(error = %chain(error), "a statement of a request took too long");
            "the database needs too long for this; use a narrower filter, or try again in a moment"
        }
        StoreError::Busy(_) => {
            tracing::warn!(error = %chain(error), "a request waited too long for a lock");
            "another request is changing this; try again in a moment"
        }
        _ => {
            tracing::warn!(error = %chain(error), "the database is unreachable or read-only, or does not answer in time");
            "the database cannot be reached; try again in a moment"
        }
    }
}

impl From<ConnectionLimit> for Problem {
    fn from(limit: ConnectionLimit) -> Self {
        Self::overloaded(match limit {
            ConnectionLimit::PerUser => {
                "this user has too many open connections with running requests; try again in a moment"
            }
            ConnectionLimit::PerProject => {
                "this project has too many open connections with running requests; try again in a moment"
            }
            ConnectionLimit::PerAddress => {
                "this address has too many open connections with running requests; try again in a moment"
            }
        })
    }
}

/// Handles every error explicitly: a new variant does not compile until it is added here.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        use StoreError as E;
        let kind = match &error {
            E::NotFound { .. } => Kind::NotFound,
            E::Conflict(_) | E::Refused(_) => Kind::Precondition,
            E::Stale { .. } => Kind::Stale,
            E::Busy(_) | E::ShareInUse { .. } | E::Unreachable(_) | E::Incompatible(_) => {
                Kind::Unavailable
            }
            E::Corrupt { .. } | E::Database(_) => Kind::Internal,
        };
        match kind {
            Kind::Unavailable => Self::new(kind, explain_unavailable(&error)),
            // Internal details are not sent to clients; the log has the whole chain.
            Kind::Internal => {
                tracing::error!(error = %chain(&error), "request failed");
                Self::internal()
            }
            _ => {
                let problem = Self::new(kind, error.to_string());
                match &error {
                    // If two fields together are a duplicate, the problem points at the first.
                    E::Conflict(
                        Conflict::AlreadyExists { field, .. }
                        | Conflict::MissingReference { field, .. },
                    ) => {
                        let first = field.split(' ').next().unwrap_or_default();
                        problem.with_location(ProblemLocation::Field(first.to_owned()))
                    }
                    // Only regions can contain each other.
                    E::Conflict(Conflict::Cyclic { .. } | Conflict::TooDeep { .. }) => {
                        problem.with_location(ProblemLocation::Field("parentId".to_owned()))
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

/// Response of the API for a request that is refused before it reaches the router.
pub fn forbidden_response(why: &str) -> Response {
    Problem::forbidden(why).into_response()
}

/// Fallback for unknown paths.
pub async fn no_such_path(uri: Uri) -> Problem {
    Problem::new(Kind::NoSuchPath, format!("there is nothing at {}", uri.path()))
}

/// Fallback for methods that a path does not support.
pub async fn no_such_method(method: Method, uri: Uri) -> Problem {
    Problem::new(Kind::NoSuchMethod, format!("{} does not take {method}", uri.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_pointed_at_and_a_parameter_is_named() {
        let body = Problem::invalid("packageRules.suites", "no").body("");
        assert_eq!(body.field.as_deref(), Some("packageRules.suites"));
        assert_eq!(body.pointer.as_deref(), Some("#/packageRules/suites"));
        assert_eq!(body.parameter, None);
        let body = Problem::invalid("hostId", "no").into_parameter().body("");
        assert_eq!(body.field.as_deref(), Some("hostId"));
        assert_eq!(body.pointer, None);
        assert_eq!(body.parameter.as_deref(), Some("hostId"));
    }

    #[test]
    fn a_pointer_is_a_valid_uri_fragment() {
        for (field, expected) in [
            ("siteId", "#/siteId"),
            ("metadata[0].key", "#/metadata/0/key"),
            ("a/b~c", "#/a~1b~0c"),
            ("a b\u{e4}", "#/a%20b%c3%a4"),
        ] {
            assert_eq!(pointer(field), expected, "{field}");
        }
    }

    #[test]
    fn temporary_problems_have_a_retry_after_header() {
        let response = Problem::overloaded("too many").to_response("");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let response = Problem::from(AuthError::KeysUnavailable).to_response("");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let response = Problem::timed_out().to_response("");
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }
}
