//! Checks of requests if authentication is disabled. A request must come from this machine, and not
//! from a web page of another origin in its browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use evenkeel_inventory::forbidden_response;

/// Adds the checks to an API. Web pages of `origins` are allowed.
pub(crate) fn only_from_loopback(api: Router, origins: &[String]) -> Router {
    let origins: Arc<[String]> = origins.into();
    api.layer(middleware::from_fn_with_state(origins, check_request))
}

async fn check_request(
    State(origins): State<Arc<[String]>>,
    request: Request,
    next: Next,
) -> Response {
    match refusal_reason(request.headers(), &origins) {
        None => next.run(request).await,
        Some(message) => forbidden_response(message),
    }
}

/// Returns why a request is refused; `None` if it is accepted. A foreign name in the Host header
/// that resolves to this machine indicates DNS rebinding. The Origin header names the origin of a
/// web page.
fn refusal_reason(headers: &HeaderMap, origins: &[String]) -> Option<&'static str> {
    let host = header_text(headers, &header::HOST);
    if host.is_some_and(|host| !is_loopback(host)) {
        return Some(
            "authentication is disabled, so the Host header must be localhost or a loopback address",
        );
    }
    let origin = header_text(headers, &header::ORIGIN)?;
    let origin_host = origin.split_once("://").map_or("", |(_, origin_host)| origin_host);
    if is_loopback(origin_host) || origins.iter().any(|allowed| allowed == origin) {
        return None;
    }
    Some("authentication is disabled, so web pages of other origins are refused")
}

/// Returns the text of a header; empty if it is not valid text.
fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let value = headers.get(name)?;
    Some(value.to_str().unwrap_or_default())
}

/// Returns whether a host, with or without a port, is `localhost` or a loopback address.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{HeaderValue, StatusCode};
    use tower::ServiceExt;

    use super::*;

    fn is_accepted(host: Option<&'static str>, origin: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        let fields = [(header::HOST, host), (header::ORIGIN, origin)];
        for (name, value) in fields {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        refusal_reason(&headers, &["https://ui.example".to_owned()]).is_none()
    }

    #[test]
    fn a_request_from_this_machine_is_accepted() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "127.1.2.3",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_accepted(Some(host), None), "{host}");
            assert!(is_accepted(Some(host), Some("http://localhost:3000")));
            assert!(is_accepted(Some(host), Some("https://ui.example")));
        }
        assert!(is_accepted(None, None));
    }

    #[tokio::test]
    async fn a_refusal_is_a_problem_document() {
        let api = only_from_loopback(Router::new(), &[]);
        let request = Request::builder().header(header::HOST, "evil.example");
        let request = request.body(Body::empty()).unwrap();
        let response = api.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let media_type = &response.headers()[header::CONTENT_TYPE];
        assert_eq!(media_type, "application/problem+json");
    }

    #[test]
    fn a_page_from_elsewhere_is_refused() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8080",
            "192.0.2.1",
            "[2001:db8::1]",
            "",
        ] {
            assert!(!is_accepted(Some(host), None), "{host}");
        }
        for origin in ["https://evil.example", "null", "https://ui.example.evil", ""] {
            assert!(!is_accepted(Some("localhost"), Some(origin)), "{origin}");
        }
    }
}
