//! `/openapi.json`, and `/docs` to read and try it in a browser. Both come from the program itself: a page from here loads
//! nothing from anywhere else, and may not.

use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, get_service};
use swagger_ui_dist::{ApiDefinition, OpenApiSource};

use crate::App;
use crate::problem::Problem;

/// The document as it is sent.
static DOCUMENT: LazyLock<Option<Bytes>> = LazyLock::new(|| {
    let text = crate::document().to_json();
    text.map(Bytes::from).ok()
});

const PAGE: &str = include_str!("docs/page.html");
const START: &str = include_str!("docs/start.js");

/// What the page may load, and from whom: the reader's styles are partly set by its script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The routes of the document and of the page.
pub fn routes() -> Router<App> {
    // Of the crate's own routes only what its page loads: the page itself is ours.
    let reader = swagger_ui_dist::generate_routes(ApiDefinition {
        uri_prefix: "/docs",
        api_definition: OpenApiSource::Uri("/openapi.json"),
        title: None,
    });
    let reader = get_service(reader.into_service::<Body>());
    Router::new()
        .route("/docs", get(page))
        .route("/docs/start.js", get(start))
        .route("/docs/swagger-ui.css", reader.clone())
        .route("/docs/swagger-ui-bundle.js", reader)
        .route_layer(middleware::from_fn(kept))
        .route("/openapi.json", get(document))
}

/// What the program was made with changes only with the program.
async fn kept(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=3600"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

async fn document() -> Result<Response, Problem> {
    let document = DOCUMENT.clone().ok_or_else(Problem::internal)?;
    Ok((of_type("application/json"), document).into_response())
}

async fn page() -> Response {
    (of_type("text/html; charset=utf-8"), PAGE).into_response()
}

async fn start() -> Response {
    (of_type("text/javascript; charset=utf-8"), START).into_response()
}

fn of_type(media_type: &'static str) -> [(HeaderName, HeaderValue); 1] {
    [(CONTENT_TYPE, HeaderValue::from_static(media_type))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_no_address_outside() {
        for text in [PAGE, START, POLICY] {
            assert!(!text.contains("://") && !text.contains("\"//"), "{text}");
        }
    }

    #[test]
    fn the_page_has_no_script_of_its_own_within() {
        assert!(PAGE.contains("<script src=\"/docs/start.js\"></script>"));
        assert_eq!(PAGE.matches("<script").count(), 2);
        assert!(!PAGE.contains("onload"));
    }
}
