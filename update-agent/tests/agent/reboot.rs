//! What follows a change: a reboot if the change requires one, and the comparison with findings from before the change.

use std::fs;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::model::{
    EventKind, Failure, FailureKind, PackageRules, RebootRule, RunReport,
};
use evenkeel_update_agent::reboot::RebootObjection;

use crate::support::node::{TestNode, latest_target_with, package_report};

const NEW: &str = "app 2 installed\nlib 2 installed";
const STORY: &str = "downloading, downloaded, began, verify begun, finished";
const BEFORE_REBOOT: &str = "downloading, downloaded, began, reboot begun";
const AFTER_REBOOT: &str = "downloading, downloaded, began, reboot begun, verify begun, finished";

/// In the words of dpkg.
const OLD_FINDING: &str = "The following packages are missing the list control file in the\n\
    database, they need to be reinstalled:\n old-mess             left by a person\n\n";
const NEW_FINDING: &str = "The following packages are missing the md5sums control file in the\n\
    database, they need to be reinstalled:\n fresh-mess           left by the update\n\n";

/// A node on which every change requires a reboot.
fn node_that_must_reboot() -> TestNode {
    let node = TestNode::in_window();
    node.packages().requires_reboot = true;
    node
}

/// The report of the only attempt.
fn run_report(node: &TestNode) -> RunReport {
    let server = node.server();
    let last = server.only_attempt().last().unwrap();
    last.report.clone().expect("a report")
}

fn failure(node: &TestNode) -> Failure {
    let server = node.server();
    let last = server.only_attempt().last().unwrap();
    last.kind.failure().expect("a failure").clone()
}

/// The duration of a phase, in milliseconds.
fn phase_millis(report: &RunReport, phase: &str) -> u64 {
    let mut spans = report.phases.iter();
    let span = spans.find(|span| span.phase == phase);
    span.unwrap_or_else(|| panic!("no {phase}: {report:?}")).millis
}

#[tokio::test]
async fn a_change_that_requires_a_reboot_is_verified_in_the_next_boot() {
    let node = node_that_must_reboot();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), BEFORE_REBOOT);
    assert_eq!(node.machine().reboot_requests, 1);
    node.clock.advance(TimeDelta::minutes(2));
    node.boot();

    node.run_once().await.unwrap();

    assert_eq!(node.server().story(), AFTER_REBOOT);
    assert_eq!(node.system.listing(), NEW);
    assert_eq!(node.machine().reboot_requests, 1);
    let boots: Vec<_> = {
        let server = node.server();
        let events = server.only_attempt().iter();
        events.map(|event| event.boot_id.clone()).collect()
    };
    assert_eq!(boots[3..], ["boot-1", "boot-2", "boot-2"]);
    let report = run_report(&node);
    assert!(!report.reboot_required);
    assert_eq!(phase_millis(&report, "reboot"), 120_000);
    assert_eq!(report.remarks, [""; 0]);
}

#[tokio::test]
async fn the_server_learns_of_the_reboot_before_the_node_goes_down() {
    let node = node_that_must_reboot();
    node.run_once().await.unwrap();
    assert_eq!(node.machine().last_event, Some("reboot begun"));
}

#[tokio::test]
async fn a_reboot_that_never_happens_is_requested_three_times_and_then_fails() {
    let node = node_that_must_reboot();
    node.machine().refusal = Some("a backup is running".into());
    for (minutes, requests) in [(0, 1), (0, 1), (4, 1), (1, 2), (5, 3), (4, 3)] {
        node.clock.advance(TimeDelta::minutes(minutes));
        node.run_once().await.unwrap();
        assert_eq!(node.machine().reboot_requests, requests);
        assert_eq!(node.server().story(), BEFORE_REBOOT);
    }
    node.clock.advance(TimeDelta::minutes(1));
    node.run_once().await.unwrap_err();

    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Reboot);
    assert!(
        failure.reason.contains("did not reboot although the agent requested it 3 times"),
        "{failure}"
    );
    let report = run_report(&node);
    assert!(report.reboot_required);
    assert_eq!(report.remarks, ["reboot: a backup is running"]);
    assert_eq!(node.system.listing(), NEW);
    assert_eq!(node.state_files(), [""; 0]);
    assert_eq!(node.machine().reboot_requests, 3);
}

#[tokio::test]
async fn an_unplanned_boot_counts_as_the_reboot() {
    let node = node_that_must_reboot();
    node.machine().refusal = Some("a backup is running".into());
    node.run_once().await.unwrap();
    node.boot();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), AFTER_REBOOT);
}

#[tokio::test]
async fn a_policy_without_reboots_adds_a_remark() {
    let node = node_that_must_reboot();
    node.server().target = Some(latest_target_with(PackageRules {
        reboot: RebootRule::Never,
        ..PackageRules::default()
    }));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().reboot_requests, 0);
    let report = run_report(&node);
    assert!(report.reboot_required);
    assert_eq!(
        report.remarks,
        [
            "the change needs a reboot, but the node does not reboot: the policy does not allow the agent to reboot the node"
        ]
    );
}

#[tokio::test]
async fn the_owner_of_the_machine_can_forbid_reboots() {
    let node = node_that_must_reboot();
    let objection = RebootObjection::lasting("the machine's owner does not allow reboots");
    node.machine().owner_objection = Some(objection);
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().reboot_requests, 0);
    let report = run_report(&node);
    assert!(report.reboot_required);
    assert!(report.remarks[0].ends_with("the machine's owner does not allow reboots"));
}

#[tokio::test]
async fn outside_the_window_the_node_does_not_reboot() {
    let node = node_that_must_reboot();
    node.server().start_deadline = Some(node.clock.now() + TimeDelta::hours(1));
    node.packages().install_duration = Some((node.clock.clone(), TimeDelta::hours(1)));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().reboot_requests, 0);
    let report = run_report(&node);
    assert_eq!(phase_millis(&report, "apply"), 3_600_000);
    assert!(report.remarks[0].ends_with("the window has closed"));
}

#[tokio::test]
async fn a_clock_jump_during_the_reboot_does_not_change_the_result() {
    let year = 365 * 24 * 3600 * 1000;
    for (jump, expected) in [(-20, 0), (20, 20 * year)] {
        let node = node_that_must_reboot();
        node.run_once().await.unwrap();
        node.clock.advance(TimeDelta::days(jump * 365));
        node.boot();
        node.run_once().await.unwrap();
        assert_eq!(node.server().story(), AFTER_REBOOT);
        assert_eq!(phase_millis(&run_report(&node), "reboot"), expected);
    }
}

#[tokio::test]
async fn a_clock_jump_during_the_change_does_not_undo_it() {
    for hours in [-1_000_000, 1_000_000] {
        let node = TestNode::in_window();
        node.server().start_deadline = Some(node.clock.now() + TimeDelta::hours(1));
        node.packages().install_duration = Some((node.clock.clone(), TimeDelta::hours(hours)));
        node.run_once().await.unwrap();
        assert_eq!(node.server().story(), STORY);
        assert_eq!(node.system.listing(), NEW);
    }
}

#[tokio::test]
async fn a_clock_that_was_turned_back_does_not_delay_a_reboot() {
    let node = node_that_must_reboot();
    node.machine().refusal = Some("a backup is running".into());
    node.run_once().await.unwrap();
    node.clock.advance(TimeDelta::days(-10_000));
    node.run_once().await.unwrap();
    assert_eq!(node.machine().reboot_requests, 2);
}

#[tokio::test]
async fn an_audit_finding_from_before_the_change_does_not_fail_it() {
    let node = TestNode::in_window();
    node.packages().audit = OLD_FINDING.into();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn an_audit_finding_of_the_change_fails_it() {
    let node = TestNode::in_window();
    node.packages().audit = OLD_FINDING.into();
    node.packages().audit_after_install = NEW_FINDING.into();
    node.run_once().await.unwrap_err();
    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Verify);
    assert!(format!("{failure:?}").contains("fresh-mess"), "{failure:?}");
    let server = node.server();
    let last = server.only_attempt().last().unwrap();
    assert!(matches!(last.kind, EventKind::Failed { .. }));
    assert_eq!(package_report(last).results.len(), 2);
}

/// A service that is still starting does not count as failed.
#[tokio::test(start_paused = true)]
async fn after_a_boot_the_node_gets_time_to_start_its_services() {
    let node = node_that_must_reboot();
    node.run_once().await.unwrap();
    node.boot();
    node.packages().audit = NEW_FINDING.into();
    let started = tokio::time::Instant::now();
    let heals = async {
        tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        node.packages().audit.clear();
    };
    let (end, ()) = tokio::join!(node.run_once(), heals);
    end.unwrap();
    assert_eq!(node.server().story(), AFTER_REBOOT);
    assert!(started.elapsed() < std::time::Duration::from_secs(70));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_unhealthy_after_its_reboot_has_failed() {
    let node = node_that_must_reboot();
    node.run_once().await.unwrap();
    node.boot();
    node.packages().audit = NEW_FINDING.into();
    let started = tokio::time::Instant::now();
    node.run_once().await.unwrap_err();
    assert_eq!(failure(&node).kind, FailureKind::Verify);
    assert!(node.server().story().ends_with("verify begun, failed"));
    assert!(started.elapsed() >= std::time::Duration::from_mins(2));
}

#[tokio::test]
async fn the_report_has_the_reasons_for_the_reboot_and_the_kernels_around_it() {
    let node = node_that_must_reboot();
    node.machine().kernel_release = "6.1.0-40-amd64".into();
    node.run_once().await.unwrap();
    node.boot();
    node.machine().kernel_release = "6.1.0-41-amd64".into();
    node.run_once().await.unwrap();
    let report = run_report(&node);
    assert_eq!(report.reboot_reasons, ["app requires it", "lib requires it"]);
    assert_eq!(report.kernel_before, "6.1.0-40-amd64");
    assert_eq!(report.kernel_after, "6.1.0-41-amd64");
    assert_eq!(report.remarks, [""; 0]);
}

#[tokio::test]
async fn the_reasons_are_reported_without_a_reboot_as_well() {
    let node = node_that_must_reboot();
    node.machine().kernel_release = "6.1.0-40-amd64".into();
    let objection = RebootObjection::lasting("the machine's owner does not allow reboots");
    node.machine().owner_objection = Some(objection);
    node.run_once().await.unwrap();
    let report = run_report(&node);
    assert_eq!(report.reboot_reasons, ["app requires it", "lib requires it"]);
    assert_eq!(report.kernel_after, "6.1.0-40-amd64");
}

/// As if the loader had started the old kernel again.
#[tokio::test]
async fn a_reboot_that_did_not_help_is_a_remark() {
    let node = node_that_must_reboot();
    node.run_once().await.unwrap();
    node.boot();
    let run = node.paths().inside("/run");
    fs::create_dir_all(&run).unwrap();
    fs::write(run.join("reboot-required"), "").unwrap();
    fs::write(run.join("reboot-required.pkgs"), "linux-image-amd64\n").unwrap();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), AFTER_REBOOT);
    assert_eq!(node.machine().reboot_requests, 1, "no second reboot");
    let report = run_report(&node);
    assert!(report.reboot_required);
    assert_eq!(
        report.remarks,
        ["the node has rebooted and still needs a reboot: linux-image-amd64 requires it"]
    );
}
