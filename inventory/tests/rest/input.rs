//! Bad input: the reference's status, and the field by its name.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use evenkeel_inventory::Settings;
use serde_json::{Value, json};

use crate::house::{House, Who, os_body, read};

/// Asks for each body, which must be refused with the name of its field, and nothing may have been written.
async fn refused(house: &House, path: &str, list: &str, cases: Vec<(Value, &str)>) {
    for (body, field) in cases {
        let shown = body.to_string();
        let (status, problem) = house.ours(&format!("POST {path}"), Some(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{shown}: {problem}");
        assert_eq!(problem["code"], "InvalidArgument", "{shown}: {problem}");
        assert_eq!(problem["field"], field, "{shown}: {problem}");
    }
    let answer = house.ok(&format!("GET {list}"), None).await;
    assert_eq!(answer["totalElements"], 0, "something was written");
}

#[tokio::test]
async fn a_bad_host_is_refused_with_its_field() {
    let house = House::new().await;
    let long = "a".repeat(21);
    let cases = vec![
        (json!({"name": "x"}), "uuid"),
        (json!({"uuid": "x"}), "uuid"),
        (json!({"serialNumber": "a;b"}), "serialNumber"),
        (json!({"serialNumber": "ABC12345", "name": long}), "name"),
        (
            json!({"serialNumber": "ABC12345", "colour": "red"}),
            "colour",
        ),
        (json!({"serialNumber": 7}), "serialNumber"),
        (json!({"autoOnboard": "yes"}), "autoOnboard"),
    ];
    refused(&house, "compute/hosts/register", "compute/hosts", cases).await;
}

#[tokio::test]
async fn a_bad_instance_is_refused_with_its_field() {
    let house = House::new().await;
    let cases = vec![
        (json!({"hostID": "host-00000001"}), "osID"),
        (json!({"hostID": "", "osID": "os-00000001"}), "hostID"),
        (json!({"hostID": "host-1", "osID": "os-00000001"}), "hostID"),
    ];
    refused(&house, "compute/instances", "compute/instances", cases).await;
}

#[tokio::test]
async fn a_bad_operating_system_is_refused_with_its_field() {
    let house = House::new().await;
    let with = |field: &str, value: Value| {
        let mut body = os_body("x");
        body[field] = value;
        body
    };
    let cases = vec![
        (json!({"name": "x"}), "sha256"),
        (with("sha256", json!("A".repeat(64))), "sha256"),
        (with("osType", json!("OS_TYPE_LINUX")), "osType"),
        (with("osType", json!("OS_TYPE_UNSPECIFIED")), "osType"),
        (with("metadata", json!("[]")), "metadata"),
        (with("imageUrl", json!("\u{0}")), "imageUrl"),
    ];
    refused(&house, "compute/os", "compute/os", cases).await;
}

#[tokio::test]
async fn a_bad_policy_is_refused_with_its_field() {
    let house = House::new().await;
    let latest =
        json!({"name": "p", "updatePolicy": "UPDATE_POLICY_LATEST", "updatePackages": "jq"});
    let wishing = |packages: &str| json!({"name": "p", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": packages});
    let cases = vec![
        (json!({"updatePolicy": "UPDATE_POLICY_LATEST"}), "name"),
        (
            json!({"name": "", "updatePolicy": "UPDATE_POLICY_LATEST"}),
            "name",
        ),
        (json!({"name": "p"}), "updatePolicy"),
        (latest, "updatePolicy"),
        (wishing(""), "updatePolicy"),
        (wishing("curl;reboot"), "updatePackages"),
        (wishing("curl=not a version"), "updatePackages"),
        (wishing("curl\ncurl"), "updatePackages"),
    ];
    refused(&house, "os-update-policies", "os-update-policies", cases).await;
}

#[tokio::test]
async fn a_bad_schedule_is_refused_with_its_field() {
    let house = House::new().await;
    let with = |field: &str, value: Value| {
        let start = house.seconds(60);
        let mut body =
            json!({"scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": start});
        body[field] = value;
        body
    };
    let cases = vec![
        (
            with("startSeconds", json!(house.seconds(0))),
            "startSeconds",
        ),
        (with("startSeconds", json!(-1)), "startSeconds"),
        (with("endSeconds", json!(house.seconds(60))), "endSeconds"),
        (with("endSeconds", json!(house.seconds(30))), "endSeconds"),
        (with("endSeconds", json!(0)), "endSeconds"),
        (with("targetSiteId", json!("site-00000001")), "targetSiteId"),
        (with("targetHostId", json!("site-00000001")), "targetHostId"),
        (with("scheduleStatus", json!("NOW")), "scheduleStatus"),
    ];
    refused(&house, "schedules/single", "compute/schedules", cases).await;
}

#[tokio::test]
async fn a_bad_join_token_is_refused_with_its_field() {
    let house = House::new().await;
    let cases = vec![
        (json!({"lifetimeSeconds": 0}), "lifetimeSeconds"),
        (json!({"lifetimeSeconds": 40_000_000}), "lifetimeSeconds"),
        (json!({"name": "a;b"}), "name"),
    ];
    refused(&house, "join-tokens", "join-tokens", cases).await;
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_refused() {
    let house = House::new().await;
    let token = house.token(Who::Writer).expect("a token");
    let deep = "[".repeat(100_000);
    for (body, media_type) in [
        ("", "application/json"),
        ("{", "application/json"),
        ("[]", "application/json"),
        ("null", "application/json"),
        ("{\"name\": \"\\ud800\"}", "application/json"),
        ("{\"serialNumber\":\"ABC12345\"}", "text/plain"),
        ("serialNumber=ABC12345", "application/x-www-form-urlencoded"),
        (deep.as_str(), "application/json"),
    ] {
        let request = Request::post("/v1/projects/ours/compute/hosts/register")
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", media_type);
        let request = request
            .body(Body::from(body.to_owned()))
            .expect("a request");
        let (status, problem) = read(house.send(request).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(problem["code"], "InvalidArgument");
    }
}

#[tokio::test]
async fn a_body_larger_than_it_may_be_is_refused() {
    let house = House::with(Settings {
        body_limit: 1_000,
        ..Settings::default()
    })
    .await;
    let body = json!({"name": "x".repeat(2_000)});
    let (status, problem) = house.ours("POST compute/hosts/register", Some(body)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(problem["code"], "ResourceExhausted");
}

#[tokio::test]
async fn a_client_that_is_too_slow_is_told_so() {
    let settings = Settings {
        request_timeout: Duration::from_millis(50),
        ..Settings::default()
    };
    let house = House::with(settings).await;
    let token = house.token(Who::Writer).expect("a token");
    let request = Request::post("/v1/projects/ours/compute/hosts/register")
        .header("authorization", format!("Bearer {token}"))
        .body(Body::from_stream(futures_util::stream::pending::<
            Result<Bytes, std::convert::Infallible>,
        >()));
    let (status, problem) = read(house.send(request.expect("a request")).await).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["message"], "request timeout");
}

#[tokio::test]
async fn a_database_that_is_away_is_told() {
    let house = House::new().await;
    house.store.close().await;
    let (status, problem) = house.ours("GET compute/hosts", None).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["code"], "Unavailable");
}

#[tokio::test]
async fn the_form_of_a_request_is_judged_before_who_asks() {
    let house = House::new().await;
    let bad = Some(json!({"colour": "red"}));
    let (status, _) = house
        .ask(
            Who::Nobody,
            "POST /v1/projects/ours/compute/hosts/register",
            bad,
        )
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let rule = Some(json!({"name": "x"}));
    let (status, _) = house
        .ask(
            Who::Reader,
            "POST /v1/projects/ours/compute/hosts/register",
            rule,
        )
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}
