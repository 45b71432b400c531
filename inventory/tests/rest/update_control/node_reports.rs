//! What a node reports, as its instance and its decision show it.

use evenkeel_domain::condition::{Condition, ConditionKind};
use evenkeel_domain::decide::AgentProtocol;
use evenkeel_domain::eim::{LastSample, SampleKind};
use evenkeel_domain::instance::FactsSummary;
use evenkeel_kit::Clock;
use evenkeel_store::contents;
use serde_json::{Value, json};

use super::reason_and_may_start;
use crate::lists::percent_encode;
use crate::nulls::open_run;
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
async fn an_instance_shows_the_facts_of_its_node_and_is_found_by_them() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("GET compute/instances/{}", resources.instance);
    let count = async |list: &str, filter: &str| {
        let path = format!("{list}?filter={}", percent_encode(filter));
        server.get(&path).await["totalElements"].clone()
    };
    let unknown = server.expect_ok(&path, None).await;
    for field in ["rebootRequired", "packageListsRefreshedAt", "securityUpdates"] {
        assert_eq!(unknown[field], Value::Null, "{field}");
        assert_eq!(count("compute/instances", &format!("{field} = null")).await, 1, "{field}");
    }
    let now = server.clock.now();
    server
        .edit_node(&resources.host, |node| {
            node.facts_summary = FactsSummary {
                kernel_release: Some("6.1.0-40-amd64".to_owned()),
                reboot_required: Some(true),
                package_lists_refreshed_at: Some(now),
                package_lists_error: Some("no route to host".to_owned()),
                security_updates: Some(3),
                held_back_updates: Some(1),
                stale_services: Some(1),
                ..FactsSummary::default()
            };
            node.facts = json!({
                "rebootReasons": ["libc6 requires it"],
                "heldBack": [{
                    "name": "openssl", "architecture": "amd64", "installedVersion": "3.0.16",
                    "availableVersion": "3.0.17", "cause": "pinned", "detail": "",
                    "suites": ["bookworm-security"], "origins": ["Debian-Security"],
                }, {"name": "tzdata", "cause": "hold"}],
                "staleServices": [{"name": "ssh.service", "files": ["/usr/sbin/sshd"]}],
            });
        })
        .await;

    let shown = server.expect_ok(&path, None).await;

    assert_eq!(shown["kernelRelease"], "6.1.0-40-amd64");
    assert_eq!(shown["rebootRequired"], true);
    assert_eq!(shown["rebootReasons"], json!(["libc6 requires it"]));
    assert_eq!(shown["packageListsRefreshedAt"], "2026-03-01T12:00:00Z");
    assert_eq!(shown["packageListsError"], "no route to host");
    assert_eq!(shown["securityUpdates"], 3);
    assert_eq!(shown["heldBackUpdates"], 1);
    let held_back = &shown["heldBackPackages"];
    assert_eq!(
        (&held_back[0]["cause"], &held_back[0]["security"]),
        (&json!("pinned"), &json!(true))
    );
    assert_eq!(held_back[1]["security"], Value::Null, "its suites are unknown");
    assert_eq!(shown["staleUnits"], json!([{"name": "ssh.service", "files": ["/usr/sbin/sshd"]}]));
    let host = server.get(&format!("compute/hosts/{}", resources.host)).await;
    assert_eq!(host["instance"]["securityUpdates"], 3);
    for (filter, matches) in [
        ("rebootRequired = true", 1),
        ("rebootRequired = null", 0),
        ("securityUpdates > 0", 1),
        ("heldBackUpdates > 1", 0),
        ("packageListsRefreshedAt < \"2026-03-02T00:00:00Z\"", 1),
        ("packageListsRefreshedAt < \"2026-03-01T00:00:00Z\"", 0),
        ("packageListsError : \"route\"", 1),
        ("kernelRelease = \"6.1.0\"", 1),
    ] {
        assert_eq!(count("compute/instances", filter).await, matches, "{filter}");
    }
    assert_eq!(count("compute/hosts", "instance.securityUpdates > 0").await, 1);
}

#[tokio::test]
async fn an_instance_lists_at_most_a_thousand_held_back_packages_and_counts_all() {
    let (server, resources) = TestServer::with_resources().await;
    let package = |number: u32| json!({"name": format!("p{number:04}"), "cause": "hold"});
    for (all, listed) in [(1_000, 1_000), (1_001, 1_000)] {
        server
            .edit_node(&resources.host, |node| {
                node.facts_summary.held_back_updates = Some(all);
                node.facts = json!({"heldBack": (0..all).map(package).collect::<Vec<_>>()});
            })
            .await;
        let shown = server.get(&format!("compute/instances/{}", resources.instance)).await;
        assert_eq!(shown["heldBackUpdates"], all);
        let packages = shown["heldBackPackages"].as_array().expect("a list");
        assert_eq!(packages.len(), listed, "of {all}");
        assert_eq!(packages[listed - 1]["name"], "p0999");
    }
}

#[tokio::test]
async fn an_instance_shows_the_packages_that_others_changed() {
    let (server, resources) = TestServer::with_resources().await;
    let path = format!("compute/instances/{}", resources.instance);
    assert_eq!(server.get(&path).await["foreignChange"], Value::Null);
    let change = json!({
        "changedAt": "2026-03-01T09:30:00Z", "count": 30, "packages": ["curl:amd64 1.0 -> 1.1"],
    });
    let facts = json!({"foreignChange": change});
    server.edit_node(&resources.host, |node| node.facts.clone_from(&facts)).await;
    assert_eq!(server.get(&path).await["foreignChange"], change);
    assert_eq!(server.get("compute/instances").await["instances"][0]["foreignChange"], Value::Null);
}

#[tokio::test]
async fn updates_have_a_security_flag_and_a_mark_if_they_are_too_young() {
    let (server, resources) = TestServer::with_resources().await;
    let body = json!({
        "name": "aged", "updatePolicy": "UPDATE_POLICY_LATEST", "packageRules": {"minAgeDays": 3},
    });
    let created = server.post("os-update-policies", body).await;
    server.assign(&resources.instance, created["resourceId"].as_str().expect("an id")).await;
    server.mark_node_connected(&resources).await;
    server
        .edit_node(&resources.host, |node| {
            node.os_update_available = json!([
                {"name": "curl", "architecture": "amd64", "available_version": "8.5", "suites": ["bookworm"]},
                {"name": "openssl", "architecture": "amd64", "available_version": "3.0.17",
                 "suites": ["bookworm-security"], "origins": ["Debian-Security"]},
                {"name": "vim", "architecture": "amd64", "available_version": "9"},
            ])
            .to_string();
        })
        .await;
    let decision = server.get_decision(&resources).await;
    let updates = decision["availableUpdates"].as_array().expect("a list");
    let flags = |name: &str| updates.iter().map(|one| one[name].as_bool()).collect::<Vec<_>>();
    assert_eq!(flags("security"), [Some(false), Some(true), None]);
    assert_eq!(flags("tooYoung"), [Some(true); 3], "no node has reported them");
    assert_eq!(updates[1]["origins"], json!(["Debian-Security"]));
}

#[tokio::test]
async fn a_decision_reports_that_an_enrolled_node_has_not_polled_yet() {
    let (server, resources) = TestServer::with_resources().await;
    server.edit_node(&resources.host, |node| node.provisioned = true).await;
    let order = format!("PUT compute/instances/{}/order", resources.instance);
    let now = json!({"kind": "now", "seconds": 600, "reason": "a hole"});
    server.expect_ok(&order, Some(now)).await;
    let has_note = |decision: &Value| {
        let text = decision["reason"]["text"].as_str().expect("a reason");
        text.ends_with("; the node has not polled yet")
    };
    let decision = server.get_decision(&resources).await;
    assert_eq!(reason_and_may_start(&decision), ("window_open", true));
    assert!(has_note(&decision), "{}", decision["reason"]);
    server.mark_node_connected(&resources).await;
    let decision = server.get_decision(&resources).await;
    assert_eq!(reason_and_may_start(&decision), ("window_open", true));
    assert!(!has_note(&decision), "{}", decision["reason"]);
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

#[tokio::test]
async fn a_node_that_delays_its_reboot_reports_the_reason() {
    let (server, resources) = TestServer::with_resources().await;
    server.mark_node_connected(&resources).await;
    open_run(&server, &resources.instance).await;
    let why = "the reboot is delayed: backup blocks a shutdown: writing";
    server.edit_node(&resources.host, |node| node.waiting = why.to_owned()).await;
    let decision = server.get_decision(&resources).await;
    assert_eq!(decision["waiting"], why);
    let reason = decision["reason"]["text"].as_str().expect("a reason");
    assert!(reason.ends_with(&format!("; the node waits: {why}")), "{reason}");
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
