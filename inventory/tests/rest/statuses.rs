//! Every path × method × role, with its status.

use std::fmt::Write;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use evenkeel_inventory::document;
use evenkeel_kit::Clock;
use evenkeel_store::hosts::{self, Joining};
use serde_json::{Value, json};

use crate::house::{
    House, KEY, Things, UUID, Who, legacy, nightly, os_body, read, with_registries,
};

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
        "create_host" => json!({"name": "made"}),
        "register_host" => json!({"name": "new", "serialNumber": "NEW12345"}),
        "reregister_host" => json!({"name": "edge-01", "autoOnboard": true}),
        "create_instance" => json!({"hostID": things.host, "osID": things.os}),
        "put_instance" | "patch_instance" => json!({"osUpdatePolicyID": things.policy}),
        "create_operating_system" => os_body("new"),
        "put_operating_system" | "patch_operating_system" => json!({"architecture": "x86_64"}),
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
        "create_provider" => json!({
            "providerKind": "PROVIDER_KIND_BAREMETAL", "name": "new", "apiEndpoint": "",
        }),
        "create_custom_config" => json!({"name": "new", "config": "#cloud-config"}),
        "create_local_account" => json!({"username": "new", "sshKey": KEY}),
        "put_assignment" | "patch_assignment" => {
            json!({"osUpdatePolicyId": things.policy, "maxConcurrent": 3})
        }
        "put_pause" | "resume_assignment" => json!({"reason": "a storm"}),
        "put_order" => json!({"kind": "cancel", "reason": "not today"}),
        "put_settings" | "patch_settings" => json!({"retentionDays": 7}),
        "put_os_settings" | "patch_os_settings" => json!({"revision": "~0.8.12"}),
        "create_join_token" => json!({}),
        other => panic!("the operation {other} takes a body: say in `statuses::body` which"),
    })
}

/// The parameters behind the question mark without which an operation cannot be asked.
pub fn query(operation: &Value) -> &'static str {
    let id = operation["operationId"].as_str().expect("an id");
    if id == "find_locations" {
        return "?name=ulm&showSites=true&showRegions=true";
    }
    let all = operation["parameters"].as_array().into_iter().flatten();
    for parameter in all {
        let is_needed = parameter["in"] == "query" && parameter["required"] == true;
        let name = &parameter["name"];
        assert!(
            !is_needed,
            "the operation {id} needs the parameter {name}: say in `statuses::query` which"
        );
    }
    ""
}

/// What has to be asked before what: readers first, then what changes things, then what ends the trust in them, and
/// nothing is deleted before what leans on it.
fn rank(method: &str, path: &str) -> usize {
    let order = [
        "os-update-runs",
        "schedules",
        "/order",
        "assignments",
        "pauses",
        "instances",
        "providers",
        "customConfigs",
        "localAccounts",
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
            let place = order.iter().position(|part| path.contains(part));
            10 + place.expect("say in `statuses::rank` what is deleted before what")
        }
        _ if path.ends_with("/invalidate") => 2,
        _ => 1,
    }
}

/// Those who ask, in the order of the columns.
const EVERYBODY: [Who; 7] = [
    Who::Nobody,
    Who::Guest,
    Who::Node,
    Who::Foreigner,
    Who::Reader,
    Who::Writer,
    Who::Administrator,
];

/// What the paths of a project begin with.
const IN_A_PROJECT: &str = "/v1/projects/{projectName}/";

/// An operation, with the status that each of [`EVERYBODY`] gets.
type Row = (String, Vec<u16>);

/// Asks for everything as everybody: by the name of the project, or in the legacy form, which has only what is in a
/// project.
async fn rows(is_legacy: bool) -> Vec<Row> {
    let house = House::with(with_registries()).await;
    let things = house.furnish().await;
    house.want(&things).await;
    came(&house, &things).await;
    let (project, tokens) = (
        house.ours.to_string(),
        EVERYBODY.map(|who| house.token(who)),
    );
    let mut operations = operations();
    operations.retain(|(_, path, _)| !is_legacy || path.starts_with(IN_A_PROJECT));
    operations.sort_by_key(|(method, path, _)| rank(method, path));
    let mut rows = Vec::new();
    for (method, path, operation) in operations {
        let uri = format!("{}{}", things.fill(&path, "ours"), query(&operation));
        let (uri, active) = if is_legacy {
            (legacy(&uri), Some(project.as_str()))
        } else {
            (uri, None)
        };
        let what = format!("{method} {uri}");
        let mut statuses = Vec::new();
        for (who, token) in EVERYBODY.iter().zip(&tokens) {
            let body = body(&operation, &things, &house);
            let answer = house.ask_with(token.as_deref(), active, &what, body).await;
            let (status, answer) = read(answer).await;
            assert!(!status.is_server_error(), "{what} as {who:?}: {answer}");
            statuses.push(status.as_u16());
        }
        rows.push((format!("{method} {path}"), statuses));
    }
    rows
}

/// The machine of the host has come, so there is a trust in it that can end.
async fn came(house: &House, things: &Things) {
    let tx = house.store.tenant(house.ours).await.expect("a transaction");
    let joining = Joining {
        uuid: UUID.parse().expect("a UUID"),
        serial: None,
        hostname: "edge-01".to_owned(),
        public_key: Vec::new(),
    };
    let host = things.host.parse().expect("an id");
    hosts::joined(&tx, host, &joining, house.clock.now())
        .await
        .expect("it has come");
    tx.commit().await.expect("committed");
}

/// The status of somebody who may not do what a row is about; none for those who may.
fn refusal(who: Who, what: &str) -> Option<u16> {
    let reads = what.starts_with("GET ");
    match what {
        "GET /v1/orchestrator" => (who == Who::Nobody).then_some(401),
        // The list of the projects that one may see: whoever may see none is nobody here.
        "GET /v1/projects" => matches!(who, Who::Nobody | Who::Guest | Who::Node).then_some(401),
        _ => match who {
            Who::Nobody => Some(401),
            Who::Guest | Who::Node | Who::Foreigner => Some(403),
            Who::Reader => (!reads).then_some(403),
            // Projects themselves are made and deleted by administrators only.
            Who::Writer => (!reads && !what.contains(IN_A_PROJECT)).then_some(403),
            Who::Administrator => None,
        },
    }
}

#[tokio::test]
async fn every_path_method_and_role_has_its_status() {
    let mut table = format!("{:<84}", "");
    for who in EVERYBODY {
        write!(table, " {:<6.6}", format!("{who:?}").to_lowercase()).expect("a string");
    }
    for (what, statuses) in rows(false).await {
        write!(table, "\n{what:<84}").expect("a string");
        for (who, status) in EVERYBODY.into_iter().zip(statuses) {
            match refusal(who, &what) {
                Some(refused) => assert_eq!(status, refused, "{what} as {who:?}"),
                None => assert!(!matches!(status, 401 | 403), "{what} as {who:?}: {status}"),
            }
            write!(table, " {status:<6}").expect("a string");
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
async fn the_legacy_form_says_the_same_to_everybody() {
    let named: Vec<Row> = rows(false)
        .await
        .into_iter()
        .filter(|(what, _)| what.contains(IN_A_PROJECT))
        .collect();
    let legacy = rows(true).await;
    assert!(legacy.len() > 90, "only {} operations", legacy.len());
    for (named, legacy) in named.iter().zip(&legacy) {
        assert_eq!(legacy, named);
    }
    assert_eq!(legacy.len(), named.len());
}

#[tokio::test]
async fn the_legacy_form_needs_the_uuid_of_a_project_that_one_may_enter() {
    let house = House::new().await;
    let (ours, theirs) = (house.ours.to_string(), house.theirs.to_string());
    let token = house.token(Who::Reader);
    for (project, wanted) in [
        (None, 401),
        (Some(""), 401),
        (Some("ours"), 401),
        (Some("01234567-89ab-cdef-0123-456789abcdef"), 403),
        (Some(theirs.as_str()), 403),
        (Some(ours.as_str()), 200),
    ] {
        let what = "GET /edge-infra.orchestrator.apis/v2/hosts";
        let answer = house.ask_with(token.as_deref(), project, what, None).await;
        assert_eq!(answer.status().as_u16(), wanted, "{project:?}");
    }
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
