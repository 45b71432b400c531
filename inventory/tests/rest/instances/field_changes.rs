//! Which fields of an instance can be changed until when.

use chrono::TimeDelta;
use serde_json::{Value, json};

use crate::test_server::TestServer;

#[tokio::test]
async fn the_operating_system_can_be_chosen_until_the_node_has_reported() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("compute/instances/{}", resources.instance);
    let other = server.create_os("Debian 13").await;
    let changed = server.patch(&path, json!({"osID": other})).await;
    assert_eq!((&changed["osID"], &changed["os"]["name"]), (&json!(other), &json!("Debian 13")));
    assert_eq!(changed["updatePolicy"]["name"], "security");

    server.mark_node_connected(&resources).await;
    let before = server.get(&path).await;
    assert_eq!(before["currentState"], "INSTANCE_STATE_RUNNING");
    let back = json!({"osID": resources.os, "name": "x", "osUpdatePolicyID": resources.policy});
    for method in ["PUT", "PATCH"] {
        let what = format!("{method} {path}");
        server.expect_problem(&what, Some(back.clone()), 400, json!({"field": "osID", "message": format!(
                "osID: the instance is provisioned with {other}; only its node can change the operating system"
            )})).await;
    }
    assert_eq!(server.get(&path).await, before);
    let same = json!({"osID": other, "name": "renamed"});
    let renamed = server.patch(&path, same).await;
    assert_eq!(renamed["name"], "renamed");
}

#[tokio::test]
async fn fields_set_at_creation_accept_only_their_current_value() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("compute/instances/{}", resources.instance);
    let before = server.get(&path).await;
    for (query, body, field) in [
        ("", json!({"hostID": "host-00000001", "name": "x"}), "hostID"),
        ("", json!({"hostID": null, "name": "x"}), "hostID"),
        ("", json!({"hostID": "", "name": "x"}), "hostID"),
        ("?fieldMask=hostID,name", json!({}), "hostID"),
        ("", json!({"securityFeature": "SECURITY_FEATURE_NONE", "name": "x"}), "securityFeature"),
        ("", json!({"localAccountID": "localaccount-00000001", "name": "x"}), "localAccountID"),
        ("", json!({"customConfigID": ["customconfig-00000001"], "name": "x"}), "customConfigID"),
    ] {
        let what = format!("PATCH {path}{query}");
        server.expect_problem(&what, Some(body), 400, json!({"field": field, "message": format!("{field}: it is set when the instance is created, and cannot be changed")})).await;
    }
    // Even with their current values: such a request changes nothing.
    let current = json!({"hostID": resources.host, "securityFeature": before["securityFeature"]});
    let message = "hostID: `hostID` cannot be changed, and the request names no other field";
    let expected = json!({"field": "hostID", "message": message});
    server.expect_problem(&format!("PATCH {path}"), Some(current), 400, expected).await;
    for (query, body, field) in [
        ("", json!({"kind": 7}), "kind"),
        ("", json!({"osID": null}), "osID"),
        ("?fieldMask=osID", json!({}), "osID"),
        ("", json!({"name": "a;b"}), "name"),
        ("", json!({"colour": "red"}), "colour"),
        ("?fieldMask=name,colour", json!({"name": "red"}), "fieldMask"),
    ] {
        let what = format!("PATCH {path}{query}");
        server.expect_problem(&what, Some(body), 400, json!({"field": field})).await;
    }
    assert_eq!(server.get(&path).await, before);

    let mut body = before.clone();
    body["name"] = json!("renamed");
    // A response has no policy id; writing it back as it is would remove the policy.
    body["osUpdatePolicyID"] = json!(resources.policy);
    server.clock.advance(TimeDelta::minutes(1));
    for method in ["PUT", "PATCH"] {
        let renamed = server.expect_ok(&format!("{method} {path}"), Some(body.clone())).await;
        assert_eq!(renamed["name"], "renamed");
        assert_eq!(renamed["updatePolicy"], before["updatePolicy"]);
        assert_eq!(renamed["timestamps"]["updatedAt"], "2026-03-01T12:01:00Z");
        // A request that changes nothing does not update the timestamp.
        server.clock.advance(TimeDelta::minutes(1));
    }
}

#[tokio::test]
async fn a_change_affects_only_the_fields_of_its_mask() {
    let (server, resources) = TestServer::with_resources().await;
    let path = |query: &str| format!("PATCH compute/instances/{}{query}", resources.instance);

    let renamed = server
        .expect_ok(
            &path(""),
            Some(json!({"name": "renamed", "host": null, "hostID": resources.host})),
        )
        .await;
    assert_eq!(renamed["name"], "renamed");
    assert_eq!(renamed["updatePolicy"]["name"], "security");

    let masked = server
        .expect_ok(
            &path("?fieldMask=kind"),
            Some(json!({"name": "not meant", "hostID": "x", "kind": "INSTANCE_KIND_METAL"})),
        )
        .await;
    assert_eq!(masked["name"], "renamed");
    assert_eq!(masked["kind"], "INSTANCE_KIND_METAL");

    let read_only = server
        .expect_ok(
            &path("?fieldMask=currentState,instanceStatus,name"),
            Some(json!({"currentState": "INSTANCE_STATE_DELETED", "name": "again"})),
        )
        .await;
    assert_eq!(read_only["name"], "again");
    assert_eq!(read_only["currentState"], "INSTANCE_STATE_UNSPECIFIED");

    let cleared = server.expect_ok(&path("?fieldMask=osUpdatePolicyID"), Some(json!({}))).await;
    assert_eq!(cleared["updatePolicy"], Value::Null);
    assert_eq!(cleared["name"], "again");

    for empty in [json!(null), json!("")] {
        let linked =
            server.expect_ok(&path(""), Some(json!({"osUpdatePolicyID": resources.policy}))).await;
        assert_eq!(linked["updatePolicy"]["name"], "security");
        let unlinked = server.expect_ok(&path(""), Some(json!({"osUpdatePolicyID": empty}))).await;
        assert_eq!(unlinked["updatePolicy"], Value::Null);
    }
}

#[tokio::test]
async fn replacing_an_instance_clears_omitted_fields_but_not_its_identity() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("compute/instances/{}", resources.instance);
    let body = json!({"kind": "INSTANCE_KIND_METAL", "osUpdatePolicyID": resources.policy});
    let put = server.put(&path, body).await;
    assert_eq!((&put["kind"], &put["name"]), (&json!("INSTANCE_KIND_METAL"), &json!("")));
    assert_eq!(put["updatePolicy"]["name"], "security");

    let put = server.put(&path, json!({"name": "replaced"})).await;
    assert_eq!(
        (&put["kind"], &put["name"]),
        (&json!("INSTANCE_KIND_UNSPECIFIED"), &json!("replaced"))
    );
    assert_eq!(put["updatePolicy"], Value::Null);
    assert_eq!((&put["hostID"], &put["osID"]), (&json!(resources.host), &json!(resources.os)));
    let what = "PUT compute/instances/inst-00000000";
    let expected = json!({"message": "instance_resource not found"});
    server.expect_problem(what, Some(json!({})), 404, expected).await;
}

/// Two requests change two fields at the same time.
#[tokio::test]
async fn no_change_of_an_instance_is_lost() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("PATCH compute/instances/{}", resources.instance);
    for n in 0..5 {
        let kind = ["INSTANCE_KIND_METAL", "INSTANCE_KIND_UNSPECIFIED"][n % 2];
        let name = format!("name {n}");
        tokio::join!(
            server.expect_ok(&path, Some(json!({"name": name}))),
            server.expect_ok(&path, Some(json!({"kind": kind}))),
        );
        let instance = server.get(&format!("compute/instances/{}", resources.instance)).await;
        assert_eq!((&instance["name"], &instance["kind"]), (&json!(name), &json!(kind)));
    }
}
