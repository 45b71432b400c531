//! Providers, custom configurations and local accounts, and the empty lists of absent features.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, UUID, os_body, read_json};

const SSH_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0nGkPCXr4cVvoPZ0zZ9CqDk3Pqk1L ann@edge";

fn provider() -> Value {
    json!({
        "providerKind": "PROVIDER_KIND_BAREMETAL", "providerVendor": "PROVIDER_VENDOR_LENOVO_LOCA", "name": "LOCA 1",
        "apiEndpoint": "https://loca/api", "apiCredentials": ["user", "pass|word"], "config": "{\"autoProvision\":true}",
    })
}

fn config() -> Value {
    json!({"name": "ntp", "description": "of all", "config": "#cloud-config\nntp: {}\n"})
}

fn account() -> Value {
    json!({"username": "ann", "sshKey": SSH_KEY})
}

/// Of each kind: list, body, alias of the id if there is one, and the name in messages.
fn kinds() -> [(&'static str, Value, Option<&'static str>, &'static str); 3] {
    [
        ("providers", provider(), Some("providerID"), "provider_resource"),
        ("customConfigs", config(), None, "custom_config_resource"),
        ("localAccounts", account(), Some("localAccountID"), "local_account_resource"),
    ]
}

#[tokio::test]
async fn each_kind_can_be_created_read_listed_and_deleted_but_not_changed() {
    let server = TestServer::new().await;
    for (list, body, alias, what) in kinds() {
        let created = server.post(list, body.clone()).await;
        let id = created["resourceId"].as_str().expect("an id").to_owned();
        let mut expected = body.clone();
        expected["resourceId"] = json!(id);
        let noon = "2026-03-01T12:00:00Z";
        expected["timestamps"] = json!({"createdAt": noon, "updatedAt": noon});
        if let Some(alias) = alias {
            expected[alias] = json!(id);
        }
        assert_eq!(created, expected);
        let item = format!("{list}/{id}");
        assert_eq!(server.get(&item).await, created);
        let all =
            json!({list: [created], "totalElements": 1, "hasNext": false, "nextPageToken": ""});
        assert_eq!(server.get(list).await, all);
        let page = server.get(&format!("{list}?pageSize=5")).await;
        assert_eq!(page, all);

        for method in ["PUT", "PATCH"] {
            server
                .expect_problem(&format!("{method} {item}"), Some(json!({})), 405, json!({}))
                .await;
        }
        let expected = json!({"code": "FailedPrecondition"});
        server.expect_problem(&format!("POST {list}"), Some(body), 400, expected).await;

        let delete = format!("DELETE {item}");
        assert_eq!(server.expect_ok(&delete, None).await, json!({}));
        for request in [delete, format!("GET {item}")] {
            let expected = json!({"message": format!("{what} not found")});
            server.expect_problem(&request, None, 404, expected).await;
        }
    }
}

#[tokio::test]
async fn a_client_may_send_back_the_resource_that_it_received() {
    let server = TestServer::new().await;
    for (list, body, _, _) in kinds() {
        let created = server.post(list, body).await;
        let id = created["resourceId"].as_str().expect("an id");
        server.delete(&format!("{list}/{id}")).await;
        let again = server.post(list, created.clone()).await;
        assert_ne!(again["resourceId"], created["resourceId"], "{list}");
    }
}

#[tokio::test]
async fn the_legacy_form_serves_the_same_lists() {
    let server = TestServer::new().await;
    let token = server.token(Caller::Reader).expect("a token");
    for (list, body, _, _) in kinds() {
        let created = server.post(list, body).await;
        let request = Request::get(format!("/edge-infra.orchestrator.apis/v2/{list}"))
            .header("authorization", format!("Bearer {token}"))
            .header("ActiveProjectID", server.ours.to_string());
        let request = request.body(Body::empty()).expect("a request");
        let (status, answer) = read_json(server.send(request).await).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer[list], json!([created]));
    }
}

#[tokio::test]
async fn an_invalid_body_is_rejected_with_its_field() {
    let server = TestServer::new().await;
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let long = "a".repeat(41);
    for (list, body, field) in [
        (0, with(provider(), "name", json!("")), "name"),
        (0, with(provider(), "name", json!(long)), "name"),
        (0, with(provider(), "providerKind", json!("X")), "providerKind"),
        (0, with(provider(), "providerKind", Value::Null), "providerKind"),
        (0, with(provider(), "apiEndpoint", json!("\u{0}")), "apiEndpoint"),
        (0, with(provider(), "config", json!("\u{0}")), "config"),
        (0, with(provider(), "apiCredentials", json!(vec![""; 101])), "apiCredentials"),
        (0, with(provider(), "colour", json!("red")), "colour"),
        (1, with(config(), "name", json!("NTP")), "name"),
        (1, with(config(), "config", json!("")), "config"),
        (1, with(config(), "config", json!("\u{0}")), "config"),
        (1, with(config(), "description", json!("a".repeat(257))), "description"),
        (2, with(account(), "username", json!("1ann")), "username"),
        (2, with(account(), "sshKey", json!("ssh-rsa AAAA")), "sshKey"),
        (2, with(account(), "sshKey", json!(format!("{SSH_KEY}\n{SSH_KEY}"))), "sshKey"),
        (2, json!({"username": "ann"}), "sshKey"),
    ] {
        let list = kinds()[list].0;
        let expected = json!({"code": "InvalidArgument", "field": field});
        server.expect_problem(&format!("POST {list}"), Some(body), 400, expected).await;
    }
    for (list, ..) in kinds() {
        let answer = server.get(list).await;
        assert_eq!(answer["totalElements"], 0, "something was written");
    }
}

#[tokio::test]
async fn lists_are_filtered_and_ordered() {
    let server = TestServer::new().await;
    for name in ["ann", "bob", "bobby"] {
        let body = json!({"username": name, "sshKey": SSH_KEY});
        server.post("localAccounts", body).await;
    }
    let answer =
        server.get("localAccounts?filter=username=%22BOB%22&orderBy=username%20desc").await;
    let names: Vec<_> = answer["localAccounts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|account| &account["username"])
        .collect();
    assert_eq!(names, ["bobby", "bob"]);
    server
        .expect_problem("GET providers?filter=colour=red", None, 400, json!({"field": "filter"}))
        .await;
}

#[tokio::test]
async fn resources_used_by_an_instance_cannot_be_deleted() {
    let server = TestServer::new().await;
    let id = |answer: &Value| answer["resourceId"].as_str().expect("an id").to_owned();
    let config = id(&server.post("customConfigs", config()).await);
    let account = id(&server.post("localAccounts", account()).await);
    let host = json!({"name": "edge-01", "uuid": UUID, "autoOnboard": true});
    let host = id(&server.post("compute/hosts/register", host).await);
    let os = id(&server.post("compute/os", os_body("Debian 12")).await);
    let instance = json!({
        "hostID": host, "osID": os, "localAccountID": account, "customConfigID": [config],
    });
    let instance = id(&server.post("compute/instances", instance).await);
    let in_use =
        [format!("DELETE customConfigs/{config}"), format!("DELETE localAccounts/{account}")];
    for delete in &in_use {
        server.expect_problem(delete, None, 400, json!({"code": "FailedPrecondition"})).await;
    }
    let delete = format!("DELETE compute/instances/{instance}");
    server.expect_ok(&delete, None).await;
    for delete in &in_use {
        server.expect_ok(delete, None).await;
    }
}

#[tokio::test]
async fn absent_features_have_empty_lists() {
    let server = TestServer::new().await;
    for (path, key) in [
        ("compute/workloads", "workloads"),
        ("workloads", "workloads"),
        ("workload_members", "workloadMembers"),
        ("telemetry/groups/logs", "telemetryLogsGroups"),
        ("telemetry/loggroups", "telemetryLogsGroups"),
        ("telemetry/groups/metrics", "telemetryMetricsGroups"),
        ("telemetry/metricgroups", "telemetryMetricsGroups"),
        ("telemetry/profiles/logs", "telemetryLogsProfiles"),
        ("telemetry/profiles/metrics", "telemetryMetricsProfiles"),
    ] {
        for query in ["", "?pageSize=20&offset=0&filter=kind=WORKLOAD_KIND_CLUSTER"] {
            let answer = server.get(&format!("{path}{query}")).await;
            let empty_list =
                json!({key: [], "totalElements": 0, "hasNext": false, "nextPageToken": ""});
            assert_eq!(answer, empty_list, "{path}{query}");
        }
        let what = format!("GET /v1/projects/ours/{path}");
        for (caller, expected) in [
            (Caller::Anonymous, StatusCode::UNAUTHORIZED),
            (Caller::Foreigner, StatusCode::FORBIDDEN),
            (Caller::Reader, StatusCode::OK),
        ] {
            let (status, answer) = server.client_of(caller).request(&what, None).await;
            assert_eq!(status, expected, "{what} as {caller:?}: {answer}");
        }
        let expected = json!({"field": "pageSize"});
        server.expect_problem(&format!("GET {path}?pageSize=0"), None, 400, expected).await;
    }
}
