//! Bad bodies: unknown members, bytes that are not text, values outside the documented limits, and
//! bodies that are too large.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use evenkeel_inventory::{Settings, document};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{BadInputFixture, CaseResults, PROJECT_PREFIX, describe_response, fill_id};
use crate::statuses::operations;
use crate::test_server::{Caller, TestServer, read_json};

/// Method and path of every operation with a body.
fn operations_with_body() -> Vec<(String, String)> {
    let all = operations().into_iter();
    let taking = all.filter(|(_, _, operation)| operation.get("requestBody").is_some());
    taking.map(|(method, path, _)| (method, path)).collect()
}

async fn send(
    server: &TestServer,
    what: (&str, &str),
    length: Option<usize>,
    body: Body,
) -> (StatusCode, Value) {
    let token = server.token(Caller::Writer).expect("a token");
    let mut request = Request::builder()
        .method(what.0)
        .uri(what.1)
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    read_json(server.send(request.body(body).expect("a request")).await).await
}

#[tokio::test]
async fn unknown_members_and_non_text_bytes_are_rejected_everywhere() {
    let fixture = BadInputFixture::new().await;
    let mut results = CaseResults::default();
    for (method, path) in operations_with_body() {
        let path = fill_id(&path, "x");
        for (body, expected) in [
            (&b"{\"colour\": \"red\"}"[..], "400 InvalidArgument colour"),
            (b"{\"name\": \"a\0\"}", "400 InvalidArgument -"),
            (b"{\"name\": \"a\x7f\"}", "400 InvalidArgument -"),
            (b"{\"name\": \"caf\xe9\"}", "400 InvalidArgument -"),
            (b"{\"name\": \"a\"} {}", "400 InvalidArgument -"),
            (b"[{}]", "400 InvalidArgument -"),
        ] {
            let case = format!("{method} {path} {}", String::from_utf8_lossy(body));
            let answer = send(&fixture.server, (&method, &path), None, Body::from(body)).await;
            results.check(&case, &describe_response(&answer), expected, &answer.1);
        }
    }
    results.assert_all_passed(150);
    fixture.assert_unchanged().await;
}

/// The number with this name in a schema.
fn limit(property: &Value, name: &str) -> Option<i64> {
    property[name].as_i64()
}

/// Converts a limit to a length.
fn to_usize(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Whether a schema allows values of this type.
fn has_type(property: &Value, kind: &str) -> bool {
    let own = &property["type"];
    own == kind || own.as_array().is_some_and(|kinds| kinds.contains(&json!(kind)))
}

/// Values just outside of what a schema allows. No text may contain a zero byte.
fn invalid_values(property: &Value) -> Vec<Value> {
    let of = |name: &str| limit(property, name);
    let mut bad = Vec::new();
    if has_type(property, "string") {
        bad.push(json!("\u{0}"));
        bad.push(json!(5));
        bad.extend(of("maxLength").map(|max| json!("a".repeat(to_usize(max + 1)))));
        bad.extend(of("minLength").map(|min| json!("a".repeat(to_usize(min - 1)))));
    }
    if has_type(property, "integer") {
        bad.extend([json!("5"), json!(0.5), json!(u64::MAX)]);
        bad.extend(of("minimum").map(|min| json!(min - 1)));
        bad.extend(of("maximum").map(|max| json!(max + 1)));
    }
    if has_type(property, "boolean") {
        bad.extend([json!("yes"), json!(1)]);
    }
    if has_type(property, "array") {
        bad.push(json!("a"));
        if has_type(&property["items"], "string") {
            bad.push(json!(["\u{0}"]));
            bad.extend(of("maxItems").map(|max| json!(vec![""; to_usize(max + 1)])));
        }
    }
    bad
}

#[tokio::test]
async fn every_limit_of_the_document_is_enforced() {
    let fixture = BadInputFixture::new().await;
    let administrator = fixture.server.client_of(Caller::Administrator);
    let document = serde_json::to_value(document()).expect("JSON");
    let mut results = CaseResults::default();
    for (method, path, operation) in operations() {
        let Some(list) = path.strip_prefix(PROJECT_PREFIX).filter(|_| method == "POST") else {
            continue;
        };
        if operation.get("requestBody").is_none() {
            continue;
        }
        let what = format!("POST {list}");
        let is_known = fixture.valid_bodies.iter().any(|(request, _)| *request == what);
        assert!(is_known, "there is no valid body for {what}");
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let name = schema.as_str().and_then(|path| path.rsplit('/').next());
        let schema = &document["components"]["schemas"][name.expect("a schema")];
        for (field, property) in schema["properties"].as_object().expect("properties") {
            for bad in invalid_values(property) {
                let case = format!("{what} {field}: {bad}");
                let body = fixture.body_with(&what, &json!({ field.as_str(): bad }));
                let answer = administrator.request(&what, Some(body)).await;
                let expected = format!("400 InvalidArgument {field}");
                results.check(&case, &describe_response(&answer), &expected, &answer.1);
            }
        }
    }
    results.assert_all_passed(180);
    fixture.assert_unchanged().await;
}

const CHUNK_BYTES: usize = 64 * 1024;

/// Number of chunks in 100 MB.
const CHUNK_COUNT: usize = 1_600;

/// A body of 100 MB that is produced in chunks while it is read, and the number of bytes produced.
fn huge_body() -> (Body, Arc<AtomicUsize>) {
    let bytes_produced = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&bytes_produced);
    let piece = Bytes::from(vec![b' '; CHUNK_BYTES]);
    let pieces = stream::iter(0..CHUNK_COUNT).map(move |_| {
        counted.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
        Ok::<_, Infallible>(piece.clone())
    });
    (Body::from_stream(pieces), bytes_produced)
}

#[tokio::test]
async fn a_body_of_100_mb_is_rejected_everywhere_and_hardly_read() {
    let fixture = BadInputFixture::new().await;
    let max_read = Settings::default().body_limit + 2 * CHUNK_BYTES;
    let mut results = CaseResults::default();
    for (method, path) in operations_with_body() {
        let path = fill_id(&path, "x");
        // An announced length is rejected without reading; without a length, the body is read up to
        // the limit.
        for (length, max_read) in [(Some(CHUNK_COUNT * CHUNK_BYTES), 0), (None, max_read)] {
            let (body, bytes_read) = huge_body();
            let answer = send(&fixture.server, (&method, &path), length, body).await;
            let case = format!("{method} {path} {length:?}");
            let expected = "413 ResourceExhausted -";
            results.check(&case, &describe_response(&answer), expected, &answer.1);
            let bytes_read = bytes_read.load(Ordering::Relaxed);
            assert!(bytes_read <= max_read, "{case}: {bytes_read} bytes were read");
        }
    }
    results.assert_all_passed(50);
    fixture.assert_unchanged().await;
}
