//! What every request goes through: an id, limits of size and of time, a log line, no panic that nobody hears of, and the
//! headers that tell browsers what they may do.

mod cors;

use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{Extensions, HeaderName, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout};
use tower_http::catch_panic::CatchPanicLayer;
use uuid::Uuid;

use crate::Settings;
use crate::problem::Problem;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Names a request in the answer, in the log and in the change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(String);

impl RequestId {
    /// The id that the caller gave if it can be shown, else a new one.
    fn given_or_new(request: &Request) -> Self {
        let given = request
            .headers()
            .get(REQUEST_ID)
            .and_then(|id| id.to_str().ok());
        let fits = |id: &&str| {
            (1..=64).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let new = || Uuid::now_v7().to_string();
        Self(given.filter(fits).map_or_else(new, str::to_owned))
    }

    /// The id of the request that these belong to; empty outside of a request.
    pub(crate) fn of(extensions: &Extensions) -> &str {
        extensions.get::<Self>().map_or("", |id| id.0.as_str())
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Puts the layers around a router.
pub fn around(router: Router, settings: &Settings) -> Router {
    let router = router
        .layer(DefaultBodyLimit::max(settings.body_limit))
        .layer(middleware::from_fn_with_state(
            settings.body_limit,
            of_announced_size,
        ))
        .layer(middleware::from_fn(of_text))
        .layer(middleware::from_fn_with_state(
            settings.request_timeout,
            in_time,
        ))
        .layer(CatchPanicLayer::custom(|panic| {
            tracing::error!(panic = said(&panic), "a handler panicked");
            Problem::internal().into_response()
        }))
        .layer(middleware::from_fn(observed));
    match cors::layer(&settings.cors_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// Tells browsers how to treat every answer of a router. An answer that says so itself is left as it is.
pub fn security(router: Router) -> Router {
    router.layer(middleware::map_response(secured))
}

async fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    response
}

/// What a panic said.
fn said(panic: &Box<dyn std::any::Any + Send>) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("nothing")
}

/// A body that says itself that it is larger than it may be is refused before it is sent.
async fn of_announced_size(State(limit): State<usize>, request: Request, next: Next) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    match length {
        Some(length) if length > limit => Problem::too_large().into_response(),
        _ => next.run(request).await,
    }
}

/// A head is printable text.
async fn of_text(request: Request, next: Next) -> Response {
    let is_text = |value: &HeaderValue| {
        let text = std::str::from_utf8(value.as_bytes());
        text.is_ok_and(|text| !text.contains(|c: char| c.is_control() && c != '\t'))
    };
    let mut headers = request.headers().iter();
    let bad = headers.find(|(_, value)| !is_text(value));
    match bad.map(|(name, _)| name.clone()) {
        Some(name) => {
            Problem::parameter(name.as_str(), "the header is not printable text").into_response()
        }
        None => next.run(request).await,
    }
}

/// A request that takes too long is answered, also if its client is the slow one.
async fn in_time(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    match timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::too_slow().into_response(),
    }
}

/// Gives the request its id, logs how it went, and puts the id into the answer.
async fn observed(mut request: Request, next: Next) -> Response {
    let id = RequestId::given_or_new(&request);
    request.extensions_mut().insert(id.clone());
    let method = request.method().clone();
    // The path as the router knows it: ids of resources are not for the log's index.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let began = Instant::now();

    let mut response = next.run(request).await;

    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem.answer(id.as_str());
    }
    tracing::info!(
        request_id = id.as_str(),
        %method,
        route = route.as_ref().map_or("none", MatchedPath::as_str),
        status = response.status().as_u16(),
        ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        "answered"
    );
    if let Some(route) = route {
        // For whoever counts answers by route outside of this router.
        response.extensions_mut().insert(route);
    }
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}
