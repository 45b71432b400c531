//! What is still looked at when everybody is let in: that a request is one of this machine, and not of a page in its
//! browser that comes from elsewhere.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use evenkeel_inventory::refusal;

/// Puts the look before an API. Pages of `origins` may ask.
pub(crate) fn only_from_here(api: Router, origins: &[String]) -> Router {
    let origins: Arc<[String]> = origins.into();
    api.layer(middleware::from_fn_with_state(origins, look))
}

async fn look(State(origins): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    match why_not(request.headers(), &origins) {
        None => next.run(request).await,
        Some(message) => refusal(message),
    }
}

/// Why a request is not taken, if it is not. A name that leads here and is none of ours was made to (DNS rebinding); a page
/// from elsewhere says so itself.
fn why_not(headers: &HeaderMap, origins: &[String]) -> Option<&'static str> {
    let host = text(headers, &header::HOST);
    if host.is_some_and(|host| !is_here(host)) {
        return Some(
            "auth is off, so the server must be asked by the name localhost or by its address",
        );
    }
    let origin = text(headers, &header::ORIGIN)?;
    let place = origin.split_once("://").map_or("", |(_, place)| place);
    if is_here(place) || origins.iter().any(|known| known == origin) {
        return None;
    }
    Some("auth is off, so pages from elsewhere may not ask")
}

/// The text of a header; an empty one if it cannot be read.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let value = headers.get(name)?;
    Some(value.to_str().unwrap_or_default())
}

/// Whether a host, perhaps with a port, is this machine by a name that nobody else can give it.
fn is_here(host: &str) -> bool {
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

    fn is_taken(host: Option<&'static str>, origin: Option<&'static str>) -> bool {
        let mut headers = HeaderMap::new();
        let given = [(header::HOST, host), (header::ORIGIN, origin)];
        for (name, value) in given {
            if let Some(value) = value {
                headers.insert(name, HeaderValue::from_static(value));
            }
        }
        why_not(&headers, &["https://ui.example".to_owned()]).is_none()
    }

    #[test]
    fn a_request_of_this_machine_is_taken() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:8080",
            "127.1.2.3",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(is_taken(Some(host), None), "{host}");
            assert!(is_taken(Some(host), Some("http://localhost:3000")));
            assert!(is_taken(Some(host), Some("https://ui.example")));
        }
        assert!(is_taken(None, None));
    }

    #[tokio::test]
    async fn a_refusal_is_a_problem_document() {
        let api = only_from_here(Router::new(), &[]);
        let request = Request::builder().header(header::HOST, "evil.example");
        let request = request.body(Body::empty()).unwrap();
        let response = api.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        let media_type = &response.headers()[header::CONTENT_TYPE];
        assert_eq!(media_type, "application/problem+json");
    }

    #[test]
    fn a_page_from_elsewhere_is_not() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8080",
            "192.0.2.1",
            "[2001:db8::1]",
            "",
        ] {
            assert!(!is_taken(Some(host), None), "{host}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "https://ui.example.evil",
            "",
        ] {
            assert!(!is_taken(Some("localhost"), Some(origin)), "{origin}");
        }
    }
}
