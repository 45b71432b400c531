//! Every path × method × role, with its status.

use std::fmt::Write;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use evenkeel_inventory::document;
use serde_json::{Value, json};

use crate::house::{House, Things, Who, nightly, os_body, read};

/// Every operation of the document: method, path, operation.
pub fn operations() -> Vec<(String, String, Value)> {
    let document = serde_json::to_value(document()).expect("JSON");
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            operations.push((method.to_uppercase(), path.clone(), operation.clone()));
        }
    }
    operations
}

/// A body that an operation takes, with these things.
pub fn body(operation: &Value, things: &Things, house: &House) -> Option<Value> {
    operation.get("requestBody")?;
    Some(match operation["operationId"].as_str().expect("an id") {
        "put_project" => json!({"description": "new"}),
        "register_host" => json!({"name": "new", "serialNumber": "NEW12345"}),
        "create_instance" => json!({"hostID": things.host, "osID": things.os}),
        "patch_instance" => json!({"osUpdatePolicyID": things.policy}),
        "create_operating_system" => os_body("new"),
        "create_update_policy" => json!({"name": "new", "updatePolicy": "UPDATE_POLICY_LATEST"}),
        "create_single_schedule" => json!({
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": house.seconds(60),
            "targetHostId": things.host,
        }),
        "put_single_schedule" | "patch_single_schedule" => json!({
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": house.seconds(90),
            "targetHostId": things.host,
        }),
        "create_repeated_schedule" | "put_repeated_schedule" | "patch_repeated_schedule" => {
            nightly(&things.site)
        }
        "create_region" | "put_region" | "patch_region" => json!({"name": "north"}),
        "create_site" => json!({"name": "bonn"}),
        "put_site" | "patch_site" => {
            json!({"name": "bonn", "regionId": things.region})
        }
        "put_host" | "patch_host" => json!({"name": "edge-01", "siteId": things.site}),
        "put_assignment" | "patch_assignment" => {
            json!({"osUpdatePolicyId": things.policy, "maxConcurrent": 3})
        }
        "put_pause" | "resume_assignment" => json!({"reason": "a storm"}),
        "put_order" => json!({"kind": "cancel", "reason": "not today"}),
        "put_settings" | "patch_settings" => json!({"retentionDays": 7}),
        "create_join_token" => json!({}),
        other => panic!("no body for {other}"),
    })
}

/// What has to be asked before what: readers first, and nothing is deleted before what leans on it.
fn rank(method: &str, path: &str) -> usize {
    let order = [
        "os-update-runs",
        "schedules",
        "/order",
        "assignments",
        "pauses",
        "instances",
        "policies",
        "hosts",
        "compute/os",
        "sites",
        "regions",
        "{projectName}",
    ];
    match method {
        "GET" => 0,
        "DELETE" => {
            10 + order
                .iter()
                .position(|part| path.contains(part))
                .unwrap_or(0)
        }
        _ => 1,
    }
}

#[tokio::test]
async fn every_path_method_and_role_has_its_status() {
    let house = House::new().await;
    let things = house.furnish().await;
    house.want(&things).await;
    let everybody = [
        Who::Nobody,
        Who::Node,
        Who::Foreigner,
        Who::Reader,
        Who::Writer,
        Who::Administrator,
    ];
    let mut table = format!("{:<84}", "");
    for who in everybody {
        write!(table, " {:<6.6}", format!("{who:?}").to_lowercase()).expect("a string");
    }
    let mut operations = operations();
    operations.sort_by_key(|(method, path, _)| rank(method, path));
    for (method, path, operation) in operations {
        write!(table, "\n{:<84}", format!("{method} {path}")).expect("a string");
        for who in everybody {
            let what = format!("{method} {}", things.fill(&path, "ours"));
            let (status, _) = house
                .ask(who, &what, body(&operation, &things, &house))
                .await;
            assert!(!status.is_server_error(), "{what} as {who:?}");
            write!(table, " {:<6}", status.as_u16()).expect("a string");
        }
    }
    let table = table
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n");
    insta::assert_snapshot!(table);
}

#[tokio::test]
async fn an_id_of_another_kind_is_a_bad_request_and_an_unknown_one_is_not_found() {
    let house = House::new().await;
    for (id, status, message) in [
        ("host-00000000", 404, "host_resource not found"),
        ("host-999", 404, "host_resource not found"),
        ("host-XXXXXXXX", 404, "host_resource not found"),
        (
            "HOST-00000000",
            400,
            "resourceId: `HOST-00000000` is not an id of the form host-0a1b2c3d",
        ),
        (
            "inst-00000000",
            400,
            "resourceId: `inst-00000000` is not an id of the form host-0a1b2c3d",
        ),
        (
            "nonsense",
            400,
            "resourceId: `nonsense` is not an id of the form host-0a1b2c3d",
        ),
    ] {
        let (got, problem) = house.ours(&format!("GET compute/hosts/{id}"), None).await;
        assert_eq!(got.as_u16(), status, "{id}");
        assert_eq!(problem["message"], message);
    }
}

#[tokio::test]
async fn what_is_not_found_is_called_as_the_ancestor_calls_it() {
    let house = House::new().await;
    for (path, message) in [
        (
            "compute/instances/inst-00000000",
            "instance_resource not found",
        ),
        (
            "compute/instances/inst-00000000/decision",
            "instance_resource not found",
        ),
        (
            "compute/os/os-00000000",
            "operating_system_resource not found",
        ),
        (
            "os-update-policies/osupdatepolicy-00000000",
            "os_update_policy_resource not found",
        ),
        (
            "os-update-runs/osupdaterun-00000000",
            "os_update_run_resource not found",
        ),
        (
            "schedules/single/singlesche-00000000",
            "single_schedule_resource not found",
        ),
        (
            "schedules/repeated/repeatedsche-00000000",
            "repeated_schedule_resource not found",
        ),
        ("regions/region-00000000", "region_resource not found"),
        ("sites/site-00000000", "site_resource not found"),
        ("assignments/site-00000000", "assignment not found"),
        ("assignments/project", "assignment not found"),
        ("pauses/project", "pause not found"),
        (
            "compute/instances/inst-00000000/order",
            "instance_resource not found",
        ),
        (
            "join-tokens/jointoken-00000000",
            "join_token_resource not found",
        ),
    ] {
        let (got, problem) = house.ours(&format!("GET {path}"), None).await;
        assert_eq!(
            (got, &problem["message"]),
            (StatusCode::NOT_FOUND, &json!(message)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn what_is_not_there_is_told_as_a_problem() {
    let house = House::new().await;
    let (status, problem) = house.ask(Who::Writer, "GET /v1/nothing", None).await;
    assert_eq!(
        (status, &problem["code"]),
        (StatusCode::NOT_FOUND, &json!("NotFound"))
    );
    let (status, problem) = house.ours("DELETE compute/hosts", None).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(problem["type"], "urn:evenkeel:problem:no-such-method");
}

#[tokio::test]
async fn a_problem_has_the_members_of_both_worlds() {
    let house = House::new().await;
    let request = Request::get("/v1/projects/ours/compute/hosts").header("x-request-id", "req-9");
    let response = house
        .send(request.body(Body::empty()).expect("a request"))
        .await;
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let (_, problem) = read(response).await;
    insta::assert_snapshot!(serde_json::to_string_pretty(&problem).expect("JSON"));
}

#[tokio::test]
async fn a_token_counts_only_while_it_is_good() {
    let house = House::new().await;
    let good = house.token(Who::Reader).expect("a token");
    let ask = async |value: &str| {
        let request =
            Request::get("/v1/projects/ours/compute/hosts").header("authorization", value);
        house
            .send(request.body(Body::empty()).expect("a request"))
            .await
            .status()
            .as_u16()
    };
    assert_eq!(ask(&format!("Bearer {good}")).await, 200);
    assert_eq!(ask(&format!("bearer {good}")).await, 200);
    assert_eq!(ask(&format!("Basic {good}")).await, 401);
    assert_eq!(ask("Bearer").await, 401);
    assert_eq!(ask(&format!("Bearer {good}x")).await, 401);
    let parts: Vec<_> = good.split('.').collect();
    let unsigned = format!("Bearer eyJhbGciOiJub25lIn0.{}.", parts[1]);
    assert_eq!(ask(&unsigned).await, 401);
    house.clock.advance(chrono::TimeDelta::hours(2));
    assert_eq!(ask(&format!("Bearer {good}")).await, 401);
}

#[tokio::test]
async fn unknown_and_foreign_projects_look_the_same() {
    let house = House::new().await;
    let ask = async |project: &str| {
        let path = format!("GET /v1/projects/{project}/compute/hosts");
        let (status, mut problem) = house.ask(Who::Writer, &path, None).await;
        problem["instance"] = json!("");
        (status, problem)
    };
    let (status, unknown) = ask("nobodys").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(ask("theirs").await, (status, unknown.clone()));
    assert_eq!(ask("-").await, (status, unknown.clone()));
    assert_eq!(ask("%2e%2e").await, (status, unknown));
}
