//! Webhooks of a project, and the list of deliveries.

use evenkeel_inventory::Settings;
use serde_json::{Value, json};

use crate::test_server::{Caller, TestServer, notification_target, resource_id};

/// Creates a target and returns its path and its secret.
async fn create(server: &TestServer, name: &str) -> (String, String) {
    let created = server.post("notification-targets", notification_target(name)).await;
    let secret = created["secret"].as_str().expect("a secret").to_owned();
    (format!("notification-targets/{}", resource_id(&created)), secret)
}

#[tokio::test]
async fn the_secret_of_a_target_is_shown_once_and_can_be_rotated() {
    let server = TestServer::new().await;
    let (path, secret) = create(&server, "chat").await;
    assert!(secret.starts_with("whsec_") && secret.len() == 50, "{secret}");
    for shown in [server.get(&path).await, server.get("notification-targets").await] {
        assert!(!shown.to_string().contains("whsec_"), "{shown}");
    }
    assert_eq!(server.get(&path).await["secret"], Value::Null);
    let rotated = server.expect_ok(&format!("PUT {path}/rotate-secret"), None).await;
    let new = rotated["secret"].as_str().expect("a secret");
    assert_ne!(new, secret);
    // The change log has the changes of the target without its secrets.
    let changes = server.get("changes?kind=notification_target").await;
    assert_eq!(changes["changes"].as_array().expect("changes").len(), 2, "{changes}");
    assert!(!changes.to_string().contains("\"secret\""), "{changes}");
}

fn e_mail_target(addresses: &[&str]) -> Value {
    json!({"name": "ops", "emailAddresses": addresses, "events": ["run-failed"]})
}

#[tokio::test]
async fn e_mail_addresses_need_a_mail_server_and_have_no_secret() {
    let without = TestServer::new().await;
    let (post, body) = ("POST notification-targets", e_mail_target(&["ops@example.org"]));
    let refused = json!({"code": "FailedPrecondition"});
    let problem = without.expect_problem(post, Some(body.clone()), 400, refused).await;
    assert!(problem.to_string().contains("maintenance_manager.smtp.host"), "{problem}");

    let settings = Settings { has_mail_server: true, ..Settings::default() };
    let server = TestServer::with_settings(settings).await;
    let created = server.post("notification-targets", body).await;
    assert_eq!((&created["secret"], &created["url"]), (&Value::Null, &json!("")));
    assert_eq!(created["emailAddresses"], json!(["ops@example.org"]));
    let path = format!("notification-targets/{}", resource_id(&created));
    assert_eq!(server.get(&path).await["emailAddresses"], json!(["ops@example.org"]));
    let refused = json!({"code": "FailedPrecondition"});
    server.expect_problem(&format!("PUT {path}/rotate-secret"), None, 400, refused).await;
    server.expect_ok(&format!("PUT {path}/test"), None).await;
    let many = vec!["a@example.org"; 21];
    for addresses in [
        &["ops"][..],
        &["ops@example.org\r\nBcc: all@example.org"],
        &["Ops <ops@example.org>"],
        &["ops@example.org,all@example.org"],
        &many,
    ] {
        let field = json!({"field": "emailAddresses"});
        server.expect_problem(post, Some(e_mail_target(addresses)), 400, field).await;
    }
    let mut both = e_mail_target(&["ops@example.org"]);
    both["url"] = json!("https://hooks.example/");
    server.expect_problem(post, Some(both), 400, json!({"field": "emailAddresses"})).await;
    server.expect_problem(post, Some(e_mail_target(&[])), 400, json!({"field": "url"})).await;
}

#[tokio::test]
async fn a_url_without_encryption_needs_a_setting() {
    let (post, mut body) = ("POST notification-targets", notification_target("chat"));
    body["url"] = json!("http://hooks.example/evenkeel");
    let strict = TestServer::new().await;
    let refused = json!({"code": "FailedPrecondition"});
    let problem = strict.expect_problem(post, Some(body.clone()), 400, refused).await;
    let setting = "maintenance_manager.notifications.allow_http";
    assert!(problem.to_string().contains(setting), "{problem}");

    let settings = Settings { allow_http_webhooks: true, ..Settings::default() };
    let server = TestServer::with_settings(settings).await;
    let created = server.post("notification-targets", body).await;
    assert_eq!(created["url"], "http://hooks.example/evenkeel");
}

#[tokio::test]
async fn a_target_is_disabled_enabled_and_deleted() {
    let server = TestServer::new().await;
    let (path, _) = create(&server, "chat").await;
    assert_eq!(server.get(&path).await["events"], json!(["run-failed"]));
    for (verb, enabled) in [("disable", false), ("disable", false), ("enable", true)] {
        let changed = server.expect_ok(&format!("PUT {path}/{verb}"), None).await;
        assert_eq!(changed["enabled"], enabled, "{verb}");
    }
    server.expect_ok(&format!("DELETE {path}"), None).await;
    for what in ["GET", "DELETE"] {
        server.expect_problem(&format!("{what} {path}"), None, 404, json!({})).await;
    }
    for verb in ["enable", "disable", "rotate-secret", "test"] {
        server.expect_problem(&format!("PUT {path}/{verb}"), None, 404, json!({})).await;
    }
}

#[tokio::test]
async fn a_test_is_listed_until_the_target_is_deleted() {
    let server = TestServer::new().await;
    let (path, _) = create(&server, "chat").await;
    let queued = server.expect_ok(&format!("PUT {path}/test"), None).await;
    let list = server.get("notifications?state=pending").await;
    let delivery = &list["notifications"][0];
    assert_eq!(delivery["notificationId"], queued["notificationId"]);
    assert_eq!((&delivery["event"], &delivery["attempts"]), (&json!("test"), &json!(0)));
    for state in ["delivered", "dead"] {
        let list = server.get(&format!("notifications?state={state}")).await;
        assert_eq!(list["totalElements"], 0, "{state}");
    }
    // A pending delivery is not sent twice.
    let one = json!({"notificationId": queued["notificationId"]});
    let replayed = server.put(&format!("{path}/replay"), one).await;
    assert_eq!(replayed["replayed"], 0);
    server.expect_ok(&format!("DELETE {path}"), None).await;
    assert_eq!(server.get("notifications").await["totalElements"], 0);
}

#[tokio::test]
async fn bad_targets_and_replays_are_refused_with_their_field() {
    let server = TestServer::new().await;
    let (path, _) = create(&server, "chat").await;
    let post = "POST notification-targets";
    for (field, value) in [
        ("name", json!("")),
        ("name", json!("a\u{7}")),
        ("url", json!("hooks.example")),
        ("url", json!("https://user:password@hooks.example/")),
        ("events", json!([])),
        ("events", json!(["test"])),
        ("events", json!(["run-failed", "sunset"])),
    ] {
        let mut body = notification_target("other");
        body[field] = value;
        server.expect_problem(post, Some(body), 400, json!({"field": field})).await;
    }
    let taken = Some(notification_target("chat"));
    server.expect_problem(post, taken, 400, json!({"code": "FailedPrecondition"})).await;
    let replay = format!("PUT {path}/replay");
    let id = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
    let (noon, later) = ("2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z");
    for (field, body) in [
        ("since", json!({})),
        ("since", json!({"until": noon})),
        ("until", json!({"since": later, "until": noon})),
        ("notificationId", json!({"notificationId": "all"})),
        ("notificationId", json!({"notificationId": id, "since": noon})),
    ] {
        server.expect_problem(&replay, Some(body), 400, json!({"field": field})).await;
    }
    let unknown = Some(json!({"notificationId": id}));
    server.expect_problem(&replay, unknown, 404, json!({})).await;
    let state = "GET notifications?state=lost";
    server.expect_problem(state, None, 400, json!({"parameter": "state"})).await;
}

#[tokio::test]
async fn a_project_has_at_most_a_hundred_targets() {
    let server = TestServer::new().await;
    for n in 0..100 {
        create(&server, &format!("chat {n}")).await;
    }
    let more = Some(notification_target("one more"));
    let refused = json!({"code": "FailedPrecondition"});
    server.expect_problem("POST notification-targets", more, 400, refused).await;
}

#[tokio::test]
async fn readers_see_targets_and_change_none() {
    let server = TestServer::new().await;
    let (path, _) = create(&server, "chat").await;
    let reader = server.client_of(Caller::Reader);
    assert_eq!(reader.get(&path).await["name"], "chat");
    for verb in ["enable", "disable", "rotate-secret", "test"] {
        reader.expect_problem(&format!("PUT {path}/{verb}"), None, 403, json!({})).await;
    }
    reader.expect_problem(&format!("DELETE {path}"), None, 403, json!({})).await;
}
