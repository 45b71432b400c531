//! What follows a change: a reboot if it asks for one, and what was noted before it.

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::model::{Account, Failure, FailureKind, News, PackageRules, RebootRule};

use crate::support::node::{Node, latest_by};

const NEW: &str = "app 2 installed\nlib 2 installed";
const STORY: &str = "downloading, downloaded, began, verify begun, finished";
const BEFORE_REBOOT: &str = "downloading, downloaded, began, reboot begun";
const AFTER_REBOOT: &str = "downloading, downloaded, began, reboot begun, verify begun, finished";

/// As dpkg words it.
const OLD_FINDING: &str = "The following packages are missing the list control file in the\n\
    database, they need to be reinstalled:\n old-mess             left by a person\n\n";
const NEW_FINDING: &str = "The following packages are missing the md5sums control file in the\n\
    database, they need to be reinstalled:\n fresh-mess           left by the update\n\n";

/// A node on which every change asks for a reboot.
fn that_must_reboot() -> Node {
    let node = Node::in_window();
    node.packages().asks_for_reboot = true;
    node
}

/// How the only attempt went.
fn account(node: &Node) -> Account {
    let server = node.server();
    let last = server.only_attempt().last().unwrap();
    last.account.clone().expect("an account")
}

fn failure(node: &Node) -> Failure {
    let server = node.server();
    let last = server.only_attempt().last().unwrap();
    last.news.failure().expect("a failure").clone()
}

/// The span of a phase, in milliseconds.
fn millis(account: &Account, phase: &str) -> u64 {
    let mut spans = account.phases.iter();
    let span = spans.find(|span| span.phase == phase);
    span.unwrap_or_else(|| panic!("no {phase}: {account:?}"))
        .millis
}

#[tokio::test]
async fn a_change_that_asks_for_it_reboots_the_node_and_is_verified_in_the_next_boot() {
    let node = that_must_reboot();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), BEFORE_REBOOT);
    assert_eq!(node.machine().told, 1);
    node.clock.advance(TimeDelta::minutes(2));
    node.boot();

    node.run_once().await.unwrap();

    assert_eq!(node.server().story(), AFTER_REBOOT);
    assert_eq!(node.system.listing(), NEW);
    assert_eq!(node.machine().told, 1);
    let boots: Vec<_> = {
        let server = node.server();
        let events = server.only_attempt().iter();
        events.map(|event| event.boot_id.clone()).collect()
    };
    assert_eq!(boots[3..], ["boot-1", "boot-2", "boot-2"]);
    let account = account(&node);
    assert!(!account.reboot_required);
    assert_eq!(millis(&account, "reboot"), 120_000);
    assert_eq!(account.remarks, [""; 0]);
}

#[tokio::test]
async fn the_server_hears_of_the_reboot_before_the_node_goes_down() {
    let node = that_must_reboot();
    node.run_once().await.unwrap();
    assert_eq!(node.machine().heard, Some("reboot begun"));
}

#[tokio::test]
async fn a_reboot_that_never_happens_is_asked_for_three_times_and_then_is_a_failure() {
    let node = that_must_reboot();
    node.machine().refuses = Some("a backup is running".into());
    for (minutes, told) in [(0, 1), (0, 1), (4, 1), (1, 2), (5, 3), (4, 3)] {
        node.clock.advance(TimeDelta::minutes(minutes));
        node.run_once().await.unwrap();
        assert_eq!(node.machine().told, told);
        assert_eq!(node.server().story(), BEFORE_REBOOT);
    }
    node.clock.advance(TimeDelta::minutes(1));
    node.run_once().await.unwrap_err();

    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Reboot);
    assert!(
        failure
            .reason
            .contains("did not reboot although it was told to 3 times"),
        "{failure}"
    );
    let account = account(&node);
    assert!(account.reboot_required);
    assert_eq!(account.remarks, ["reboot: a backup is running"]);
    assert_eq!(node.system.listing(), NEW);
    assert_eq!(node.left_over(), [""; 0]);
    assert_eq!(node.machine().told, 3);
}

#[tokio::test]
async fn a_boot_that_nobody_asked_for_is_a_reboot_as_well() {
    let node = that_must_reboot();
    node.machine().refuses = Some("a backup is running".into());
    node.run_once().await.unwrap();
    node.boot();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), AFTER_REBOOT);
}

#[tokio::test]
async fn a_policy_that_leaves_reboots_to_people_leaves_a_remark() {
    let node = that_must_reboot();
    node.server().target = Some(latest_by(PackageRules {
        reboot: RebootRule::Never,
        ..PackageRules::default()
    }));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().told, 0);
    let account = account(&node);
    assert!(account.reboot_required);
    assert_eq!(
        account.remarks,
        [
            "the change asks for a reboot, and the node does not make it: the policy leaves reboots to people"
        ]
    );
}

#[tokio::test]
async fn the_machines_owner_has_the_last_word_on_reboots() {
    let node = that_must_reboot();
    node.machine().owner = Some("somebody is logged in".into());
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().told, 0);
    let account = account(&node);
    assert!(account.reboot_required);
    assert!(account.remarks[0].ends_with("somebody is logged in"));
}

#[tokio::test]
async fn outside_the_window_the_node_does_not_reboot() {
    let node = that_must_reboot();
    node.server().before = Some(node.clock.now() + TimeDelta::hours(1));
    node.packages().takes = Some((node.clock.clone(), TimeDelta::hours(1)));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.machine().told, 0);
    let account = account(&node);
    assert_eq!(millis(&account, "apply"), 3_600_000);
    assert!(account.remarks[0].ends_with("the window has closed"));
}

#[tokio::test]
async fn a_clock_that_jumps_while_the_node_reboots_changes_nothing_of_the_end() {
    let year = 365 * 24 * 3600 * 1000;
    for (jump, expected) in [(-20, 0), (20, 20 * year)] {
        let node = that_must_reboot();
        node.run_once().await.unwrap();
        node.clock.advance(TimeDelta::days(jump * 365));
        node.boot();
        node.run_once().await.unwrap();
        assert_eq!(node.server().story(), AFTER_REBOOT);
        assert_eq!(millis(&account(&node), "reboot"), expected);
    }
}

#[tokio::test]
async fn a_clock_that_jumps_in_the_middle_of_the_change_does_not_undo_it() {
    for hours in [-1_000_000, 1_000_000] {
        let node = Node::in_window();
        node.server().before = Some(node.clock.now() + TimeDelta::hours(1));
        node.packages().takes = Some((node.clock.clone(), TimeDelta::hours(hours)));
        node.run_once().await.unwrap();
        assert_eq!(node.server().story(), STORY);
        assert_eq!(node.system.listing(), NEW);
    }
}

#[tokio::test]
async fn a_clock_that_was_turned_back_does_not_put_a_reboot_off() {
    let node = that_must_reboot();
    node.machine().refuses = Some("a backup is running".into());
    node.run_once().await.unwrap();
    node.clock.advance(TimeDelta::days(-10_000));
    node.run_once().await.unwrap();
    assert_eq!(node.machine().told, 2);
}

#[tokio::test]
async fn what_dpkgs_audit_found_before_the_change_is_no_failure_of_it() {
    let node = Node::in_window();
    node.packages().audit = OLD_FINDING.into();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn what_dpkgs_audit_finds_only_after_the_change_is_its_failure() {
    let node = Node::in_window();
    node.packages().audit = OLD_FINDING.into();
    node.packages().mess = NEW_FINDING.into();
    node.run_once().await.unwrap_err();
    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Verify);
    assert!(format!("{failure:?}").contains("fresh-mess"), "{failure:?}");
    let server = node.server();
    let last = &server.only_attempt().last().unwrap().news;
    assert!(matches!(last, News::Failed { results, .. } if results.len() == 2));
}

/// A service that is not up yet is none that is down.
#[tokio::test(start_paused = true)]
async fn after_a_boot_the_node_is_given_time_to_come_up() {
    let node = that_must_reboot();
    node.run_once().await.unwrap();
    node.boot();
    node.packages().audit = NEW_FINDING.into();
    let begun = tokio::time::Instant::now();
    let heals = async {
        tokio::time::sleep(std::time::Duration::from_mins(1)).await;
        node.packages().audit.clear();
    };
    let (end, ()) = tokio::join!(node.run_once(), heals);
    end.unwrap();
    assert_eq!(node.server().story(), AFTER_REBOOT);
    assert!(begun.elapsed() < std::time::Duration::from_secs(70));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_come_up_well_after_its_reboot_has_failed() {
    let node = that_must_reboot();
    node.run_once().await.unwrap();
    node.boot();
    node.packages().audit = NEW_FINDING.into();
    let begun = tokio::time::Instant::now();
    node.run_once().await.unwrap_err();
    assert_eq!(failure(&node).kind, FailureKind::Verify);
    assert!(node.server().story().ends_with("verify begun, failed"));
    assert!(begun.elapsed() >= std::time::Duration::from_mins(2));
}
