//! Errors to problem documents: every error has its row here.

mod documented;
mod kind;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use evenkeel_api as api;
use evenkeel_auth::AuthError;
use evenkeel_domain::filter::BadFilter;
use evenkeel_domain::invalid::Invalid;
use evenkeel_kit::chain;
use evenkeel_store::{Conflict, StoreError};

pub use documented::documented;
use kind::Kind;

/// A request that cannot be served, and what is said about it.
#[derive(Clone, Debug)]
pub struct Problem {
    kind: Kind,
    message: String,
    place: Option<Place>,
    position: Option<usize>,
    hint: Option<String>,
}

/// What of a request is wrong.
#[derive(Clone, Debug)]
enum Place {
    /// A field of the body.
    Field(String),
    /// A parameter of the query, the path or the head.
    Parameter(String),
}

impl Problem {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            place: None,
            position: None,
            hint: None,
        }
    }

    fn at(self, place: Place) -> Self {
        Self {
            place: Some(place),
            ..self
        }
    }

    /// A field of the body cannot be what it is. One inside of another is named `outer.inner` or `outer[0]`.
    pub fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("{field}: {why}")).at(Place::Field(field.to_owned()))
    }

    /// A parameter cannot be what it is.
    pub fn parameter(name: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("{name}: {why}")).at(Place::Parameter(name.to_owned()))
    }

    /// A parameter is in a language of its own, and this is none of its sentences.
    pub fn not_understood(name: &str, bad: &BadFilter) -> Self {
        Self {
            position: Some(bad.position),
            hint: bad.hint.clone(),
            ..Self::parameter(name, bad)
        }
    }

    /// The same problem, whose field stands in a parameter and not in the body.
    pub fn of_parameter(self) -> Self {
        let place = self.place.map(|place| match place {
            Place::Field(name) | Place::Parameter(name) => Place::Parameter(name),
        });
        Self { place, ..self }
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

    /// What is asked for makes sense, but not as things are.
    pub fn precondition(why: impl Into<String>) -> Self {
        Self::new(Kind::Precondition, why)
    }

    /// The body is larger than it may be.
    pub fn too_large() -> Self {
        Self::new(Kind::TooLarge, "the body is larger than it may be")
    }

    /// The request took longer than it may.
    pub fn too_slow() -> Self {
        Self::new(Kind::TooSlow, "request timeout")
    }

    /// Too many ask for the same at once.
    pub fn crowded(why: impl Into<String>) -> Self {
        Self::new(Kind::Unavailable, why)
    }

    /// Something went wrong that the caller cannot mend. The log says what.
    pub fn internal() -> Self {
        Self::new(Kind::Internal, "something went wrong on our side")
    }

    /// What is sent, for a request with this id.
    pub fn body(&self, request_id: &str) -> api::Problem {
        let instance = match request_id {
            "" => String::new(),
            id => format!("urn:evenkeel:request:{id}"),
        };
        let (field, pointer, parameter) = match &self.place {
            None => (None, None, None),
            Some(Place::Field(name)) => (Some(name.clone()), Some(pointer(name)), None),
            Some(Place::Parameter(name)) => (Some(name.clone()), None, Some(name.clone())),
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

    /// The answer to a request with this id.
    pub fn answer(&self, request_id: &str) -> Response {
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

/// A field as RFC 6901 points at it from within an address: `rules.suites[0]` is `#/rules/suites/0`.
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
        let kind = match error {
            // The token may be a good one: who signed it has not been heard of yet.
            AuthError::KeysAway => Kind::Unavailable,
            _ => Kind::Unauthenticated,
        };
        Self::new(kind, error.to_string())
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
                    // Of two fields that are taken together the first is pointed at.
                    E::Conflict(
                        Conflict::Taken { field, .. } | Conflict::Dangling { field, .. },
                    ) => {
                        let first = field.split(' ').next().unwrap_or_default();
                        problem.at(Place::Field(first.to_owned()))
                    }
                    // Only regions lie in each other.
                    E::Conflict(Conflict::InItself { .. } | Conflict::TooDeep { .. }) => {
                        problem.at(Place::Field("parentId".to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_pointed_at_and_a_parameter_is_named() {
        let body = Problem::invalid("packageRules.suites", "no").body("");
        assert_eq!(body.field.as_deref(), Some("packageRules.suites"));
        assert_eq!(body.pointer.as_deref(), Some("#/packageRules/suites"));
        assert_eq!(body.parameter, None);
        let body = Problem::invalid("hostId", "no").of_parameter().body("");
        assert_eq!(body.field.as_deref(), Some("hostId"));
        assert_eq!(body.pointer, None);
        assert_eq!(body.parameter.as_deref(), Some("hostId"));
    }

    #[test]
    fn a_pointer_can_stand_in_an_address() {
        for (field, wanted) in [
            ("siteId", "#/siteId"),
            ("metadata[0].key", "#/metadata/0/key"),
            ("a/b~c", "#/a~1b~0c"),
            ("a b\u{e4}", "#/a%20b%c3%a4"),
        ] {
            assert_eq!(pointer(field), wanted, "{field}");
        }
    }

    #[test]
    fn what_may_work_in_a_moment_says_when() {
        let response = Problem::crowded("too many").answer("");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let response = Problem::from(AuthError::KeysAway).answer("");
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let response = Problem::too_slow().answer("");
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }
}
