//! Every path, method and role with its status.

use std::fmt::Write;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use evenkeel_inventory::document;
use evenkeel_kit::Clock;
use evenkeel_store::hosts::{self, JoinRequest};
use serde_json::{Value, json};

use crate::test_server::{
    Caller, ResourceIds, SSH_KEY, TestServer, UUID, legacy_path, nightly, notification_target,
    os_body, read_json, with_registries,
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

/// A body for an operation, with these resources.
pub fn request_body(
    operation: &Value,
    resources: &ResourceIds,
    server: &TestServer,
) -> Option<Value> {
    operation.get("requestBody")?;
    Some(match operation["operationId"].as_str().expect("an id") {
        "put_project" => json!({"description": "new"}),
        "create_host" => json!({"name": "made"}),
        "register_host" => json!({"name": "new", "serialNumber": "NEW12345"}),
        "reregister_host" => json!({"name": "edge-01", "autoOnboard": true}),
        "create_instance" => json!({"hostID": resources.host, "osID": resources.os}),
        "put_instance" | "patch_instance" => json!({"osUpdatePolicyID": resources.policy}),
        "create_operating_system" => os_body("new"),
        "put_operating_system" | "patch_operating_system" => json!({"architecture": "x86_64"}),
        "create_update_policy" => json!({"name": "new", "updatePolicy": "UPDATE_POLICY_LATEST"}),
        "create_single_schedule" => json!({
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": server.seconds(60),
            "targetHostId": resources.host,
        }),
        "put_single_schedule" | "patch_single_schedule" => json!({
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": server.seconds(90),
            "targetHostId": resources.host,
        }),
        "create_repeated_schedule" | "put_repeated_schedule" | "patch_repeated_schedule" => {
            nightly(&resources.site)
        }
        "create_region" | "put_region" | "patch_region" => json!({"name": "north"}),
        "create_site" => json!({"name": "bonn"}),
        "put_site" | "patch_site" => {
            json!({"name": "bonn", "regionId": resources.region})
        }
        "put_host" | "patch_host" => json!({"name": "edge-01", "siteId": resources.site}),
        "create_provider" => json!({
            "providerKind": "PROVIDER_KIND_BAREMETAL", "name": "new", "apiEndpoint": "x",
        }),
        "create_custom_config" => json!({"name": "new", "config": "#cloud-config"}),
        "create_local_account" => json!({"username": "new", "sshKey": SSH_KEY}),
        "put_assignment" | "patch_assignment" => {
            json!({"osUpdatePolicyId": resources.policy, "maxConcurrent": 3})
        }
        "put_pause" | "resume_assignment" => json!({"reason": "a storm"}),
        "put_order" => json!({"kind": "cancel", "reason": "not today"}),
        "put_settings" | "patch_settings" => json!({"retentionDays": 7}),
        "put_os_settings" | "patch_os_settings" => json!({"revision": "~0.8.12"}),
        "create_join_token" => json!({}),
        "create_notification_target" => notification_target("new"),
        "replay_notifications" => json!({"since": "2026-03-01T12:00:00Z"}),
        "create_operator_token" => json!({"name": "nightly", "role": "viewer"}),
        "revoke_operator_subject" => json!({"subject": "mallory"}),
        "create_user" => {
            json!({"name": "mallory", "password": "open sesame!", "roles": ["viewer@ours"]})
        }
        "set_user_password" => json!({"password": "open sesame!"}),
        "set_own_password" => {
            json!({"oldPassword": "open sesame!", "password": "another sesame"})
        }
        "set_user_roles" => json!({"roles": ["viewer@ours"]}),
        other => panic!("add a body for the operation {other} to `statuses::request_body`"),
    })
}

/// The required query parameters of an operation.
pub fn required_query(operation: &Value) -> &'static str {
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
            "the operation {id} requires the parameter {name}: add it to `statuses::required_query`"
        );
    }
    ""
}

/// Order of the requests: reads first, then changes, then invalidations, then deletions. A resource
/// is deleted after the resources that refer to it.
pub fn request_order(method: &str, path: &str) -> usize {
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
        "notification-targets",
        "policies",
        "hosts",
        "compute/os",
        "sites",
        "regions",
        "users",
        "{projectName}",
    ];
    match method {
        "GET" => 0,
        // Ends the tokens of administrators.
        _ if path == "/v1/logout" => 100,
        "DELETE" => {
            let index = order.iter().position(|part| path.contains(part));
            10 + index.expect("add the resource to `statuses::request_order`")
        }
        _ if path.ends_with("/invalidate") => 2,
        _ => 1,
    }
}

/// All callers in the order of the columns.
const ALL_CALLERS: [Caller; 9] = [
    Caller::Anonymous,
    Caller::Guest,
    Caller::Node,
    Caller::Foreigner,
    Caller::Reader,
    Caller::Approver,
    Caller::Writer,
    Caller::Manager,
    Caller::Administrator,
];

/// Prefix of the document's paths in a project.
const PROJECT_PREFIX: &str = "/v1/projects/{projectName}/";

/// An operation, with the status for each of [`ALL_CALLERS`].
type StatusRow = (String, Vec<u16>);

/// Sends every request as every caller: with the name of the project, or in the legacy form, which
/// has only the paths in a project.
async fn status_rows(is_legacy: bool) -> Vec<StatusRow> {
    let server = TestServer::with_settings(with_registries()).await;
    let resources = server.seed_resources().await;
    server.seed_update_controls(&resources).await;
    join_host(&server, &resources).await;
    let (project, tokens) =
        (server.ours.to_string(), ALL_CALLERS.map(|caller| server.token(caller)));
    let mut operations = operations();
    operations.retain(|(_, path, _)| !is_legacy || path.starts_with(PROJECT_PREFIX));
    operations.sort_by_key(|(method, path, _)| request_order(method, path));
    let mut rows = Vec::new();
    for (method, path, operation) in operations {
        let uri = format!("{}{}", resources.fill(&path, "ours"), required_query(&operation));
        let (uri, active) =
            if is_legacy { (legacy_path(&uri), Some(project.as_str())) } else { (uri, None) };
        let what = format!("{method} {uri}");
        let mut statuses = Vec::new();
        for (caller, token) in ALL_CALLERS.iter().zip(&tokens) {
            let body = request_body(&operation, &resources, &server);
            let client = server.client(token.as_deref(), active);
            let (status, answer) = client.request(&what, body).await;
            assert!(!status.is_server_error(), "{what} as {caller:?}: {answer}");
            statuses.push(status.as_u16());
        }
        rows.push((format!("{method} {path}"), statuses));
    }
    rows
}

/// Lets the machine of the host join, so that its trust can be revoked.
async fn join_host(server: &TestServer, resources: &ResourceIds) {
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let joining = JoinRequest {
        uuid: UUID.parse().expect("a UUID"),
        serial: None,
        hostname: "edge-01".to_owned(),
        public_key: Vec::new(),
    };
    let host = resources.host.parse().expect("an id");
    hosts::record_join(&tx, host, &joining, server.clock.now()).await.expect("it has joined");
    tx.commit().await.expect("committed");
}

/// The status for a caller that may not do this; none for callers that may.
fn expected_refusal(caller: Caller, what: &str) -> Option<u16> {
    let reads = what.starts_with("GET ");
    match what {
        "GET /v1/orchestrator"
        | "GET /v1/whoami"
        | "PUT /v1/whoami/password"
        | "POST /v1/logout" => (caller == Caller::Anonymous).then_some(401),
        // The list of visible projects. A caller that may see no project is unauthenticated.
        "GET /v1/projects" => {
            matches!(caller, Caller::Anonymous | Caller::Guest | Caller::Node).then_some(401)
        }
        _ if what.contains("/operator-tokens") || what.contains(" /v1/users") => match caller {
            Caller::Anonymous => Some(401),
            Caller::Administrator => None,
            // Subjects belong to no project.
            Caller::Manager => what.ends_with("/operator-tokens/revoke").then_some(403),
            _ => Some(403),
        },
        _ if what.contains(" /v1/changes") => match caller {
            Caller::Anonymous => Some(401),
            Caller::Administrator => None,
            _ => Some(403),
        },
        _ => match caller {
            Caller::Anonymous => Some(401),
            Caller::Guest | Caller::Node | Caller::Foreigner => Some(403),
            // Nothing waits for an approval yet.
            Caller::Reader | Caller::Approver => (!reads).then_some(403),
            // Only administrators create and delete projects.
            Caller::Writer | Caller::Manager => {
                (!reads && !what.contains(PROJECT_PREFIX)).then_some(403)
            }
            Caller::Administrator => None,
        },
    }
}

#[tokio::test]
async fn every_path_method_and_role_has_its_status() {
    let mut table = format!("{:<84}", "");
    for caller in ALL_CALLERS {
        write!(table, " {:<6.6}", format!("{caller:?}").to_lowercase()).expect("a string");
    }
    for (what, statuses) in status_rows(false).await {
        write!(table, "\n{what:<84}").expect("a string");
        for (caller, status) in ALL_CALLERS.into_iter().zip(statuses) {
            match expected_refusal(caller, &what) {
                Some(refused) => assert_eq!(status, refused, "{what} as {caller:?}"),
                None => assert!(!matches!(status, 401 | 403), "{what} as {caller:?}: {status}"),
            }
            write!(table, " {status:<6}").expect("a string");
        }
    }
    let table = table.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(table);
}

#[tokio::test]
async fn the_legacy_form_has_the_same_statuses() {
    let by_name: Vec<StatusRow> = status_rows(false)
        .await
        .into_iter()
        .filter(|(what, _)| what.contains(PROJECT_PREFIX))
        .collect();
    let legacy = status_rows(true).await;
    assert!(legacy.len() > 90, "only {} operations", legacy.len());
    for (by_name, legacy) in by_name.iter().zip(&legacy) {
        assert_eq!(legacy, by_name);
    }
    assert_eq!(legacy.len(), by_name.len());
}

#[tokio::test]
async fn the_legacy_form_needs_the_uuid_of_an_accessible_project() {
    let server = TestServer::new().await;
    let (ours, theirs) = (server.ours.to_string(), server.theirs.to_string());
    let token = server.token(Caller::Reader);
    for (project, expected) in [
        (None, 401),
        (Some(""), 401),
        (Some("ours"), 401),
        (Some("01234567-89ab-cdef-0123-456789abcdef"), 403),
        (Some(theirs.as_str()), 403),
        (Some(ours.as_str()), 200),
    ] {
        let what = "GET /edge-infra.orchestrator.apis/v2/hosts";
        let (status, _) = server.client(token.as_deref(), project).request(what, None).await;
        assert_eq!(status.as_u16(), expected, "{project:?}");
    }
}

#[tokio::test]
async fn an_id_of_another_kind_is_a_bad_request_and_an_unknown_id_is_not_found() {
    let server = TestServer::new().await;
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
        ("nonsense", 400, "resourceId: `nonsense` is not an id of the form host-0a1b2c3d"),
    ] {
        let (got, problem) = server.request(&format!("GET compute/hosts/{id}"), None).await;
        assert_eq!(got.as_u16(), status, "{id}");
        assert_eq!(problem["message"], message);
    }
}

#[tokio::test]
async fn not_found_messages_use_the_names_of_eim() {
    let server = TestServer::new().await;
    for (path, message) in [
        ("compute/instances/inst-00000000", "instance_resource not found"),
        ("compute/instances/inst-00000000/decision", "instance_resource not found"),
        ("compute/os/os-00000000", "operating_system_resource not found"),
        ("os-update-policies/osupdatepolicy-00000000", "os_update_policy_resource not found"),
        ("os-update-runs/osupdaterun-00000000", "os_update_run_resource not found"),
        ("schedules/single/singlesche-00000000", "single_schedule_resource not found"),
        ("schedules/repeated/repeatedsche-00000000", "repeated_schedule_resource not found"),
        ("regions/region-00000000", "region_resource not found"),
        ("sites/site-00000000", "site_resource not found"),
        ("assignments/site-00000000", "assignment not found"),
        ("assignments/project", "assignment not found"),
        ("pauses/project", "pause not found"),
        ("compute/instances/inst-00000000/order", "instance_resource not found"),
        ("join-tokens/jointoken-00000000", "join_token_resource not found"),
        (
            "notification-targets/notificationtarget-00000000",
            "notification_target_resource not found",
        ),
    ] {
        let (got, problem) = server.request(&format!("GET {path}"), None).await;
        assert_eq!((got, &problem["message"]), (StatusCode::NOT_FOUND, &json!(message)), "{path}");
    }
}

#[tokio::test]
async fn an_unknown_path_or_method_is_a_problem() {
    let server = TestServer::new().await;
    server
        .client_of(Caller::Writer)
        .expect_problem("GET /v1/nothing", None, 404, json!({"code": "NotFound"}))
        .await;
    let expected = json!({"type": "urn:evenkeel:problem:no-such-method"});
    server.expect_problem("DELETE compute/hosts", None, 405, expected).await;
}

#[tokio::test]
async fn a_problem_has_the_members_of_eim_and_of_rfc_9457() {
    let server = TestServer::new().await;
    let request = Request::get("/v1/projects/ours/compute/hosts").header("x-request-id", "req-9");
    let response = server.send(request.body(Body::empty()).expect("a request")).await;
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let (_, problem) = read_json(response).await;
    insta::assert_snapshot!(serde_json::to_string_pretty(&problem).expect("JSON"));
}

#[tokio::test]
async fn a_token_is_accepted_only_while_it_is_valid() {
    let server = TestServer::new().await;
    let good = server.token(Caller::Reader).expect("a token");
    let status_for = async |value: &str| {
        let request =
            Request::get("/v1/projects/ours/compute/hosts").header("authorization", value);
        server.send(request.body(Body::empty()).expect("a request")).await.status().as_u16()
    };
    assert_eq!(status_for(&format!("Bearer {good}")).await, 200);
    assert_eq!(status_for(&format!("bearer {good}")).await, 200);
    assert_eq!(status_for(&format!("Basic {good}")).await, 401);
    assert_eq!(status_for("Bearer").await, 401);
    assert_eq!(status_for(&format!("Bearer {good}x")).await, 401);
    let parts: Vec<_> = good.split('.').collect();
    let unsigned = format!("Bearer eyJhbGciOiJub25lIn0.{}.", parts[1]);
    assert_eq!(status_for(&unsigned).await, 401);
    server.clock.advance(chrono::TimeDelta::hours(2));
    assert_eq!(status_for(&format!("Bearer {good}")).await, 401);
}

#[tokio::test]
async fn unknown_and_foreign_projects_look_the_same() {
    let server = TestServer::new().await;
    let request_hosts = async |project: &str| {
        let path = format!("GET /v1/projects/{project}/compute/hosts");
        let (status, mut problem) = server.client_of(Caller::Writer).request(&path, None).await;
        problem["instance"] = json!("");
        (status, problem)
    };
    let (status, unknown) = request_hosts("nobodys").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(request_hosts("theirs").await, (status, unknown.clone()));
    assert_eq!(request_hosts("-").await, (status, unknown.clone()));
    assert_eq!(request_hosts("%2e%2e").await, (status, unknown));
}
