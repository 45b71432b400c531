//! What a node reports, as its instance and its decision show it.

use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::eim::{LastSample, SampleKind};
use evenkeel_kit::Clock;
use evenkeel_store::contents;
use serde_json::{Value, json};

use super::reason_and_may_start;
use crate::test_server::TestServer;

#[tokio::test]
async fn an_instance_shows_its_conditions_and_its_installed_packages() {
    let (server, resources) = TestServer::with_resources().await;
    let now = server.clock.now();
    let installed = r#"[{"name":"curl","version":"8.5","architecture":"amd64"}]"#;
    let digest = [7; 32];
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    contents::insert_if_missing(&tx, &digest, installed, now).await.expect("stored");
    tx.commit().await.expect("committed");
    server
        .edit_node(&resources.host, |node| {
            node.packages_digest = Some(digest);
            node.conditions = vec![Condition {
                kind: ConditionKind::NotNewer.into(),
                text: "the image is not newer".to_owned(),
                since: now,
            }];
        })
        .await;
    let path = format!("GET compute/instances/{}", resources.instance);
    let fetched = server.expect_ok(&path, None).await;
    assert_eq!(fetched["runtimePackages"], installed);
    let condition = json!({
        "type": "not_newer", "message": "the image is not newer", "since": "2026-03-01T12:00:00Z",
    });
    assert_eq!(fetched["conditions"], json!([condition]));
    let listed = server.get("compute/instances").await["instances"][0].clone();
    assert_eq!(listed["conditions"], json!([condition]));
    assert_eq!(listed["runtimePackages"], "");
}

#[tokio::test]
async fn a_node_that_holds_back_an_update_reports_the_reason() {
    let (server, resources) = TestServer::with_resources().await;
    server.mark_node_connected(&resources).await;
    server
        .edit_node(&resources.host, |node| {
            node.waiting = "alice is logged in".to_owned();
            node.facts = json!({"limits": "hours 22:00-04:00"});
        })
        .await;
    let decision = server.get_decision(&resources).await;
    assert_eq!(decision["waiting"], "alice is logged in");
    assert_eq!(decision["ownerLimits"], "hours 22:00-04:00");
    let text = |decision: &Value| decision["reason"]["text"].as_str().map(str::to_owned);
    let reason = text(&decision).expect("a reason");
    assert!(!reason.contains("the node waits"), "it could not start anyway: {reason}");

    let order = format!("PUT compute/instances/{}/order", resources.instance);
    let now = json!({"kind": "now", "seconds": 600, "reason": "a hole"});
    server.expect_ok(&order, Some(now)).await;
    let decision = server.get_decision(&resources).await;
    assert_eq!(reason_and_may_start(&decision), ("window_open", true));
    let reason = text(&decision).expect("a reason");
    assert!(reason.ends_with("; the node waits: alice is logged in"), "{reason}");
}

/// EIM's agents do not support rules.
#[tokio::test]
async fn updates_excluded_by_rules_are_marked_only_for_nodes_that_support_rules() {
    let (server, resources) = TestServer::with_resources().await;
    let body = json!({
        "name": "careful", "updatePolicy": "UPDATE_POLICY_LATEST", "packageRules": {"exclude": ["ba*"]},
    });
    let created = server.post("os-update-policies", body).await;
    let id = created["resourceId"].as_str().expect("an id");
    server.assign(&resources.instance, id).await;
    let available =
        r#"[{"name":"bash","architecture":"amd64"},{"name":"curl","architecture":"amd64"}]"#;
    let left_out = async || {
        let decision = server.get_decision(&resources).await;
        let updates = decision["availableUpdates"].as_array().expect("a list");
        updates.iter().map(|item| item["excluded"] == true).collect::<Vec<_>>()
    };
    server.mark_node_connected(&resources).await;
    server
        .edit_node(&resources.host, |node| {
            node.os_update_available = available.to_owned();
        })
        .await;
    assert_eq!(left_out().await, [true, false]);
    server.edit_node(&resources.host, |node| node.protocol = AgentProtocol::Eim).await;
    assert_eq!(left_out().await, [false, false]);
}

#[tokio::test]
async fn a_decision_reports_that_an_agent_of_eim_will_not_start() {
    let (server, resources) = TestServer::with_resources().await;
    server.mark_node_connected(&resources).await;
    let order = format!("PUT compute/instances/{}/order", resources.instance);
    let now = json!({"kind": "now", "seconds": 599, "reason": "a hole"});
    server.expect_ok(&order, Some(now)).await;
    let reason = async || server.get_decision(&resources).await["reason"]["text"].to_string();
    assert!(!reason().await.contains("does not start"), "our own agent starts");
    server.edit_node(&resources.host, |node| node.protocol = AgentProtocol::Eim).await;
    let late = "EIM's agent does not start: less than 10 minutes of the window are left";
    assert!(reason().await.contains(late), "{}", reason().await);

    let longer = json!({"kind": "now", "seconds": 3_600, "reason": "a hole"});
    server.expect_ok(&order, Some(longer)).await;
    assert!(!reason().await.contains("does not start"), "{}", reason().await);
    server
        .edit_node(&resources.host, |node| {
            node.last_sample = Some(LastSample {
                kind: SampleKind::UpToDate,
                detail_digest: String::new(),
                image: String::new(),
                unconfirmed_failure: None,
                skips_updates: true,
            });
        })
        .await;
    let skips = "its agent reports that it skips the update";
    assert!(reason().await.contains(skips), "{}", reason().await);
}
