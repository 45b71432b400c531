//! What delays the reboot after a change: a person, a program or a hook of the machine, also if it came up during the
//! change.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::model::RunReport;
use evenkeel_update_agent::reboot::RebootObjection;
use evenkeel_update_agent::status;

use crate::support::lock::while_locked;
use crate::support::node::TestNode;

const STORY: &str = "downloading, downloaded, began, verify begun, finished";
const DELAYED: &str = "downloading, downloaded, began";
const BEFORE_REBOOT: &str = "downloading, downloaded, began, reboot begun";
const AFTER_REBOOT: &str = "downloading, downloaded, began, reboot begun, verify begun, finished";
const NEW: &str = "app 2 installed\nlib 2 installed";
const LOCK: &str = "backup blocks a shutdown: writing to tape";

/// A node on which every change requires a reboot.
fn node_that_must_reboot() -> TestNode {
    let node = TestNode::in_window();
    node.packages().requires_reboot = true;
    node
}

/// A node whose reboot another program delays.
fn node_with_lock() -> TestNode {
    let node = node_that_must_reboot();
    node.machine().logind_lock = Some(LOCK.into());
    node
}

fn inhibit_file(node: &TestNode) -> PathBuf {
    node.paths().inside("/etc/evenkeel/inhibit")
}

/// The reason for which the node waits, as `evenkeel-agent status` shows it.
fn waiting_reason(node: &TestNode) -> String {
    status::read_status(&node.paths().status()).unwrap().waiting
}

/// Runs an agent that finds the reboot delayed.
async fn assert_delayed(node: &TestNode, why: &str) {
    let error = node.run_once().await.unwrap_err().to_string();
    assert!(error.ends_with(&format!("the reboot is delayed: {why}")), "{error}");
    assert_eq!(waiting_reason(node), format!("the reboot is delayed: {why}"));
    assert_eq!(node.machine().reboot_requests, 0);
    assert_eq!(node.system.listing(), NEW);
}

/// Runs agents that find nothing that delays the reboot any more: one reports it, the next one requests it.
async fn assert_reboots(node: &TestNode) {
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), BEFORE_REBOOT);
    assert_eq!(waiting_reason(node), "");
    assert_eq!(node.machine().reboot_requests, 0, "the server learns of it first");
    node.run_once().await.unwrap();
    assert_eq!(node.machine().reboot_requests, 1);
    node.boot();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), AFTER_REBOOT);
    assert_eq!(node.machine().reboot_requests, 1);
    assert_eq!(last_report(node).remarks, [""; 0]);
}

fn last_report(node: &TestNode) -> RunReport {
    let server = node.server();
    server.only_attempt().last().unwrap().report.clone().unwrap()
}

/// Asserts that the attempt has ended without a reboot, with this reason.
fn assert_ended_without_reboot(node: &TestNode, why: &str) {
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().reboot_requests, 0);
    let report = last_report(node);
    assert!(report.reboot_required);
    let remark = format!("the change needs a reboot, but the node does not reboot: {why}");
    assert_eq!(report.remarks, [remark]);
    assert_eq!(waiting_reason(node), "");
}

#[tokio::test]
async fn an_inhibit_file_that_appears_during_the_change_delays_the_reboot() {
    let node = node_that_must_reboot();
    node.packages().inhibited_meanwhile = true;
    let why = "/etc/evenkeel/inhibit: a demonstration";
    assert_delayed(&node, why).await;
    assert_eq!(node.server().story(), DELAYED);
    assert_delayed(&node, why).await;
    let reported = node.server().waiting_reasons.last().cloned();
    assert_eq!(reported.unwrap(), format!("the reboot is delayed: {why}"));

    fs::remove_file(inhibit_file(&node)).unwrap();
    assert_reboots(&node).await;
}

#[tokio::test]
async fn a_lock_of_another_program_delays_the_reboot_until_it_is_released() {
    let node = node_with_lock();
    assert_delayed(&node, LOCK).await;
    node.clock.advance(TimeDelta::minutes(29));
    assert_delayed(&node, LOCK).await;
    node.machine().logind_lock = None;
    assert_reboots(&node).await;
}

#[tokio::test]
async fn a_lock_that_is_taken_after_the_reboot_was_reported_delays_it_too() {
    let node = node_with_lock();
    assert_delayed(&node, LOCK).await;
    node.machine().logind_lock = None;
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), BEFORE_REBOOT);
    node.machine().logind_lock = Some(LOCK.into());
    assert_delayed(&node, LOCK).await;
    node.machine().logind_lock = None;
    node.run_once().await.unwrap();
    assert_eq!(node.machine().reboot_requests, 1);
}

#[tokio::test]
async fn another_dpkg_or_apt_delays_the_reboot() {
    for (file, lock) in [
        ("var/lib/dpkg/lock", "dpkg's lock"),
        ("var/lib/apt/lists/lock", "the lock of the package lists"),
    ] {
        let node = node_with_lock();
        let root = node.paths().root().to_owned();
        fs::create_dir_all(root.join("var/lib/apt/lists")).unwrap();
        assert_delayed(&node, LOCK).await;
        Box::pin(while_locked(&root, file, async {
            node.machine().logind_lock = None;
            assert_delayed(&node, &format!("another program holds {lock}")).await;
        }))
        .await;
        assert_reboots(&node).await;
    }
}

#[tokio::test]
async fn a_window_that_closes_meanwhile_ends_the_attempt_without_a_reboot() {
    let node = node_with_lock();
    node.server().start_deadline = Some(node.clock.now() + TimeDelta::minutes(20));
    assert_delayed(&node, LOCK).await;
    node.clock.advance(TimeDelta::minutes(20));
    // Even if the lock is released by then.
    node.machine().logind_lock = None;
    node.run_once().await.unwrap();
    let why = format!("the window has closed while the reboot was delayed: {LOCK}");
    assert_ended_without_reboot(&node, &why);
}

#[tokio::test]
async fn without_the_end_of_a_window_the_delay_has_a_limit() {
    let node = node_with_lock();
    assert_delayed(&node, LOCK).await;
    node.clock.advance(TimeDelta::minutes(30));
    node.run_once().await.unwrap();
    assert_ended_without_reboot(
        &node,
        &format!("it was delayed for 30 min, which is the limit: {LOCK}"),
    );
    let phases = last_report(&node).phases;
    let phases: Vec<_> = phases.iter().map(|span| (span.phase.as_str(), span.millis)).collect();
    assert!(phases.contains(&("apply", 0)), "{phases:?}");
    assert!(phases.contains(&("reboot", 30 * 60 * 1_000)), "{phases:?}");
}

#[tokio::test]
async fn a_clock_that_was_turned_back_does_not_end_or_extend_the_delay_for_ever() {
    let node = node_with_lock();
    assert_delayed(&node, LOCK).await;
    node.clock.advance(TimeDelta::days(-10_000));
    assert_delayed(&node, LOCK).await;
    node.clock.advance(TimeDelta::minutes(30));
    node.run_once().await.unwrap();
    assert!(last_report(&node).reboot_required);
}

#[tokio::test]
async fn a_logged_in_user_delays_the_reboot_if_the_limits_require_it() {
    let node = node_that_must_reboot();
    let objection = RebootObjection::temporary("a user is logged in");
    node.machine().owner_objection = Some(objection);
    assert_delayed(&node, "a user is logged in").await;
    node.machine().owner_objection = None;
    assert_reboots(&node).await;
}

#[tokio::test]
async fn a_reboot_by_a_person_ends_the_delay() {
    let node = node_with_lock();
    assert_delayed(&node, LOCK).await;
    node.boot();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().reboot_requests, 0);
    let report = last_report(&node);
    assert!(!report.reboot_required, "{report:?}");
    assert_eq!(report.remarks, [""; 0]);
}

#[tokio::test]
async fn a_hook_delays_the_reboot_after_a_change_of_packages() {
    let node = node_that_must_reboot();
    let hook = "/etc/evenkeel/hooks/before-reboot.d/10-drain";
    node.add_program(hook);
    node.packages().program_status.insert(hook.into(), 75);
    assert_delayed(&node, "the hook 10-drain is not ready").await;
    node.packages().program_status.clear();
    assert_reboots(&node).await;
}

/// A poll takes place every minute.
#[tokio::test(start_paused = true)]
async fn what_delays_a_reboot_is_checked_more_often_than_the_server_is_polled() {
    let node = node_with_lock();
    let mut agent = node.agent();
    let machine = async {
        tokio::time::sleep(Duration::from_secs(65)).await;
        assert_eq!(node.machine().reboot_requests, 0);
        assert_eq!(waiting_reason(&node), format!("the reboot is delayed: {LOCK}"));
        node.machine().logind_lock = None;
        tokio::time::sleep(Duration::from_secs(31)).await;
        assert_eq!(node.machine().reboot_requests, 1);
        assert_eq!(node.machine().last_event, Some("reboot begun"));
        node.stop.cancel();
    };
    tokio::join!(agent.run(), machine);
}

const WARNED: &str = "logged-in users were warned; the node reboots at 2024-10-04 00:01:00 UTC";

/// Runs an agent that waits after it has warned the users.
async fn assert_warned(node: &TestNode, times: usize) {
    let error = node.run_once().await.unwrap_err().to_string();
    assert!(error.ends_with(WARNED), "{error}");
    assert_eq!(waiting_reason(node), WARNED);
    assert_eq!(node.machine().warnings.len(), times);
    assert_eq!(node.machine().reboot_requests, 0);
}

/// Each call starts another agent, as after a kill during the delay.
#[tokio::test]
async fn logged_in_users_are_warned_once_and_have_a_minute() {
    let node = node_that_must_reboot();
    node.machine().has_users = true;
    assert_warned(&node, 1).await;
    let warning = node.machine().warnings[0].clone();
    assert!(warning.contains("reboots in 1 min, because an update needs it"), "{warning}");
    assert!(warning.contains("app requires it"), "{warning}");
    node.clock.advance(TimeDelta::seconds(59));
    assert_warned(&node, 1).await;
    assert_eq!(node.server().story(), DELAYED);
    node.clock.advance(TimeDelta::seconds(1));
    assert_reboots(&node).await;
    assert_eq!(node.machine().warnings.len(), 1);
}

#[tokio::test]
async fn a_lock_that_is_taken_after_the_warning_delays_the_reboot_and_users_are_warned_again() {
    let node = node_that_must_reboot();
    node.machine().has_users = true;
    assert_warned(&node, 1).await;
    node.machine().logind_lock = Some(LOCK.into());
    assert_delayed(&node, LOCK).await;
    node.machine().logind_lock = None;
    assert_warned(&node, 2).await;
    node.clock.advance(TimeDelta::minutes(1));
    assert_reboots(&node).await;
}

#[tokio::test]
async fn after_a_clock_jump_users_are_warned_again() {
    let node = node_that_must_reboot();
    node.machine().has_users = true;
    assert_warned(&node, 1).await;
    node.clock.advance(TimeDelta::days(-100));
    node.run_once().await.unwrap_err();
    assert_eq!(node.machine().warnings.len(), 2);
    node.clock.advance(TimeDelta::minutes(1));
    assert_reboots(&node).await;
}

/// No agent runs at the announced time.
#[tokio::test]
async fn users_are_warned_again_before_a_reboot_at_another_time() {
    let node = node_that_must_reboot();
    node.machine().has_users = true;
    assert_warned(&node, 1).await;
    node.clock.advance(TimeDelta::hours(3));
    node.run_once().await.unwrap_err();
    assert_eq!(node.machine().warnings.len(), 2);
    assert_eq!(node.machine().reboot_requests, 0);
    node.clock.advance(TimeDelta::minutes(1));
    assert_reboots(&node).await;
    assert_eq!(node.machine().warnings.len(), 2);
}

#[tokio::test]
async fn an_agent_that_rarely_runs_reboots_after_three_warnings() {
    let node = node_that_must_reboot();
    node.machine().has_users = true;
    for warnings in 1..=3 {
        node.run_once().await.unwrap_err();
        assert_eq!(node.machine().warnings.len(), warnings);
        node.clock.advance(TimeDelta::hours(1));
    }
    assert_reboots(&node).await;
    assert_eq!(node.machine().warnings.len(), 3);
}

#[tokio::test]
async fn users_are_warned_again_before_a_reboot_is_requested_again() {
    let node = node_that_must_reboot();
    node.machine().has_users = true;
    assert_warned(&node, 1).await;
    node.clock.advance(TimeDelta::minutes(1));
    node.run_once().await.unwrap();
    node.run_once().await.unwrap();
    assert_eq!(node.machine().reboot_requests, 1);
    node.clock.advance(TimeDelta::minutes(5));
    node.run_once().await.unwrap_err();
    assert_eq!(node.machine().warnings.len(), 2);
    assert_eq!(node.machine().reboot_requests, 1);
    node.clock.advance(TimeDelta::minutes(1));
    node.run_once().await.unwrap();
    assert_eq!(node.machine().reboot_requests, 2);
}

/// A poll takes place every minute.
#[tokio::test(start_paused = true)]
async fn the_reboot_follows_the_warning_in_time() {
    let node = node_that_must_reboot();
    node.machine().has_users = true;
    let mut agent = node.agent();
    let machine = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(node.machine().warnings.len(), 1);
        node.clock.advance(TimeDelta::minutes(1));
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(node.machine().reboot_requests, 1);
        node.stop.cancel();
    };
    tokio::join!(agent.run(), machine);
}
