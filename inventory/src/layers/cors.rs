//! CORS: the origins whose pages may send requests.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::REQUEST_ID;

/// Header that names the project in EIM's legacy paths.
const ACTIVE_PROJECT: HeaderName = HeaderName::from_static("activeprojectid");

/// Header with the cursor of a stream of changes.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// How long a browser may cache the preflight response.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_hours(1);

/// CORS layer for these origins. None if there are none: browsers then block pages of other
/// origins.
pub fn cors_layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new()
        .allow_origin(allowed_origins(origins))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            ACTIVE_PROJECT,
            LAST_EVENT_ID,
            REQUEST_ID,
        ])
        // EIM's web pages use `Date` as their clock.
        .expose_headers([header::DATE, header::RETRY_AFTER, REQUEST_ID])
        .max_age(PREFLIGHT_MAX_AGE);
    Some(layer)
}

fn allowed_origins(origins: &[String]) -> AllowOrigin {
    if origins.iter().any(|origin| origin == "*") {
        return AllowOrigin::any();
    }
    let origin = |origin: &String| {
        // Browsers send an origin without a trailing slash.
        let value = HeaderValue::from_str(origin.trim_end_matches('/'));
        if value.is_err() {
            tracing::warn!(origin, "ignoring an invalid CORS origin");
        }
        value.ok()
    };
    AllowOrigin::list(origins.iter().filter_map(origin))
}
