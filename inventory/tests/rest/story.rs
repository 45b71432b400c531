//! From an empty project to a finished run.

use axum::http::StatusCode;
use evenkeel_test_support::redact;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer};

#[tokio::test]
async fn seeded_resources_are_returned_with_their_relations() {
    let (server, resources) = TestServer::with_resources().await;

    insta::assert_json_snapshot!(redact(&json!([
        server.get(&format!("compute/hosts/{}", resources.host)).await,
        server.get(&format!("compute/instances/{}", resources.instance)).await,
        server.get("compute/schedules").await,
    ])));
}

#[tokio::test]
async fn a_run_shows_its_policy_times_packages_and_events() {
    let (server, resources) = TestServer::with_resources().await;
    let run = server.get(&format!("os-update-runs/{}", resources.run)).await;
    insta::assert_json_snapshot!(redact(&run));
}

#[tokio::test]
async fn a_list_of_runs_counts_the_packages_that_are_held_back() {
    let (server, _) = TestServer::with_resources().await;
    for page in ["", "?pageSize=1"] {
        let list = server.get(&format!("os-update-runs{page}")).await;
        let report = &list["osUpdateRuns"][0]["report"];
        assert_eq!(report["heldBackCounts"], json!([{"cause": "hold", "packages": 1}]), "{page}");
        assert_eq!(report["heldBack"], json!([]), "{page}");
    }
}

#[tokio::test]
async fn runs_of_a_deleted_policy_still_show_it() {
    let (server, resources) = TestServer::with_resources().await;
    let delete = format!("DELETE os-update-policies/{}", resources.policy);

    server.expect_problem(&delete, None, 400, json!({"code": "FailedPrecondition"})).await;

    let path = format!("PATCH compute/instances/{}", resources.instance);
    let unlinked = server.expect_ok(&path, Some(json!({"osUpdatePolicyID": ""}))).await;
    assert_eq!(unlinked["updatePolicy"], Value::Null);
    assert_eq!(server.expect_ok(&delete, None).await, json!({}));

    let run = server.get(&format!("os-update-runs/{}", resources.run)).await;
    assert_eq!(run["appliedPolicy"]["resourceId"], "");
    assert_eq!(run["policy"]["resourceId"], resources.policy.as_str());
    assert_eq!(run["policy"]["updatePackages"], "curl\njq=1.7");
}

#[tokio::test]
async fn a_decision_explains_its_action_its_reason_and_its_windows() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("compute/instances/{}/decision", resources.instance);
    insta::assert_json_snapshot!(redact(&server.get(&path).await));
}

#[tokio::test]
async fn the_legacy_form_serves_the_same_resources() {
    let (server, resources) = TestServer::with_resources().await;
    let token = server.token(Caller::Reader).expect("a token");
    for (legacy, key) in [
        ("hosts", "hosts"),
        ("instances", "instances"),
        ("operating_systems", "OperatingSystemResources"),
        ("os_update_policy", "osUpdatePolicies"),
        ("os_update_run", "osUpdateRuns"),
        ("schedules", "singleSchedules"),
        ("schedules/single", "singleSchedules"),
        ("schedules/repeated", "repeatedSchedules"),
        ("regions", "regions"),
        ("sites", "sites"),
        ("regions/any/sites", "sites"),
    ] {
        let request = axum::http::Request::get(format!(
            "/edge-infra.orchestrator.apis/v2/{legacy}/?pageSize=5"
        ))
        .header("authorization", format!("Bearer {token}"))
        .header("ActiveProjectID", server.ours.to_string());
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let (status, answer) = crate::test_server::read_json(server.send(request).await).await;
        assert_eq!(status, StatusCode::OK, "{legacy}: {answer}");
        assert_eq!(answer[key].as_array().map(Vec::len), Some(1), "{legacy}");
    }
    let without = format!("GET /edge-infra.orchestrator.apis/v2/hosts/{}", resources.host);
    let expected = json!({"message": "the header ActiveProjectID must hold the UUID of a project"});
    server.client_of(Caller::Writer).expect_problem(&without, None, 401, expected).await;
}

#[tokio::test]
async fn a_change_is_recorded_with_its_actor_and_request_id() {
    let server = TestServer::new().await;
    let token = server.token(Caller::Writer).expect("a token");
    let body = json!({"serialNumber": "ABC12345", "name": "edge-01"});
    let request = axum::http::Request::post("/v1/projects/ours/compute/hosts/register")
        .header("authorization", format!("Bearer {token}"))
        .header("x-request-id", "req-7");
    let request = request.body(axum::body::Body::from(body.to_string())).expect("a request");
    let response = server.send(request).await;
    assert_eq!(response.headers()["x-request-id"], "req-7");
    let (_, host) = crate::test_server::read_json(response).await;

    let id: evenkeel_domain::id::HostId =
        host["resourceId"].as_str().expect("an id").parse().expect("an id");
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let changes =
        evenkeel_store::changes::list_for_resource(&tx, "host", id.bits()).await.expect("changes");
    assert_eq!(changes[0].actor.as_deref(), Some("writer"));
    assert_eq!(changes[0].request_id.as_deref(), Some("req-7"));
}
