//! Middleware of all requests: request id, size and time limits, access log, panic handler, and
//! security headers.

mod cors;
mod request_trace;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::{ConnectInfo, DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{Extensions, HeaderName, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout};
use tower_http::catch_panic::CatchPanicLayer;
use uuid::Uuid;

use crate::access_log::AccessRecord;
use crate::app::Settings;
use crate::problem::Problem;
use request_trace::RequestTrace;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Id of a request, in the response, the log and the change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(String);

impl RequestId {
    /// The client's id if it is valid (1 to 64 letters, digits and hyphens), otherwise a new one.
    fn from_request_or_new(request: &Request) -> Self {
        let sent = request.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
        let fits = |id: &&str| {
            (1..=64).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        let new = || Uuid::now_v7().to_string();
        Self(sent.filter(fits).map_or_else(new, str::to_owned))
    }

    /// Id of the request with these extensions; empty outside of a request.
    pub(crate) fn from_extensions(extensions: &Extensions) -> &str {
        extensions.get::<Self>().map_or("", |id| id.0.as_str())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Adds the middleware to a router.
pub fn add_layers(router: Router, settings: &Settings) -> Router {
    let router = router
        .layer(DefaultBodyLimit::max(settings.body_limit))
        .layer(middleware::from_fn_with_state(settings.body_limit, check_content_length))
        .layer(middleware::from_fn(check_header_text))
        .layer(middleware::from_fn_with_state(settings.request_timeout, enforce_timeout))
        .layer(CatchPanicLayer::custom(|panic| {
            tracing::error!(panic = panic_message(&panic), "a handler panicked");
            Problem::internal().into_response()
        }))
        .layer(middleware::from_fn(observe));
    match cors::cors_layer(&settings.cors_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// Adds the security headers for browsers to every response. Headers that a response has already
/// stay unchanged.
pub fn add_security_headers(router: Router) -> Router {
    router.layer(middleware::map_response(set_security_headers))
}

async fn set_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

fn panic_message(panic: &Box<dyn std::any::Any + Send>) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("nothing")
}

/// Rejects a request whose announced body is too large, before the body is sent.
async fn check_content_length(
    State(limit): State<usize>,
    request: Request,
    next: Next,
) -> Response {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    match length {
        Some(length) if length > limit => Problem::too_large().into_response(),
        _ => next.run(request).await,
    }
}

/// Rejects a request whose headers are not printable text.
async fn check_header_text(request: Request, next: Next) -> Response {
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

/// Responds with a timeout if a request takes too long, including the time in which a slow client
/// sends its body.
async fn enforce_timeout(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    match timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::timed_out().into_response(),
    }
}

/// Assigns the request id, logs the request, and adds the id to the response.
async fn observe(mut request: Request, next: Next) -> Response {
    let id = RequestId::from_request_or_new(&request);
    let access = AccessRecord::default();
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(access.clone());
    let trace = RequestTrace::begin(&mut request);
    let client = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .map(|info| info.0.ip().to_canonical());
    let method = request.method().clone();
    // The route pattern instead of the path: resource ids would bloat the index of the log.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let began = Instant::now();

    let mut response = next.run(request).await;

    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem.to_response(id.as_str());
    }
    let caller = access.fields();
    let route_name = route.as_ref().map_or("none", MatchedPath::as_str);
    if let Some(trace) = trace {
        trace.end(&method, route_name, caller.project.as_deref(), &mut response);
    }
    // Neither the query nor a header: both may contain secrets.
    tracing::info!(
        request_id = id.as_str(),
        user = caller.user.as_deref(),
        issuer = caller.issuer.as_deref(),
        project = caller.project.as_deref(),
        client = client.map(tracing::field::display),
        %method,
        route = route_name,
        status = response.status().as_u16(),
        ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        bytes = response.body().size_hint().exact(),
        "answered"
    );
    if let Some(route) = route {
        // For the metrics outside of this router, which count responses by route.
        response.extensions_mut().insert(route);
    }
    if let Ok(value) = HeaderValue::from_str(id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}
