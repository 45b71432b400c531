//! The list and the stream of changes outside of projects.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::event_reader::EventReader;
use crate::test_server::{Caller, TestServer};

const LIST: &str = "GET /v1/changes";

const WATCH: &str = "/v1/changes?watch=true";

/// The kind, the operation and the name of the object of each change, oldest first.
fn summaries(list: &Value) -> Vec<[&str; 3]> {
    let changes = list["changes"].as_array().expect("changes").iter().rev();
    changes
        .map(|change| {
            ["kind", "operation", "objectName"].map(|name| change[name].as_str().expect("a text"))
        })
        .collect()
}

#[tokio::test]
async fn an_administrator_sees_changes_of_users_tokens_and_projects() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    let alice = json!({"name": "alice", "password": "open sesame!", "roles": ["viewer@ours"]});
    root.expect_ok("POST /v1/users", Some(alice)).await;
    root.expect_ok("PUT /v1/projects/shop", Some(json!({"description": "a shop"}))).await;
    root.expect_ok("PUT /v1/projects/shop/pauses/project", Some(json!({"reason": "no"}))).await;
    root.expect_ok("DELETE /v1/projects/shop", None).await;
    // A token for automation belongs to its project.
    let manager = server.client_of(Caller::Manager);
    let token = json!({"name": "nightly", "role": "viewer"});
    manager.expect_ok("POST operator-tokens", Some(token)).await;

    let list = root.expect_ok(LIST, None).await;
    let expected =
        [["user", "create", "alice"], ["project", "create", "shop"], ["project", "delete", "shop"]];
    assert_eq!(summaries(&list), expected, "{list}");
    let deletion = &list["changes"][0];
    assert_eq!(
        (&deletion["actor"], &deletion["objectId"]),
        (&json!("administrator"), &json!("project"))
    );
    assert_eq!(deletion["before"]["description"], "a shop");
    assert_eq!(list["changes"][2]["objectId"], "alice");
    assert_eq!(list["changes"][2]["after"].get("password_hash"), None);
    let id = deletion["changeId"].as_str().expect("an id");
    assert_eq!(root.expect_ok(&format!("{LIST}/{id}"), None).await, *deletion);
    let filtered = root.expect_ok(&format!("{LIST}?kind=user"), None).await;
    assert_eq!(summaries(&filtered), expected[..1]);
    let filtered = root.expect_ok(&format!("{LIST}?object=project&pageSize=1"), None).await;
    assert_eq!((summaries(&filtered), &filtered["hasNext"]), (vec![expected[2]], &json!(true)));
    let next = filtered["nextPageToken"].as_str().expect("a token");
    let next = root.expect_ok(&format!("{LIST}?object=project&pageToken={next}"), None).await;
    assert_eq!(summaries(&next), expected[1..2]);

    let of_project = server.get("changes").await;
    assert_eq!(summaries(&of_project), [["operator_token", "create", "nightly"]], "{of_project}");
    let ours = of_project["changes"][0]["changeId"].as_str().expect("an id");
    root.expect_problem(&format!("{LIST}/{ours}"), None, 404, json!({})).await;
    root.expect_problem(&format!("GET changes/{id}"), None, 404, json!({})).await;
    let cursor = of_project["nextPageToken"].as_str();
    assert_eq!(cursor, Some(""), "the only page");
    let cursor = of_project["cursor"].as_str().expect("a cursor");
    let what = format!("{LIST}?pageToken={cursor}");
    root.expect_problem(&what, None, 400, json!({"parameter": "pageToken"})).await;
}

#[tokio::test]
async fn changes_of_a_deleted_project_are_read_by_its_uuid() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    root.expect_ok("PUT /v1/projects/shop", Some(json!({"description": "a shop"}))).await;
    root.expect_ok("PUT /v1/projects/shop/pauses/project", Some(json!({"reason": "no"}))).await;
    let shop = root.expect_ok("GET /v1/projects/shop", None).await;
    let uuid = shop["status"]["projectStatus"]["uID"].as_str().expect("a UUID").to_owned();
    root.expect_ok("DELETE /v1/projects/shop", None).await;
    let projects = root.expect_ok(&format!("{LIST}?kind=project"), None).await;
    assert_eq!(projects["changes"][0]["before"]["tenant_id"], *uuid, "{projects}");
    let of_shop = format!("{LIST}?projectUuid={uuid}");
    let list = root.expect_ok(&of_shop, None).await;
    let all = summaries(&list);
    let has = |kind, operation| all.iter().any(|[k, o, _]| (*k, *o) == (kind, operation));
    assert!(has("pause", "create") && has("project", "create"), "{list}");
    let id = list["changes"][0]["changeId"].as_str().expect("an id");
    let one = root.expect_ok(&format!("{LIST}/{id}?projectUuid={uuid}"), None).await;
    assert_eq!(one, list["changes"][0]);
    root.expect_problem(&format!("{LIST}/{id}"), None, 404, json!({})).await;
    let parameter = json!({"parameter": "projectUuid"});
    for bad in ["shop", "00000000-0000-0000-0000-000000000000"] {
        let what = format!("{LIST}?projectUuid={bad}");
        root.expect_problem(&what, None, 400, parameter.clone()).await;
    }
    root.expect_problem(&format!("{of_shop}&watch=true"), None, 400, parameter).await;
    for caller in [Caller::Manager, Caller::Writer] {
        server.client_of(caller).expect_problem(&of_shop, None, 403, json!({})).await;
    }
}

#[tokio::test]
async fn a_revocation_of_all_tokens_of_a_subject_is_recorded() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    let mallory = json!({"subject": "mallory"});
    root.expect_ok("PUT /v1/operator-tokens/revoke", Some(mallory)).await;
    let list = root.expect_ok(&format!("{LIST}?kind=subject_revocation"), None).await;
    assert_eq!(summaries(&list), [["subject_revocation", "record", "mallory"]]);
    let revocation = &list["changes"][0];
    assert_eq!(
        (&revocation["actor"], &revocation["objectId"]),
        (&json!("administrator"), &json!("mallory"))
    );
}

#[tokio::test]
async fn a_changed_password_is_recorded_and_changed_roles_are_not_a_changed_password() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    let alice = json!({"name": "alice", "password": "open sesame!", "roles": ["viewer@ours"]});
    root.expect_ok("POST /v1/users", Some(alice)).await;
    let roles = json!({"roles": ["operator@ours"]});
    root.expect_ok("PUT /v1/users/alice/roles", Some(roles)).await;
    let kind = format!("{LIST}?kind=password_change");
    assert!(summaries(&root.expect_ok(&kind, None).await).is_empty());
    let password = json!({"password": "another sesame!"});
    root.expect_ok("PUT /v1/users/alice/password", Some(password)).await;
    let list = root.expect_ok(&kind, None).await;
    assert_eq!(summaries(&list), [["password_change", "record", "alice"]]);
    let change = &list["changes"][0];
    assert_eq!((&change["actor"], &change["objectId"]), (&json!("administrator"), &json!("alice")));
    assert_eq!(change["after"], json!({"name": "alice"}), "no hash: {change}");
}

#[tokio::test]
async fn only_an_administrator_of_all_projects_sees_changes_outside_of_projects() {
    let server = TestServer::new().await;
    let nil = "00000000-0000-0000-0000-000000000000";
    for (caller, status) in [
        (Caller::Anonymous, 401),
        (Caller::Guest, 403),
        (Caller::Reader, 403),
        (Caller::Manager, 403),
        (Caller::Administrator, 200),
    ] {
        let client = server.client_of(caller);
        let (seen, _) = client.request(LIST, None).await;
        assert_eq!(seen.as_u16(), status, "{caller:?}");
        if status != 200 {
            client.expect_problem(&format!("GET {WATCH}"), None, status, json!({})).await;
        }
        // It is no project.
        let token = server.token(caller);
        let legacy = server.client(token.as_deref(), Some(nil));
        let (refused, _) =
            legacy.request("GET /edge-infra.orchestrator.apis/v2/changes", None).await;
        assert_eq!(refused.as_u16(), if status == 401 { 401 } else { 403 }, "{caller:?}");
    }
}

#[tokio::test]
async fn a_stream_sends_changes_outside_of_projects_and_ends_with_the_token() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    let response = EventReader::request_path(&server, Caller::Administrator, WATCH, None).await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut stream = EventReader::new(response);
    server.put("pauses/project", json!({"reason": "not shown"})).await;
    root.expect_ok("PUT /v1/projects/shop", Some(json!({"description": ""}))).await;
    let event = stream.next_change().await;
    assert_eq!(
        (&event.data["kind"], &event.data["objectName"]),
        (&json!("project"), &json!("shop"))
    );
    root.expect_ok("DELETE /v1/projects/shop", None).await;
    // A client that connects again misses nothing.
    let last = Some(event.id.as_str());
    let again = EventReader::request_path(&server, Caller::Administrator, WATCH, last).await;
    let next = EventReader::new(again).next_change().await;
    assert_eq!(next.data["operation"], "delete");
    assert_eq!(stream.next_change().await.data, next.data);
    let what = format!("GET changes?watch=true&cursor={}", event.id);
    server.expect_problem(&what, None, 410, json!({})).await;
    server.clock.advance(chrono::TimeDelta::hours(2));
    assert_eq!(stream.end_reason().await, "access");
}
