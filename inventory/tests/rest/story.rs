//! From an empty project to a run that is told.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::house::{House, Who};

#[tokio::test]
async fn a_project_is_furnished_and_told() {
    let house = House::new().await;
    let things = house.furnish().await;

    let host = house
        .ok(&format!("GET compute/hosts/{}", things.host), None)
        .await;
    assert_eq!(host["name"], "edge-01");
    assert_eq!(host["desiredState"], "HOST_STATE_ONBOARDED");
    assert_eq!(host["siteId"], things.site.as_str());
    assert_eq!(host["site"]["region"]["name"], "south");
    assert_eq!(
        host["inheritedMetadata"],
        json!([{"key": "country", "value": "de"}])
    );
    assert_eq!(host["memoryBytes"], "0");
    assert_eq!(host["instance"]["resourceId"], things.instance.as_str());
    assert_eq!(host["instance"]["host"], Value::Null);
    assert_eq!(host["instance"]["os"]["name"], "Debian 12");
    assert_eq!(host["instance"]["updatePolicy"]["name"], "security");
    assert_eq!(host["timestamps"]["createdAt"], "2026-03-01T12:00:00Z");

    let instance = house
        .ok(&format!("GET compute/instances/{}", things.instance), None)
        .await;
    assert_eq!(instance["hostID"], things.host.as_str());
    assert_eq!(instance["host"]["name"], "edge-01");
    assert_eq!(instance["osUpdatePolicyID"], "");
    assert_eq!(instance["workloadMembers"], json!([]));
    assert_eq!(instance["host"]["site"]["name"], "ulm");
    let effective = &instance["effectiveUpdatePolicy"];
    assert_eq!(effective["level"], "instance");
    assert_eq!(effective["assignedTo"], things.instance.as_str());

    let schedules = house.ok("GET compute/schedules", None).await;
    let nightly = &schedules["repeatedSchedules"][0];
    assert_eq!(nightly["targetSite"]["name"], "ulm");
    assert_eq!(nightly["timeZone"], "Europe/Berlin");
    assert_eq!(
        schedules["singleSchedules"][0]["targetHost"]["name"],
        "edge-01"
    );
    assert_eq!(schedules["totalElements"], 2);
}

#[tokio::test]
async fn a_run_is_told_with_policy_times_packages_and_events() {
    let house = House::new().await;
    let things = house.furnish().await;
    let mut run = house
        .ok(&format!("GET os-update-runs/{}", things.run), None)
        .await;
    for kept_elsewhere in ["appliedPolicy", "instance"] {
        assert!(
            run[kept_elsewhere]["resourceId"]
                .as_str()
                .is_some_and(|id| !id.is_empty())
        );
        run[kept_elsewhere] = json!("…");
    }
    for id in ["resourceId", "hostId"] {
        run[id] = json!("…");
    }
    run["policy"]["resourceId"] = json!("…");
    insta::assert_json_snapshot!(run);
}

#[tokio::test]
async fn a_policy_that_was_deleted_lives_on_in_its_runs() {
    let house = House::new().await;
    let things = house.furnish().await;
    let delete = format!("DELETE os-update-policies/{}", things.policy);

    let (status, problem) = house.ours(&delete, None).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(problem["code"], "FailedPrecondition");

    let path = format!("PATCH compute/instances/{}", things.instance);
    let unlinked = house.ok(&path, Some(json!({"osUpdatePolicyID": ""}))).await;
    assert_eq!(unlinked["updatePolicy"], Value::Null);
    assert_eq!(house.ok(&delete, None).await, json!({}));

    let run = house
        .ok(&format!("GET os-update-runs/{}", things.run), None)
        .await;
    assert_eq!(run["appliedPolicy"]["resourceId"], "");
    assert_eq!(run["policy"]["resourceId"], things.policy.as_str());
    assert_eq!(run["policy"]["updatePackages"], "curl\njq=1.7");
}

#[tokio::test]
async fn a_decision_says_what_why_and_until_when() {
    let house = House::new().await;
    let things = house.furnish().await;
    let path = format!("GET compute/instances/{}/decision", things.instance);
    let decision = house.ok(&path, None).await;
    assert_eq!(decision["act"], "idle");
    assert_eq!(decision["reason"]["code"], "not_provisioned");
    assert_eq!(decision["policy"]["name"], "security");
    assert_eq!(
        decision["policy"]["target"]["packages"],
        json!(["curl", "jq=1.7"])
    );
    assert_eq!(decision["windows"][0]["open"], false);
    assert_eq!(decision["windows"][0]["start"], "2026-03-01T13:00:00Z");
    assert_eq!(decision["run"], Value::Null);
}

#[tokio::test]
async fn the_legacy_form_reaches_the_same_things() {
    let house = House::new().await;
    let things = house.furnish().await;
    let token = house.token(Who::Reader).expect("a token");
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
        .header("ActiveProjectID", house.ours.to_string());
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let (status, answer) = crate::house::read(house.send(request).await).await;
        assert_eq!(status, StatusCode::OK, "{legacy}: {answer}");
        assert_eq!(answer[key].as_array().map(Vec::len), Some(1), "{legacy}");
    }
    let without = format!("GET /edge-infra.orchestrator.apis/v2/hosts/{}", things.host);
    let (status, problem) = house.ask(Who::Writer, &without, None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert_eq!(
        problem["message"],
        "the header ActiveProjectID must hold the UUID of a project"
    );
}

#[tokio::test]
async fn what_people_change_is_kept_with_who_and_which_request() {
    let house = House::new().await;
    let token = house.token(Who::Writer).expect("a token");
    let body = json!({"serialNumber": "ABC12345", "name": "edge-01"});
    let request = axum::http::Request::post("/v1/projects/ours/compute/hosts/register")
        .header("authorization", format!("Bearer {token}"))
        .header("x-request-id", "req-7");
    let request = request
        .body(axum::body::Body::from(body.to_string()))
        .expect("a request");
    let response = house.send(request).await;
    assert_eq!(response.headers()["x-request-id"], "req-7");
    let (_, host) = crate::house::read(response).await;

    let id: evenkeel_domain::id::HostId = host["resourceId"]
        .as_str()
        .expect("an id")
        .parse()
        .expect("an id");
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    let changes = evenkeel_store::changes::of(&tx, "host", id.bits())
        .await
        .expect("changes");
    assert_eq!(changes[0].actor.as_deref(), Some("writer"));
    assert_eq!(changes[0].request_id.as_deref(), Some("req-7"));
}
