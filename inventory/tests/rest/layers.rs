//! The layers that every request passes, and the pages about the API.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use evenkeel_inventory::{Settings, document};
use futures_util::stream;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, read_json};

const REGISTER: &str = "/v1/projects/ours/compute/hosts/register";

async fn get(server: &TestServer, path: &str) -> Response<Body> {
    let request = Request::get(path).body(Body::empty());
    server.send(request.expect("a request")).await
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().expect("text"))
}

#[tokio::test]
async fn every_response_has_security_headers() {
    let server = TestServer::new().await;
    for path in ["/v1/projects", "/nothing", "/openapi.json", "/docs", "/docs/swagger-ui.css"] {
        let answer = get(&server, path).await;
        let headers = answer.headers();
        assert_eq!(header_text(headers, "x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header_text(headers, "x-frame-options"), "DENY", "{path}");
        assert_eq!(header_text(headers, "referrer-policy"), "no-referrer", "{path}");
        let policy = header_text(headers, "content-security-policy");
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        let cached = path.starts_with("/docs");
        assert_eq!(header_text(headers, "cache-control") != "no-store", cached, "{path}");
    }
}

#[tokio::test]
async fn an_unknown_path_or_method_is_a_problem() {
    let server = TestServer::new().await;
    let (status, problem) = read_json(get(&server, "/v1/nothing").await).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(problem["code"], "NotFound");
    assert_eq!(problem["type"], "urn:evenkeel:problem:no-such-path");

    let request = Request::delete("/v1/projects").body(Body::empty());
    let answer = server.send(request.expect("a request")).await;
    assert_eq!(answer.headers()[ALLOW], "GET,HEAD");
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
    let (status, problem) = read_json(answer).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(problem["code"], "Unimplemented");
    assert_eq!(problem["type"], "urn:evenkeel:problem:no-such-method");
}

#[tokio::test]
async fn other_origins_may_call_only_if_the_settings_allow_it() {
    let server = TestServer::with_settings(Settings {
        cors_origins: vec!["https://ui.example.org/".to_owned()],
        ..Settings::default()
    })
    .await;
    let preflight = |origin: &str| {
        let request = Request::options(REGISTER)
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type");
        request.body(Body::empty()).expect("a request")
    };
    let ours = server.send(preflight("https://ui.example.org")).await;
    assert_eq!(ours.status(), StatusCode::OK);
    assert_eq!(ours.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], "https://ui.example.org");
    let methods = header_text(ours.headers(), ACCESS_CONTROL_ALLOW_METHODS.as_str());
    assert!(methods.contains("PATCH"), "{methods}");
    let other = server.send(preflight("https://elsewhere.example.org")).await;
    assert!(!other.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));

    // A page may read problems and the exposed headers too.
    let request = Request::get("/v1/orchestrators").header("origin", "https://ui.example.org");
    let answer = server.send(request.body(Body::empty()).expect("a request")).await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(answer.headers()[ACCESS_CONTROL_ALLOW_ORIGIN], "https://ui.example.org");
    let exposed = header_text(answer.headers(), ACCESS_CONTROL_EXPOSE_HEADERS.as_str());
    assert!(exposed.contains("date") && exposed.contains("x-request-id"), "{exposed}");

    let closed = TestServer::new().await;
    let answer = closed.send(preflight("https://ui.example.org")).await;
    assert!(!answer.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
}

#[tokio::test]
async fn a_body_that_announces_too_much_is_rejected_before_it_is_read() {
    let server = TestServer::new().await;
    let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let request = Request::post(REGISTER)
        .header("content-length", (100 * 1024 * 1024).to_string())
        .body(endless);
    let (status, problem) = read_json(server.send(request.expect("a request")).await).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(problem["code"], "ResourceExhausted");
    assert_eq!(problem["type"], "urn:evenkeel:problem:too-large");
}

#[tokio::test]
async fn an_endless_body_is_rejected_at_the_limit() {
    let server = TestServer::new().await;
    let token = server.token(Caller::Writer).expect("a token");
    let piece = Bytes::from(vec![b' '; 64 * 1024]);
    let endless = Body::from_stream(stream::repeat(Ok::<_, Infallible>(piece)));
    let request =
        Request::post(REGISTER).header("authorization", format!("Bearer {token}")).body(endless);
    let (status, problem) = read_json(server.send(request.expect("a request")).await).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(problem["code"], "ResourceExhausted");
}

#[tokio::test]
async fn headers_and_bodies_must_be_printable_text() {
    let server = TestServer::new().await;
    let token = server.token(Caller::Writer).expect("a token");
    for bad in [&b"caf\xe9"[..], b"\xc2\x85"] {
        let request = Request::get("/v1/projects")
            .header("x-note", HeaderValue::from_bytes(bad).expect("a value"))
            .body(Body::empty());
        let (status, problem) = read_json(server.send(request.expect("a request")).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(problem["parameter"], "x-note");
    }
    for bad in [&b"{\"name\": \"caf\xe9\"}"[..], b"{\"name\": \"\x7f\"}", b"{\x00}"] {
        let request = Request::post(REGISTER)
            .header("authorization", format!("Bearer {token}"))
            .body(Body::from(bad));
        let (status, problem) = read_json(server.send(request.expect("a request")).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(problem["code"], "InvalidArgument");
    }
    let fine = "{\n\t\"name\": \"edge\",\r\n \"serialNumber\": \"ABC12345\"}";
    let request = Request::post(REGISTER)
        .header("authorization", format!("Bearer {token}"))
        .header("x-note", HeaderValue::from_bytes("caf\u{e9}".as_bytes()).expect("a value"))
        .body(Body::from(fine));
    let (status, answer) = read_json(server.send(request.expect("a request")).await).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn a_problem_names_the_location_of_the_error() {
    let server = TestServer::new().await;
    let label = json!({"metadata": [{"key": "a"}]});
    let expected = json!({"field": "metadata[0]", "pointer": "#/metadata/0"});
    let problem = server.expect_problem("POST regions", Some(label), 400, expected).await;
    assert_eq!(problem.get("parameter"), None);
    let expected = json!({"parameter": "resourceId"});
    let problem = server.expect_problem("GET regions/site-00000001", None, 400, expected).await;
    assert_eq!(problem.get("pointer"), None);
}

#[tokio::test]
async fn a_mask_may_name_only_existing_fields() {
    let server = TestServer::new().await;
    let region = json!({"name": "south", "metadata": [{"key": "a", "value": "b"}]});
    let region = server.post("regions", region).await;
    let id = region["resourceId"].as_str().expect("an id");
    let patch = |mask: &str| format!("PATCH regions/{id}?fieldMask={mask}");
    let (what, expected) = (patch("name,colour"), json!({"parameter": "fieldMask"}));
    server.expect_problem(&what, Some(json!({"name": "north"})), 400, expected).await;
    let after = server.get(&format!("regions/{id}")).await;
    assert_eq!(after["name"], "south", "a part of the change was written");
    // Read-only fields are ignored, and so are fields that the mask does not name.
    let body = json!({"name": "north", "metadata": []});
    let after = server.expect_ok(&patch("name,totalSites"), Some(body)).await;
    assert_eq!(after["name"], "north");
    assert_eq!(after["metadata"], region["metadata"]);
}

#[tokio::test]
async fn the_document_is_served_by_the_program_itself() {
    let server = TestServer::new().await;
    let answer = get(&server, "/openapi.json").await;
    assert_eq!(answer.headers()[CONTENT_TYPE], "application/json");
    let (status, body) = read_json(answer).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body, serde_json::to_value(document()).expect("JSON"));
}

#[tokio::test]
async fn the_page_loads_only_files_of_the_program() {
    let server = TestServer::new().await;
    for path in ["/docs", "/docs/"] {
        let answer = get(&server, path).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        let policy = header_text(answer.headers(), CONTENT_SECURITY_POLICY.as_str());
        assert!(policy.contains("script-src 'self';"), "{policy}");
        assert!(policy.contains("connect-src 'self';"), "{policy}");
    }
    let page = get(&server, "/docs").await.into_body().collect().await;
    let page = page.expect("a body").to_bytes();
    let page = String::from_utf8(page.to_vec()).expect("text");
    let mut loaded = Vec::new();
    for mark in ["src=\"", "href=\""] {
        for rest in page.split(mark).skip(1) {
            let address = rest.split('"').next().unwrap_or_default();
            if !address.starts_with("data:") {
                loaded.push(address.to_owned());
            }
        }
    }
    assert!(loaded.len() >= 4, "{loaded:?}");
    for address in loaded {
        assert!(address.starts_with('/'), "{address}");
        let answer = get(&server, &address).await;
        assert_eq!(answer.status(), StatusCode::OK, "{address}");
        let body = answer.into_body().collect().await.expect("a body");
        assert!(!body.to_bytes().is_empty(), "{address}");
    }
}

#[tokio::test]
async fn the_page_is_public_and_the_api_is_not() {
    let server = TestServer::new().await;
    for (path, expected) in [
        ("/docs", StatusCode::OK),
        ("/openapi.json", StatusCode::OK),
        ("/v1/projects", StatusCode::UNAUTHORIZED),
    ] {
        let (status, _): (StatusCode, Value) = read_json(get(&server, path).await).await;
        assert_eq!(status, expected, "{path}");
    }
}
