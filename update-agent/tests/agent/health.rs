//! The programs of the machine's owner around a change of packages: health checks before and after it, and hooks after it.

use std::time::Duration;

use evenkeel_update_agent::model::{FailureKind, RunReport};

use crate::support::node::TestNode;

const NEW: &str = "app 2 installed\nlib 2 installed";
const STORY: &str = "downloading, downloaded, began, verify begun, finished";
const CHECK: &str = "/etc/evenkeel/health.d/10-app";
const HOOK: &str = "/etc/evenkeel/hooks/after-update.d/10-undrain";

/// A node with a health check that exits with these statuses before and after an installation.
fn node_with_check(before: i32, after: i32) -> TestNode {
    let node = TestNode::in_window();
    node.add_program(CHECK);
    node.packages().program_status.insert(CHECK.into(), before);
    node.packages().program_status_after_install.insert(CHECK.into(), after);
    node
}

fn last_report(node: &TestNode) -> RunReport {
    let server = node.server();
    server.only_attempt().last().unwrap().report.clone().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_check_that_fails_only_after_the_change_fails_the_update() {
    let node = node_with_check(0, 1);
    let started = tokio::time::Instant::now();
    node.run_once().await.unwrap_err();
    let failure = {
        let server = node.server();
        let last = server.only_attempt().last().unwrap();
        last.kind.failure().expect("a failure").clone()
    };
    assert_eq!(failure.kind, FailureKind::Verify);
    assert_eq!(
        failure.reason,
        "healthy before the update, but not after it: the health check 10-app ended with status 1"
    );
    assert_eq!(node.system.listing(), NEW, "packages cannot be reverted");
    assert!(started.elapsed() >= Duration::from_secs(30), "services get time to start");
}

#[tokio::test(start_paused = true)]
async fn a_check_that_failed_before_as_well_is_a_remark() {
    let node = node_with_check(1, 1);
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(
        last_report(&node).remarks,
        ["not healthy before the update either: the health check 10-app ended with status 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_healthy_machine_causes_no_remark() {
    for before in [0, 1] {
        let node = node_with_check(before, 0);
        node.run_once().await.unwrap();
        assert_eq!(node.server().story(), STORY);
        assert_eq!(last_report(&node).remarks, [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_may_succeed_a_little_later() {
    let node = node_with_check(0, 75);
    let recovery = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        node.packages().program_status.insert(CHECK.into(), 0);
    };
    let (end, ()) = tokio::join!(node.run_once(), recovery);
    end.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(last_report(&node).remarks, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn health_is_compared_after_the_reboot_and_with_the_settling_time() {
    let node = node_with_check(0, 1);
    node.packages().requires_reboot = true;
    node.run_once().await.unwrap();
    assert_eq!(node.machine().reboot_requests, 1, "the reboot may be what makes it healthy");
    node.boot();
    let started = tokio::time::Instant::now();
    node.run_once().await.unwrap_err();
    assert!(node.server().story().ends_with("verify begun, failed"));
    assert!(started.elapsed() >= Duration::from_mins(2));
}

#[tokio::test]
async fn hooks_run_after_an_update_and_their_failure_is_a_remark() {
    for (status, remarks) in [(0, vec![]), (1, vec!["the hook 10-undrain ended with status 1"])] {
        let node = TestNode::in_window();
        node.add_program(HOOK);
        node.packages().program_status.insert(HOOK.into(), status);
        node.packages().requires_reboot = true;
        node.run_once().await.unwrap();
        node.boot();
        node.run_once().await.unwrap();
        assert_eq!(last_report(&node).remarks, remarks);
        let log = node.system.take_log();
        let position = |what: &str| log.iter().position(|line| line == what).expect("a line");
        assert!(position("reboot") < position(HOOK), "{log:?}");
        let count = log.iter().filter(|line| *line == HOOK).count();
        assert_eq!(count, 1, "{log:?}");
    }
}

#[tokio::test]
async fn no_hook_runs_after_an_update_that_has_failed() {
    let node = TestNode::in_window();
    node.add_program(HOOK);
    node.packages().broken.insert("app".into());
    node.run_once().await.unwrap_err();
    assert!(!node.system.take_log().iter().any(|line| line == HOOK));
}
