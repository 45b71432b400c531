//! Whose pages in a browser may ask.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::REQUEST_ID;

/// The header of the ancestor's legacy form that names the project.
const ACTIVE_PROJECT: HeaderName = HeaderName::from_static("activeprojectid");

/// How long a browser may remember the answer.
const REMEMBERED: Duration = Duration::from_hours(1);

/// Lets pages of these origins ask; none if there are no origins, and then no page of another origin may.
pub fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let layer = CorsLayer::new()
        .allow_origin(allowed(origins))
        .allow_methods([
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
        ])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            ACTIVE_PROJECT,
            REQUEST_ID,
        ])
        // The ancestor's pages take `Date` for their clock.
        .expose_headers([header::DATE, header::RETRY_AFTER, REQUEST_ID])
        .max_age(REMEMBERED);
    Some(layer)
}

fn allowed(origins: &[String]) -> AllowOrigin {
    if origins.iter().any(|origin| origin == "*") {
        return AllowOrigin::any();
    }
    let origin = |origin: &String| {
        // Browsers send an origin without a slash at its end.
        let value = HeaderValue::from_str(origin.trim_end_matches('/'));
        if value.is_err() {
            tracing::warn!(origin, "this is no origin that a browser could have");
        }
        value.ok()
    };
    AllowOrigin::list(origins.iter().filter_map(origin))
}
