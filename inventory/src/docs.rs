//! `/openapi.json`, and `/docs` to read and try the API in a browser. Both are built into the
//! program; the page loads nothing from other servers and its content security policy forbids it.

use std::sync::OnceLock;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, get_service};
use swagger_ui_dist::{ApiDefinition, OpenApiSource};
use utoipa::openapi::OpenApi;

use crate::app::App;
use crate::problem::Problem;

/// The OpenAPI document as JSON.
static DOCUMENT: OnceLock<Option<Bytes>> = OnceLock::new();

const PAGE: &str = include_str!("docs/page.html");
const START_SCRIPT: &str = include_str!("docs/start.js");

/// Content security policy of the page. Swagger UI sets inline styles, so these are allowed.
const PAGE_CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// Routes of the document and the page.
pub fn routes(document: fn() -> OpenApi) -> Router<App> {
    // Only the assets of Swagger UI are taken from its crate: the page is our own.
    let reader = swagger_ui_dist::generate_routes(ApiDefinition {
        uri_prefix: "/docs",
        api_definition: OpenApiSource::Uri("/openapi.json"),
        title: None,
    });
    let reader = get_service(reader.into_service::<Body>());
    Router::new()
        .route("/docs", get(page))
        .route("/docs/start.js", get(start_script))
        .route("/docs/swagger-ui.css", reader.clone())
        .route("/docs/swagger-ui-bundle.js", reader)
        .route_layer(middleware::from_fn(add_page_headers))
        .route("/openapi.json", get(async move || serve_document(document)))
}

/// Adds the headers of the embedded files. They change only with the program, so browsers may cache
/// them.
async fn add_page_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=3600"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_CONTENT_POLICY));
    response
}

fn serve_document(document: fn() -> OpenApi) -> Result<Response, Problem> {
    let json = DOCUMENT.get_or_init(|| document().to_json().map(Bytes::from).ok());
    let json = json.clone().ok_or_else(Problem::internal)?;
    Ok((content_type("application/json"), json).into_response())
}

async fn page() -> Response {
    (content_type("text/html; charset=utf-8"), PAGE).into_response()
}

async fn start_script() -> Response {
    (content_type("text/javascript; charset=utf-8"), START_SCRIPT).into_response()
}

fn content_type(media_type: &'static str) -> [(HeaderName, HeaderValue); 1] {
    [(CONTENT_TYPE, HeaderValue::from_static(media_type))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_no_address_outside() {
        for text in [PAGE, START_SCRIPT, PAGE_CONTENT_POLICY] {
            assert!(!text.contains("://") && !text.contains("\"//"), "{text}");
        }
    }

    #[test]
    fn the_page_has_no_inline_script() {
        assert!(PAGE.contains("<script src=\"/docs/start.js\"></script>"));
        assert_eq!(PAGE.matches("<script").count(), 2);
        assert!(!PAGE.contains("onload"));
    }
}
