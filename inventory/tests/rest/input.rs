//! Bad input: EIM's status, and the name of the field.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use evenkeel_inventory::Settings;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, legacy_path, nightly, os_body, read_json};

/// Sends each body. Each must be rejected with the name of its field, and nothing may be written.
async fn assert_rejected(server: &TestServer, path: &str, list: &str, cases: Vec<(Value, &str)>) {
    for (body, field) in cases {
        let expected = json!({"code": "InvalidArgument", "field": field});
        server.expect_problem(&format!("POST {path}"), Some(body), 400, expected).await;
    }
    let answer = server.get(list).await;
    assert_eq!(answer["totalElements"], 0, "something was written");
}

#[tokio::test]
async fn a_bad_host_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let long = "a".repeat(21);
    let cases = vec![
        (json!({"name": "x"}), "uuid"),
        (json!({"uuid": "x"}), "uuid"),
        (json!({"serialNumber": "a;b"}), "serialNumber"),
        (json!({"serialNumber": "ABC12345", "name": long}), "name"),
        (json!({"serialNumber": "ABC12345", "colour": "red"}), "colour"),
        (json!({"serialNumber": 7}), "serialNumber"),
        (json!({"autoOnboard": "yes"}), "autoOnboard"),
    ];
    assert_rejected(&server, "compute/hosts/register", "compute/hosts", cases).await;
}

#[tokio::test]
async fn a_bad_instance_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let cases = vec![
        (json!({"hostID": "host-00000001"}), "osID"),
        (json!({"hostID": "", "osID": "os-00000001"}), "hostID"),
        (json!({"hostID": "host-1", "osID": "os-00000001"}), "hostID"),
    ];
    assert_rejected(&server, "compute/instances", "compute/instances", cases).await;
}

#[tokio::test]
async fn a_bad_operating_system_is_rejected_with_its_field() {
    let server = TestServer::new().await;
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
    assert_rejected(&server, "compute/os", "compute/os", cases).await;
}

#[tokio::test]
async fn a_bad_policy_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let latest =
        json!({"name": "p", "updatePolicy": "UPDATE_POLICY_LATEST", "updatePackages": "jq"});
    let offline = |days: u32| json!({"name": "p", "updatePolicy": "UPDATE_POLICY_LATEST", "offlineDays": days});
    let with_packages = |packages: &str| json!({"name": "p", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": packages});
    let with_rules = |rules: Value| json!({"name": "p", "updatePolicy": "UPDATE_POLICY_LATEST", "packageRules": rules});
    let cases = vec![
        (json!({"updatePolicy": "UPDATE_POLICY_LATEST"}), "name"),
        (json!({"name": "", "updatePolicy": "UPDATE_POLICY_LATEST"}), "name"),
        (json!({"name": "p"}), "updatePolicy"),
        (latest, "updatePolicy"),
        (with_packages(""), "updatePolicy"),
        (with_packages("curl;reboot"), "updatePackages"),
        (with_packages("curl=not a version"), "updatePackages"),
        (with_packages("curl\ncurl"), "updatePackages"),
        (offline(366), "offlineDays"),
        (with_rules(json!({"suites": ["a;reboot"]})), "packageRules.suites"),
        (with_rules(json!({"exclude": ["-o"]})), "packageRules.exclude"),
        (with_rules(json!({"minAgeDays": 366})), "packageRules.minAgeDays"),
        (with_rules(json!({"downloadBytesPerSecond": 1})), "packageRules.downloadBytesPerSecond"),
    ];
    assert_rejected(&server, "os-update-policies", "os-update-policies", cases).await;
}

#[tokio::test]
async fn a_bad_schedule_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let with = |field: &str, value: Value| {
        let start = server.seconds(60);
        let mut body =
            json!({"scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": start});
        body[field] = value;
        body
    };
    let mut both = with("targetSiteId", json!("site-00000001"));
    both["targetRegionId"] = json!("region-00000001");
    let cases = vec![
        (with("startSeconds", json!(server.seconds(0))), "startSeconds"),
        (with("startSeconds", json!(-1)), "startSeconds"),
        (with("endSeconds", json!(server.seconds(60))), "endSeconds"),
        (with("endSeconds", json!(server.seconds(30))), "endSeconds"),
        (with("endSeconds", json!(0)), "endSeconds"),
        (with("targetSiteId", json!("host-00000001")), "targetSiteId"),
        (with("targetHostId", json!("site-00000001")), "targetHostId"),
        (both, "targetRegionId"),
        (with("scheduleStatus", json!("NOW")), "scheduleStatus"),
    ];
    assert_rejected(&server, "schedules/single", "compute/schedules", cases).await;
}

#[tokio::test]
async fn a_bad_repeated_schedule_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let with = |field: &str, value: Value| {
        let mut body = nightly("");
        body[field] = value;
        body
    };
    let without = |field: &str| {
        let mut body = nightly("");
        body.as_object_mut().expect("an object").remove(field);
        body
    };
    let cases = vec![
        (with("durationSeconds", json!(0)), "durationSeconds"),
        (with("durationSeconds", json!(86_401)), "durationSeconds"),
        (without("durationSeconds"), "durationSeconds"),
        (without("cronHours"), "cronHours"),
        (with("cronMinutes", json!("60")), "cronMinutes"),
        (with("cronHours", json!("5-3")), "cronHours"),
        (with("cronDayMonth", json!("0")), "cronDayMonth"),
        (with("cronMonth", json!("january")), "cronMonth"),
        (with("cronDayWeek", json!("7")), "cronDayWeek"),
        (with("cronDayMonth", json!("0-31")), "cronDayMonth"),
        (with("cronDayWeek", json!("")), "cronDayWeek"),
        (with("timeZone", json!("Europe/Atlantis")), "timeZone"),
        (with("targetRegionId", json!("x")), "targetRegionId"),
        (with("scheduleStatus", json!("X")), "scheduleStatus"),
        (with("name", json!("a;b")), "name"),
    ];
    assert_rejected(&server, "schedules/repeated", "schedules/repeated", cases).await;
}

#[tokio::test]
async fn a_bad_location_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let labels = |pairs: &[(&str, &str)]| {
        let item = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
        json!({"metadata": pairs.iter().map(item).collect::<Vec<_>>()})
    };
    let region = vec![
        (json!({"name": "a;b"}), "name"),
        (json!({"name": "a".repeat(51)}), "name"),
        (json!({"parentId": "site-00000001"}), "parentId"),
        (labels(&[("a", "1"), ("a", "2")]), "metadata"),
        (labels(&[("A", "1")]), "metadata"),
        (labels(&[("a", "B")]), "metadata"),
        (json!({"metadata": [{"key": "a"}]}), "metadata[0]"),
        (json!({"colour": "red"}), "colour"),
    ];
    assert_rejected(&server, "regions", "regions", region).await;
    let site = vec![
        (json!({"regionId": "region-1"}), "regionId"),
        (json!({"siteLat": 900_000_001}), "siteLat"),
        (json!({"siteLng": -1_800_000_001}), "siteLng"),
        (json!({"siteLat": 3_000_000_000_u32}), "siteLat"),
        (json!({"siteLat": 1.5}), "siteLat"),
    ];
    assert_rejected(&server, "sites", "sites", site).await;
}

#[tokio::test]
async fn a_bad_assignment_pause_order_or_setting_is_rejected_with_its_field() {
    let (server, resources) = TestServer::with_resources().await;
    let assign = format!("PUT assignments/{}", resources.region);
    let order = format!("PUT compute/instances/{}/order", resources.instance);
    let policy = |field: &str, value: Value| {
        let mut body = json!({"osUpdatePolicyId": resources.policy});
        body[field] = value;
        body
    };
    for (what, body, field) in [
        (assign.as_str(), json!({}), "osUpdatePolicyId"),
        (&assign, policy("maxConcurrent", json!(0)), "maxConcurrent"),
        (&assign, policy("stopAfterFailures", json!(0)), "stopAfterFailures"),
        (&assign, policy("maxConcurrent", json!(-1)), "maxConcurrent"),
        (&assign, policy("osUpdatePolicyId", json!("os-00000001")), "osUpdatePolicyId"),
        (&assign, policy("colour", json!(1)), "colour"),
        ("PUT assignments/os-00000001", policy("maxConcurrent", json!(1)), "target"),
        ("PUT assignments/projects", policy("maxConcurrent", json!(1)), "target"),
        ("PUT pauses/host-00000001", json!({}), "scope"),
        ("PUT pauses/project", json!({"reason": "x".repeat(501)}), "reason"),
        ("PUT pauses/project", json!({"reason": "a\nb"}), "reason"),
        (&order, json!({}), "kind"),
        (&order, json!({"kind": "later"}), "kind"),
        (&order, json!({"kind": "now", "seconds": 0}), "seconds"),
        (&order, json!({"kind": "now", "seconds": 86_401}), "seconds"),
        (&order, json!({"kind": "now", "reason": "\u{0}"}), "reason"),
        ("PUT settings", json!({"retentionDays": 36_501}), "retentionDays"),
        ("PUT settings", json!({"retentionDays": -1}), "retentionDays"),
        ("PUT settings", json!({"anyScheduleStatus": "yes"}), "anyScheduleStatus"),
    ] {
        let expected = json!({"code": "InvalidArgument", "field": field});
        server.expect_problem(what, Some(body), 400, expected).await;
    }
}

#[tokio::test]
async fn a_limit_that_does_not_fit_the_database_is_rejected_with_its_field() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("assignments/{}", resources.region);
    for field in ["maxConcurrent", "stopAfterFailures"] {
        let mut body = json!({"osUpdatePolicyId": resources.policy});
        body[field] = json!(i32::MAX);
        let stored = server.put(&path, body.clone()).await;
        assert_eq!(stored[field], i32::MAX);
        body[field] = json!(2_147_483_648_u32);
        for method in ["PUT", "PATCH"] {
            let what = format!("{method} {path}");
            let expected = json!({"code": "InvalidArgument", "field": field});
            server.expect_problem(&what, Some(body.clone()), 400, expected).await;
        }
    }
}

#[tokio::test]
async fn a_bad_join_token_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let cases = vec![
        (json!({"lifetimeSeconds": 0}), "lifetimeSeconds"),
        (json!({"lifetimeSeconds": 40_000_000}), "lifetimeSeconds"),
        (json!({"name": "a;b"}), "name"),
    ];
    assert_rejected(&server, "join-tokens", "join-tokens", cases).await;
}

/// The form of a request is checked first, so the answer does not depend on the project.
#[tokio::test]
async fn a_change_that_names_only_unchangeable_fields_is_rejected_in_both_forms_of_paths() {
    let (server, resources) = TestServer::with_resources().await;
    let project = server.ours.uuid().to_string();
    let token = server.token(Caller::Writer);
    for (path, body, field) in [
        (format!("compute/hosts/{}", resources.host), json!({"hostname": "x"}), "hostname"),
        (format!("compute/os/{}", resources.os), json!({"imageUrl": "x"}), "imageUrl"),
        (
            format!("compute/os/{}", resources.os),
            json!({"sha256": "", "architecture": "x"}),
            "sha256",
        ),
    ] {
        let named = format!("/v1/projects/ours/{path}");
        let legacy = legacy_path(&named);
        for (uri, header) in [(&named, None), (&legacy, None), (&legacy, Some(project.as_str()))] {
            let client = server.client(token.as_deref(), header);
            let expected = json!({"code": "InvalidArgument", "field": field});
            let what = format!("PATCH {uri}");
            client.expect_problem(&what, Some(body.clone()), 400, expected).await;
        }
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_object_is_rejected() {
    let server = TestServer::new().await;
    let token = server.token(Caller::Writer).expect("a token");
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
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let (status, problem) = read_json(server.send(request).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert_eq!(problem["code"], "InvalidArgument");
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_rejected() {
    let server =
        TestServer::with_settings(Settings { body_limit: 1_000, ..Settings::default() }).await;
    let body = json!({"name": "x".repeat(2_000)});
    let expected = json!({"code": "ResourceExhausted"});
    server.expect_problem("POST compute/hosts/register", Some(body), 413, expected).await;
}

#[tokio::test]
async fn a_slow_client_gets_a_timeout() {
    let settings = Settings { request_timeout: Duration::from_millis(50), ..Settings::default() };
    let server = TestServer::with_settings(settings).await;
    let token = server.token(Caller::Writer).expect("a token");
    let request = Request::post("/v1/projects/ours/compute/hosts/register")
        .header("authorization", format!("Bearer {token}"))
        .body(Body::from_stream(futures_util::stream::pending::<
            Result<Bytes, std::convert::Infallible>,
        >()));
    let (status, problem) = read_json(server.send(request.expect("a request")).await).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(problem["message"], "request timeout");
}

#[tokio::test]
async fn an_unreachable_database_is_reported_as_unavailable() {
    let server = TestServer::new().await;
    server.store.close().await;
    server.expect_problem("GET compute/hosts", None, 503, json!({"code": "Unavailable"})).await;
}

#[tokio::test]
async fn the_form_of_a_request_is_checked_before_the_caller() {
    let server = TestServer::new().await;
    let bad = Some(json!({"colour": "red"}));
    server
        .client_of(Caller::Anonymous)
        .expect_problem("POST /v1/projects/ours/compute/hosts/register", bad, 400, json!({}))
        .await;
    let rule = Some(json!({"name": "x"}));
    server
        .client_of(Caller::Reader)
        .expect_problem("POST /v1/projects/ours/compute/hosts/register", rule, 403, json!({}))
        .await;
}
