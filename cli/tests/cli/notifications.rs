//! Notification targets, and deliveries to them.

use serde_json::{Value, json};

use crate::TestCli;

const ID: &str = "notificationtarget-00000001";
const DELIVERY: &str = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";

fn target(secret: Value) -> Value {
    json!({
        "resourceId": ID, "name": "chat", "url": "https://hooks.example/a",
        "events": ["run-failed", "node-silent"], "enabled": true, "secret": secret,
    })
}

fn targets() -> Value {
    json!({"notificationTargets": [target(Value::Null)], "totalElements": 1, "hasNext": false})
}

#[tokio::test]
async fn the_secret_of_a_target_is_printed_once() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("POST notification-targets", target(json!("whsec_AAAA")))
        .answer("GET notification-targets", targets())
        .answer(
            &format!("PUT notification-targets/{ID}/rotate-secret"),
            target(json!("whsec_BBBB")),
        );
    let create = "evenkeel notification-target create chat --url https://hooks.example/a \
                  --event run-failed,node-silent";
    let created = cli.run(create).await;
    assert!(created.contains("whsec_AAAA"), "{created}");
    let body =
        r#"{"name":"chat","url":"https://hooks.example/a","events":["run-failed","node-silent"]}"#;
    assert_eq!(cli.fake_server.requests(), format!("POST notification-targets {body}"));
    let rotate = "evenkeel notification-target rotate-secret chat --quiet";
    assert_eq!(cli.run(rotate).await, "whsec_BBBB\n");
    let list = cli.run("evenkeel notification-target list").await;
    assert!(list.contains("enabled") && list.contains("run-failed, node-silent"), "{list}");
    assert!(!list.contains("whsec_"), "{list}");
}

#[tokio::test]
async fn a_target_of_e_mail_addresses_has_no_secret() {
    let cli = TestCli::new().await;
    let created = json!({
        "resourceId": ID, "name": "ops", "url": "", "enabled": true, "events": ["run-failed"],
        "emailAddresses": ["ops@example.org", "boss@example.org"],
    });
    cli.fake_server.answer("POST notification-targets", created);
    let create = "evenkeel notification-target create ops --email ops@example.org,boss@example.org \
                  --event run-failed";
    let printed = cli.run(create).await;
    assert!(printed.contains("ops@example.org, boss@example.org"), "{printed}");
    assert!(!printed.contains("secret"), "{printed}");
    let body = r#"{"name":"ops","emailAddresses":["ops@example.org","boss@example.org"],"events":["run-failed"]}"#;
    assert_eq!(cli.fake_server.requests(), format!("POST notification-targets {body}"));
    assert_eq!(cli.run(&format!("{create} --quiet")).await, format!("{ID}\n"));
}

#[tokio::test]
async fn a_target_is_disabled_enabled_tested_and_deleted() {
    let cli = TestCli::new().await;
    let path = format!("notification-targets/{ID}");
    cli.fake_server
        .answer("GET notification-targets", targets())
        .answer(&format!("PUT {path}/disable"), target(Value::Null))
        .answer(&format!("PUT {path}/enable"), target(Value::Null))
        .answer(&format!("PUT {path}/test"), json!({"notificationId": DELIVERY}))
        .answer(&format!("DELETE {path}"), json!({}));
    for (line, printed) in [
        ("notification-target disable chat", format!("notification target {ID} disabled\n")),
        ("notification-target enable chat", format!("notification target {ID} enabled\n")),
        ("notification test chat", format!("test {DELIVERY} queued\n")),
        ("notification-target delete chat", format!("notification target {ID} deleted\n")),
    ] {
        assert_eq!(cli.run(&format!("evenkeel {line}")).await, printed, "{line}");
    }
}

#[tokio::test]
async fn the_deletion_of_a_target_is_confirmed_on_a_terminal() {
    let mut cli = TestCli::new().await;
    cli.interactive = true;
    cli.fake_server.answer(&format!("DELETE notification-targets/{ID}"), json!({}));
    let delete = format!("evenkeel notification-target delete {ID}");
    let refused = cli.answer(&delete, "\n").await.expect_err("the default is no");
    assert_eq!(refused.to_string(), "nothing was done");
    assert_eq!(cli.fake_server.requests(), "");
    let deleted = format!("notification target {ID} deleted\n");
    let (text, _) = cli.answer(&delete, "y\n").await.expect("deleted");
    let question = format!("delete the notification target {ID} with its deliveries? [y/N] ");
    assert_eq!(text, format!("{question}{deleted}"));
    assert_eq!(cli.run(&format!("{delete} --yes")).await, deleted);
}

#[tokio::test]
async fn deliveries_are_listed_and_replayed() {
    let cli = TestCli::new().await;
    let dead = json!({
        "notificationId": DELIVERY, "targetId": ID, "event": "run-failed", "eventAt": "2026-03-01T12:00:00Z",
        "state": "dead", "attempts": 9, "attemptedAt": "2026-03-01T12:00:00Z", "nextAttemptAt": null,
        "lastError": "the target answered with 500 Internal Server Error",
    });
    let list =
        json!({"notifications": [dead], "totalElements": 1, "hasNext": false, "nextPageToken": ""});
    cli.fake_server
        .answer("GET notification-targets", targets())
        .answer("GET notifications?state=dead", list)
        .answer(&format!("PUT notification-targets/{ID}/replay"), json!({"replayed": 1}));
    let printed = cli.run("evenkeel notification list --state dead").await;
    assert!(!printed.contains(ID), "the name stands for the ID: {printed}");
    for part in [DELIVERY, "chat", "run-failed", "dead", "500 Internal Server Error"] {
        assert!(printed.contains(part), "{printed}");
    }
    let one = format!("evenkeel notification replay {ID} --id {DELIVERY}");
    assert_eq!(cli.run(&one).await, "deliveries: 1 queued again\n");
    let range = "--since 2026-03-01T12:00:00Z --until 2026-03-01T13:00:00Z";
    cli.run(&format!("evenkeel notification replay {ID} {range}")).await;
    let requests = cli.fake_server.requests();
    let bodies: Vec<_> = requests.lines().filter(|line| line.starts_with("PUT")).collect();
    let put = format!("PUT notification-targets/{ID}/replay");
    let expected = [
        format!(r#"{put} {{"notificationId":"{DELIVERY}"}}"#),
        format!(r#"{put} {{"since":"2026-03-01T12:00:00Z","until":"2026-03-01T13:00:00Z"}}"#),
    ];
    assert_eq!(bodies, expected);
}

#[tokio::test]
async fn a_long_error_is_shortened_on_a_terminal() {
    let mut cli = TestCli::new().await;
    let error = format!("cannot connect to the target: {}", "x".repeat(200));
    let dead = json!({
        "notificationId": DELIVERY, "targetId": ID, "event": "assignment-stopped",
        "eventAt": "2026-03-01T12:00:00Z", "state": "dead", "attempts": 9,
        "attemptedAt": "2026-03-01T12:00:00Z", "nextAttemptAt": null, "lastError": error,
    });
    let list =
        json!({"notifications": [dead], "totalElements": 1, "hasNext": false, "nextPageToken": ""});
    cli.fake_server.answer("GET notification-targets", targets()).answer("GET notifications", list);
    for width in [100, 120, 170] {
        cli.width = Some(width);
        let printed = cli.run("evenkeel notification list").await;
        for part in ["TARGET", "STATE", "ERROR", "cannot connect to the target: xxx", "x…"] {
            assert!(printed.contains(part), "{width}: {printed}");
        }
        let fits = |line: &str| line.chars().count() <= usize::from(width);
        assert!(printed.lines().all(fits), "{width}: {printed}");
        assert_eq!(printed.contains(DELIVERY), width > 110, "{width}: {printed}");
        for whole in ["-o wide", "-o json"] {
            let printed = cli.run(&format!("evenkeel notification list {whole}")).await;
            assert!(printed.contains(&error), "{printed}");
        }
    }
}
