//! From an empty project to a finished run.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer};

#[tokio::test]
async fn seeded_resources_are_returned_with_their_relations() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;

    let host = server.expect_ok(&format!("GET compute/hosts/{}", resources.host), None).await;
    assert_eq!(host["name"], "edge-01");
    assert_eq!(host["desiredState"], "HOST_STATE_ONBOARDED");
    assert_eq!(host["siteId"], resources.site.as_str());
    assert_eq!(host["site"]["region"]["name"], "south");
    assert_eq!(host["inheritedMetadata"], json!([{"key": "country", "value": "de"}]));
    assert_eq!(host["memoryBytes"], "0");
    assert_eq!(host["instance"]["resourceId"], resources.instance.as_str());
    assert_eq!(host["instance"]["host"], Value::Null);
    assert_eq!(host["instance"]["os"]["name"], "Debian 12");
    assert_eq!(host["instance"]["updatePolicy"]["name"], "security");
    assert_eq!(host["timestamps"]["createdAt"], "2026-03-01T12:00:00Z");

    let instance =
        server.expect_ok(&format!("GET compute/instances/{}", resources.instance), None).await;
    assert_eq!(instance["hostID"], resources.host.as_str());
    assert_eq!(instance["host"]["name"], "edge-01");
    assert_eq!(instance["osUpdatePolicyID"], "");
    assert_eq!(instance["workloadMembers"], json!([]));
    assert_eq!(instance["host"]["site"]["name"], "ulm");
    let effective = &instance["effectiveUpdatePolicy"];
    assert_eq!(effective["level"], "instance");
    assert_eq!(effective["assignedTo"], resources.instance.as_str());

    let schedules = server.expect_ok("GET compute/schedules", None).await;
    let nightly = &schedules["repeatedSchedules"][0];
    assert_eq!(nightly["targetSite"]["name"], "ulm");
    assert_eq!(nightly["timeZone"], "Europe/Berlin");
    assert_eq!(schedules["singleSchedules"][0]["targetHost"]["name"], "edge-01");
    assert_eq!(schedules["totalElements"], 2);
}

#[tokio::test]
async fn a_run_shows_its_policy_times_packages_and_events() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let mut run = server.expect_ok(&format!("GET os-update-runs/{}", resources.run), None).await;
    for stored_elsewhere in ["appliedPolicy", "instance"] {
        assert!(run[stored_elsewhere]["resourceId"].as_str().is_some_and(|id| !id.is_empty()));
        run[stored_elsewhere] = json!("…");
    }
    for id in ["resourceId", "hostId"] {
        run[id] = json!("…");
    }
    run["policy"]["resourceId"] = json!("…");
    insta::assert_json_snapshot!(run);
}

#[tokio::test]
async fn runs_of_a_deleted_policy_still_show_it() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let delete = format!("DELETE os-update-policies/{}", resources.policy);

    let (status, problem) = server.request_as_writer(&delete, None).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["code"], "FailedPrecondition");

    let path = format!("PATCH compute/instances/{}", resources.instance);
    let unlinked = server.expect_ok(&path, Some(json!({"osUpdatePolicyID": ""}))).await;
    assert_eq!(unlinked["updatePolicy"], Value::Null);
    assert_eq!(server.expect_ok(&delete, None).await, json!({}));

    let run = server.expect_ok(&format!("GET os-update-runs/{}", resources.run), None).await;
    assert_eq!(run["appliedPolicy"]["resourceId"], "");
    assert_eq!(run["policy"]["resourceId"], resources.policy.as_str());
    assert_eq!(run["policy"]["updatePackages"], "curl\njq=1.7");
}

#[tokio::test]
async fn a_decision_explains_its_action_its_reason_and_its_windows() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
    let path = format!("GET compute/instances/{}/decision", resources.instance);
    let decision = server.expect_ok(&path, None).await;
    assert_eq!(decision["act"], "idle");
    assert_eq!(decision["reason"]["code"], "not_provisioned");
    assert_eq!(decision["policy"]["name"], "security");
    assert_eq!(decision["policy"]["target"]["packages"], json!(["curl", "jq=1.7"]));
    assert_eq!(decision["windows"][0]["open"], false);
    assert_eq!(decision["windows"][0]["start"], "2026-03-01T13:00:00Z");
    assert_eq!(decision["run"], Value::Null);
}

#[tokio::test]
async fn the_legacy_form_serves_the_same_resources() {
    let server = TestServer::new().await;
    let resources = server.seed_resources().await;
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
    let (status, problem) = server.request_as(Caller::Writer, &without, None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(problem["message"], "the header ActiveProjectID must hold the UUID of a project");
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
