//! Bodies: members that nobody knows, bytes that are no text, values beyond what the document promises, and too much of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use evenkeel_inventory::{Settings, document};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{Ground, PROJECT, Wrong, told, with_id};
use crate::house::{House, Who, read};
use crate::statuses::operations;

/// Every operation that takes a body: its method and its path.
fn with_bodies() -> Vec<(String, String)> {
    let all = operations().into_iter();
    let taking = all.filter(|(_, _, operation)| operation.get("requestBody").is_some());
    taking.map(|(method, path, _)| (method, path)).collect()
}

async fn send(
    house: &House,
    what: (&str, &str),
    length: Option<usize>,
    body: Body,
) -> (StatusCode, Value) {
    let token = house.token(Who::Writer).expect("a token");
    let mut request = Request::builder()
        .method(what.0)
        .uri(what.1)
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    read(house.send(request.body(body).expect("a request")).await).await
}

#[tokio::test]
async fn a_member_that_nobody_knows_and_a_byte_that_is_no_text_are_refused_everywhere() {
    let ground = Ground::new().await;
    let mut wrong = Wrong::default();
    for (method, path) in with_bodies() {
        let path = with_id(&path, "x");
        for (body, wanted) in [
            (&b"{\"colour\": \"red\"}"[..], "400 InvalidArgument colour"),
            (b"{\"name\": \"a\0\"}", "400 InvalidArgument -"),
            (b"{\"name\": \"a\x7f\"}", "400 InvalidArgument -"),
            (b"{\"name\": \"caf\xe9\"}", "400 InvalidArgument -"),
            (b"{\"name\": \"a\"} {}", "400 InvalidArgument -"),
            (b"[{}]", "400 InvalidArgument -"),
        ] {
            let case = format!("{method} {path} {}", String::from_utf8_lossy(body));
            let answer = send(&ground.house, (&method, &path), None, Body::from(body)).await;
            wrong.look(&case, &told(&answer), wanted, &answer.1);
        }
    }
    wrong.end(150);
    ground.stays_as_it_was().await;
}

/// The number with this name in a schema.
fn limit(property: &Value, name: &str) -> Option<i64> {
    property[name].as_i64()
}

/// So many of something.
fn count(number: i64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// Whether a schema is of values of this kind, or of null.
fn is_of(property: &Value, kind: &str) -> bool {
    let own = &property["type"];
    own == kind
        || own
            .as_array()
            .is_some_and(|kinds| kinds.contains(&json!(kind)))
}

/// Values just beyond what a schema allows; a zero byte is nowhere allowed in a text.
fn beyond(property: &Value) -> Vec<Value> {
    let of = |name: &str| limit(property, name);
    let mut bad = Vec::new();
    if is_of(property, "string") {
        bad.push(json!("\u{0}"));
        bad.push(json!(5));
        bad.extend(of("maxLength").map(|most| json!("a".repeat(count(most + 1)))));
        bad.extend(of("minLength").map(|least| json!("a".repeat(count(least - 1)))));
    }
    if is_of(property, "integer") {
        bad.extend([json!("5"), json!(0.5), json!(u64::MAX)]);
        bad.extend(of("minimum").map(|least| json!(least - 1)));
        bad.extend(of("maximum").map(|most| json!(most + 1)));
    }
    if is_of(property, "boolean") {
        bad.extend([json!("yes"), json!(1)]);
    }
    if is_of(property, "array") {
        bad.push(json!("a"));
        if is_of(&property["items"], "string") {
            bad.push(json!(["\u{0}"]));
            bad.extend(of("maxItems").map(|most| json!(vec![""; count(most + 1)])));
        }
    }
    bad
}

#[tokio::test]
async fn every_limit_that_the_document_promises_is_kept() {
    let ground = Ground::new().await;
    let document = serde_json::to_value(document()).expect("JSON");
    let mut wrong = Wrong::default();
    for (method, path, operation) in operations() {
        let Some(list) = path.strip_prefix(PROJECT).filter(|_| method == "POST") else {
            continue;
        };
        if operation.get("requestBody").is_none() {
            continue;
        }
        let what = format!("POST {list}");
        let is_known = ground.good.iter().any(|(known, _)| *known == what);
        assert!(is_known, "there is no good body for {what}");
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let name = schema.as_str().and_then(|path| path.rsplit('/').next());
        let schema = &document["components"]["schemas"][name.expect("a schema")];
        for (field, property) in schema["properties"].as_object().expect("properties") {
            for bad in beyond(property) {
                let case = format!("{what} {field}: {bad}");
                let body = ground.spoiled(&what, &json!({ field.as_str(): bad }));
                let answer = ground.house.ours(&what, Some(body)).await;
                let wanted = format!("400 InvalidArgument {field}");
                wrong.look(&case, &told(&answer), &wanted, &answer.1);
            }
        }
    }
    wrong.end(180);
    ground.stays_as_it_was().await;
}

const PIECE: usize = 64 * 1024;

/// How many pieces make 100 MB.
const PIECES: usize = 1_600;

/// A body of 100 MB, made piece by piece as it is read; and how much of it was.
fn flood() -> (Body, Arc<AtomicUsize>) {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&made);
    let piece = Bytes::from(vec![b' '; PIECE]);
    let pieces = stream::iter(0..PIECES).map(move |_| {
        counted.fetch_add(PIECE, Ordering::Relaxed);
        Ok::<_, Infallible>(piece.clone())
    });
    (Body::from_stream(pieces), made)
}

#[tokio::test]
async fn a_hundred_megabytes_are_refused_everywhere_and_hardly_read() {
    let ground = Ground::new().await;
    let most = Settings::default().body_limit + 2 * PIECE;
    let mut wrong = Wrong::default();
    for (method, path) in with_bodies() {
        let path = with_id(&path, "x");
        // Announced it is not read at all; in pieces without a length it is read to the limit.
        for (length, most) in [(Some(PIECES * PIECE), 0), (None, most)] {
            let (body, taken) = flood();
            let answer = send(&ground.house, (&method, &path), length, body).await;
            let case = format!("{method} {path} {length:?}");
            let wanted = "413 ResourceExhausted -";
            wrong.look(&case, &told(&answer), wanted, &answer.1);
            let taken = taken.load(Ordering::Relaxed);
            assert!(taken <= most, "{case}: {taken} bytes were read");
        }
    }
    wrong.end(50);
    ground.stays_as_it_was().await;
}
