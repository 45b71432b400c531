//! A node that delays a prepared change: the owner's settings take precedence over the server's start permit.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::grants::{GrantWindow, OfflineGrant};
use evenkeel_update_agent::model::{
    EventKind, FailureKind, PackageMode, PackageRules, PackageSpec, UpdateTarget,
};
use evenkeel_update_agent::status;

use crate::support::link::Presence;
use crate::support::lock::while_locked;
use crate::support::node::{TestNode, latest_target, latest_target_with, packages_spec};

const OLD: &str = "app 1 installed\nlib 1 installed";
const NEW: &str = "app 2 installed\nlib 2 installed";
const REASON: &str = "/etc/evenkeel/inhibit: a demonstration";

fn settings_folder(node: &TestNode) -> PathBuf {
    let folder = node.paths().inside("/etc/evenkeel");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Creates an inhibit file, as a person at the node does.
fn inhibit(node: &TestNode) -> PathBuf {
    let file = settings_folder(node).join("inhibit");
    fs::write(&file, "a demonstration\n").unwrap();
    file
}

fn write_limits(node: &TestNode, limits: &str) {
    let file = settings_folder(node).join("limits.toml");
    fs::write(&file, limits).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
}

fn last_waiting_reason(node: &TestNode) -> String {
    node.server().waiting_reasons.last().unwrap().clone()
}

#[tokio::test]
async fn a_node_with_an_inhibit_file_does_not_start_and_reports_why() {
    let node = TestNode::in_window();
    let file = inhibit(&node);
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), OLD);
    assert_eq!(node.server().start_requests, 0, "the agent does not request the start");
    assert_eq!(node.server().story(), "downloading, downloaded");
    let status = status::read_status(&node.paths().status()).unwrap();
    assert_eq!(status.waiting, REASON);
    agent.run_once().await.unwrap();
    assert_eq!(last_waiting_reason(&node), REASON);

    fs::remove_file(file).unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), NEW);
    agent.run_once().await.unwrap();
    assert_eq!(last_waiting_reason(&node), "");
    let status = status::read_status(&node.paths().status()).unwrap();
    assert_eq!(status.waiting, "");
}

#[tokio::test]
async fn an_agent_that_runs_once_reports_why_it_did_not_start() {
    let node = TestNode::in_window();
    inhibit(&node);
    node.run_once().await.unwrap();
    assert_eq!(last_waiting_reason(&node), REASON);
    assert_eq!(node.server().story(), "downloading, downloaded");
}

/// Waits until the server knows that another program holds a lock.
async fn wait_for_lock_report(node: &TestNode, lock: &str) {
    let reason = format!("another program is holding {lock}");
    while node.server().waiting_reasons.last() != Some(&reason) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let status = status::read_status(&node.paths().status()).unwrap();
    assert_eq!(status.waiting, reason);
}

#[tokio::test]
async fn a_wait_for_a_lock_of_another_program_is_reported_while_it_lasts() {
    for (file, lock) in [
        ("var/lib/dpkg/lock-frontend", "dpkg's lock"),
        ("var/lib/apt/lists/lock", "the lock of the package lists"),
    ] {
        let mut node = TestNode::in_window();
        node.lock_timeout = Duration::from_mins(5);
        let root = node.paths().root().to_owned();
        fs::create_dir_all(root.join("var/lib/apt/lists")).unwrap();
        Box::pin(while_locked(&root, file, async {
            let mut agent = node.agent();
            tokio::select! {
                end = agent.run_once() => panic!("it did not wait: {end:?}"),
                () = wait_for_lock_report(&node, lock) => {}
            }
            assert_eq!(node.server().start_requests, 0);
        }))
        .await;
        let mut agent = node.agent();
        agent.run_once().await.unwrap();
        assert_eq!(node.system.listing(), NEW);
        assert_eq!(last_waiting_reason(&node), "");
    }
}

#[tokio::test]
async fn an_update_goes_on_while_the_server_does_not_answer_the_report_of_a_wait() {
    let mut node = TestNode::in_window();
    node.lock_timeout = Duration::from_mins(5);
    node.server().ignores_waiting_nodes = true;
    let root = node.paths().root().to_owned();
    let mut agent = node.agent();
    let mut run = Box::pin(agent.run_once());
    Box::pin(while_locked(&root, "var/lib/dpkg/lock-frontend", async {
        tokio::select! {
            end = &mut run => panic!("it did not wait: {end:?}"),
            () = wait_for_lock_report(&node, "dpkg's lock") => {}
        }
    }))
    .await;
    let end = tokio::time::timeout(Duration::from_mins(1), run).await;
    end.expect("it does not wait for the server").unwrap();
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn an_agent_that_runs_once_reports_a_lock_that_it_waited_for_in_vain() {
    let node = TestNode::in_window();
    let root = node.paths().root().to_owned();
    Box::pin(while_locked(&root, "var/lib/dpkg/lock-frontend", async {
        node.run_once().await.unwrap();
        assert_eq!(
            last_waiting_reason(&node),
            "another program has been holding dpkg's lock for 1 s"
        );
    }))
    .await;
}

#[tokio::test]
async fn outside_its_window_a_node_reports_no_waiting_reason() {
    let node = TestNode::in_window();
    inhibit(&node);
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    node.server().window_open = false;
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(last_waiting_reason(&node), "");
}

#[tokio::test]
async fn an_offline_node_checks_its_own_gate_and_uses_its_grant_later() {
    let node = TestNode::new();
    let now = node.clock.now();
    {
        let mut server = node.server();
        server.target = Some(latest_target());
        server.server_time = Some(now);
        server.grant = Some(OfflineGrant {
            target_digest: "latest".into(),
            windows: vec![GrantWindow { start: now, end: now + TimeDelta::hours(2) }],
            expires: now + TimeDelta::hours(2),
        });
    }
    let file = inhibit(&node);
    node.run_once().await.unwrap();
    node.server().presence = Presence::Unreachable;
    node.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), OLD);
    fs::remove_file(file).unwrap();
    node.clock.advance(TimeDelta::hours(1));
    node.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn an_update_that_the_owner_forbids_is_refused_before_planning() {
    let node = TestNode::new();
    write_limits(&node, "new_sources = false\n");
    node.server().target = Some(UpdateTarget {
        digest: "latest".into(),
        spec: packages_spec(&PackageSpec {
            sources: vec!["Types: deb\nURIs: http://x\nSuites: stable\nComponents: main".into()],
            ..PackageSpec::new(PackageMode::Latest)
        }),
    });
    node.run_once().await.unwrap_err();
    let server = node.server();
    let [event] = server.only_attempt() else { panic!("one event") };
    let EventKind::Failed { failure, .. } = &event.kind else { panic!("a failure") };
    assert_eq!(failure.kind, FailureKind::Limits);
    let facts = server.facts.clone().unwrap();
    assert_eq!(facts.limits, "no new sources");
}

#[tokio::test]
async fn a_planned_removal_waits_while_the_owner_forbids_it() {
    let node = TestNode::new();
    node.packages().offered.remove("lib");
    node.packages().removals.push("lib".into());
    let rules = PackageRules { allow_removals: true, ..PackageRules::default() };
    node.server().target = Some(latest_target_with(rules));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    write_limits(&node, "removals = false\n");
    node.server().window_open = true;
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let reason = last_waiting_reason(&node);
    assert!(reason.ends_with("lib would be removed"), "{reason}");
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.server().start_requests, 0);
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn invalid_limits_are_reported_and_stop_everything() {
    let node = TestNode::in_window();
    write_limits(&node, "hour = []\n");
    node.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), OLD);
    let warnings = node.server().facts.clone().unwrap().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("hour")), "{warnings:?}");
}

#[tokio::test]
async fn a_corrupt_journal_is_reported_until_a_person_removes_it() {
    let node = TestNode::new();
    fs::write(node.paths().journal(), "noise").unwrap();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let warnings = |node: &TestNode| node.server().facts.clone().unwrap().warnings;
    let reported = warnings(&node);
    assert!(reported[0].contains("journal.json.corrupt-0"), "{reported:?}");
    fs::remove_file(node.paths().state().join("journal.json.corrupt-0")).unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(warnings(&node), [""; 0]);
}

#[tokio::test]
async fn a_clock_jump_is_reported_in_text_that_does_not_change_with_every_poll() {
    let node = TestNode::new();
    node.server().server_time = Some(node.clock.now());
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().facts.clone().unwrap().warnings, [""; 0]);
    node.clock.advance(TimeDelta::hours(-30));
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let reported = node.server().facts.clone().unwrap().warnings;
    assert!(reported[0].contains("more than a day behind the server's"), "{reported:?}");
    node.clock.advance(TimeDelta::minutes(7));
    agent.run_once().await.unwrap();
    assert_eq!(node.server().facts.clone().unwrap().warnings, reported);
}
