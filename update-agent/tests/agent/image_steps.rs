//! An image update from the server's decision to the booted slot, with a power cut at every write on the way.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_update_agent::model::{AttemptEvent, EventKind, Failure, FailureKind, Sha256};
use evenkeel_update_agent::modules::image::boot_control::BootControl;
use evenkeel_update_agent::modules::image::slots::{
    self, BootEntry, RawImage, Slot, SlotFile, SlotImage, SlotState,
};
use evenkeel_update_agent::trial::reconcile_slots;

use crate::support::image_node::{ImageNode, change_spec, image_report, image_target};

pub const STORY: &str = "downloading, downloaded, began, reboot begun, verify begun, finished";
const FALLBACK_STORY: &str = "downloading, downloaded, began, reboot begun, verify begun, reverted";

/// Minimum number of writes of an attempt: to the journal, the record and the boot entries, each counted before and after.
const MIN_WRITES: usize = 30;

fn last_event(node: &ImageNode) -> AttemptEvent {
    node.server().only_attempt().last().unwrap().clone()
}

#[track_caller]
pub fn revert_failure(node: &ImageNode) -> Failure {
    let last = last_event(node);
    assert_eq!(image_report(&last).booted.as_deref(), Some("1.0"));
    let EventKind::Reverted { failure } = last.kind else { panic!("{last:?}") };
    failure
}

/// Asserts that the new image runs and that the record, the boot entries and the facts agree.
#[track_caller]
pub fn assert_runs_new(node: &ImageNode, context: &str) {
    let slots = node.slots();
    assert!(matches!(slots.b, SlotState::Good(_)), "{context}: {slots:?}");
    assert_eq!(slots.last_good, Some(Slot::B), "{context}");
    assert!(slots.bad.is_empty(), "{context}");
    let state = node.machine.state();
    assert_eq!(state.running, Slot::B, "{context}");
    assert_eq!((&state.a, &state.b), (&BootEntry::Plain, &BootEntry::Plain), "{context}");
    let booted = node.server().facts.clone().unwrap().booted_image;
    assert_eq!(booted.unwrap().image_id, "1.1", "{context}");
}

/// Asserts that the old image runs and that nothing boots the other slot.
#[track_caller]
pub fn assert_runs_old(node: &ImageNode, context: &str) {
    let slots = node.slots();
    assert!(matches!(slots.a, SlotState::Good(_)), "{context}: {slots:?}");
    assert_eq!(slots.last_good, Some(Slot::A), "{context}");
    let state = node.machine.state();
    assert_eq!(state.running, Slot::A, "{context}");
    assert_eq!((&state.a, &state.b), (&BootEntry::Plain, &BootEntry::Absent), "{context}");
    let booted = node.server().facts.clone().unwrap().booted_image;
    assert_eq!(booted.unwrap().image_id, "1.0", "{context}");
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_is_downloaded_in_parts_armed_tried_and_blessed() {
    let node = ImageNode::in_window();
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
    let log = node.machine.state().log.clone();
    assert_eq!(log, ["withdraw", "begin to write", "write", "kernel", "arm", "bless"]);
    assert_eq!(node.machine.state().downloads, 2);
    let server = node.server();
    assert_eq!(server.only_attempt()[0].kind, EventKind::Downloading);
    let report = image_report(server.only_attempt().last().unwrap());
    let change = report.change.unwrap();
    assert_eq!((change.before.as_str(), change.after.as_str()), ("1.0", "1.1"));
    assert_eq!(report.booted.as_deref(), Some("1.1"));
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_image_is_reverted_and_reported_with_reason_and_log() {
    let node = ImageNode::in_window();
    node.machine.state().healthy = false;
    node.run_until_idle().await.unwrap_err();
    assert_runs_old(&node, "");
    assert_eq!(node.server().story(), FALLBACK_STORY);
    let failure = revert_failure(&node);
    assert_eq!(failure.kind, FailureKind::Verify);
    assert!(failure.reason.contains("the unit app.service is failed"), "{failure}");
    assert_eq!(failure.log, "the last log lines\n");
    assert!(matches!(node.slots().b, SlotState::Bad { .. }));
    assert_eq!(node.slots().bad.len(), 1);
}

/// The power fails once, before or after each write of the journal, the record and the boot entries.
#[tokio::test(start_paused = true)]
async fn a_healthy_image_survives_a_power_cut_at_any_write() {
    let mut at = 1;
    loop {
        let node = ImageNode::in_window();
        node.machine.state().power_cut_at = Some(at);
        let end = node.run_until_idle().await;
        let context = format!("write {at}");
        assert!(end.is_ok(), "{context}: {end:?}");
        assert_runs_new(&node, &context);
        let story = node.server().story();
        // A power cut after arming acts as the reset, before the agent has requested it.
        let expected = match node.machine.state().reboot_requests {
            0 if story != STORY => STORY.replace("reboot begun, ", ""),
            _ => STORY.to_owned(),
        };
        assert_eq!(story, expected, "{context}");
        assert!(!node.paths().journal().exists(), "{context}");
        if node.machine.state().power_cut_at.is_some() {
            break;
        }
        at += 1;
    }
    assert!(at > MIN_WRITES, "{at}");
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_image_is_reverted_after_a_power_cut_at_any_write() {
    let (mut at, mut silent) = (1, 0);
    loop {
        let node = ImageNode::in_window();
        {
            let mut state = node.machine.state();
            state.power_cut_at = Some(at);
            state.healthy = false;
        }
        let context = format!("write {at}");
        // After the last write everything is reported, so the agent that starts then returns no error.
        silent += usize::from(node.run_until_idle().await.is_ok());
        assert_runs_old(&node, &context);
        assert!(matches!(node.slots().b, SlotState::Bad { .. }), "{context}: {:?}", node.slots());
        let failure = revert_failure(&node);
        assert!(failure.reason.contains("app.service"), "{context}: {failure}");
        assert!(!node.paths().journal().exists(), "{context}");
        if node.machine.state().power_cut_at.is_some() {
            break;
        }
        at += 1;
    }
    assert!(silent <= 1, "{silent}");
    assert!(at > MIN_WRITES, "{at}");
}

/// Any reset boots an armed slot, so the slot must be disarmed.
#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_reboot_does_not_stay_armed() {
    let node = ImageNode::in_window();
    node.machine.state().owner_objection = Some("a user is logged in".into());
    node.run_until_idle().await.unwrap_err();
    assert_runs_old(&node, "");
    assert_eq!(node.machine.state().reboot_requests, 0);
    assert_eq!(node.server().story(), "downloading, downloaded, began, reverted");
    let failure = revert_failure(&node);
    assert_eq!(failure.kind, FailureKind::Reboot);
    assert!(failure.reason.ends_with("a user is logged in"), "{failure}");
    assert!(matches!(node.slots().b, SlotState::Written(_)));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_ignores_reboot_requests_reverts() {
    let node = ImageNode::in_window();
    node.machine.state().ignores_reboot = true;
    for requests in 1..=3 {
        node.run_until_idle().await.unwrap();
        assert_eq!(node.machine.state().reboot_requests, requests);
        assert!(matches!(node.slots().b, SlotState::Armed { .. }));
        node.clock.advance(TimeDelta::minutes(5));
    }
    node.run_until_idle().await.unwrap_err();
    assert_runs_old(&node, "");
    let failure = revert_failure(&node);
    assert_eq!(failure.kind, FailureKind::Reboot);
    assert!(failure.reason.contains("3 times"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_deferred_download_is_resumed() {
    let node = ImageNode::in_window();
    node.machine.state().deferral = Some("the connection is down".into());
    for _ in 0..2 {
        let error = node.run_until_idle().await.unwrap_err();
        assert!(error.to_string().ends_with("the connection is down"), "{error}");
    }
    assert_eq!(node.server().story(), "downloading");
    assert!(node.paths().journal().exists());
    assert_eq!(node.machine.state().log, [""; 0]);

    node.machine.state().deferral = None;
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn an_image_is_only_prepared_ahead_of_its_window() {
    let node = ImageNode::in_window();
    node.server().window_open = false;
    node.run_until_idle().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_runs_old(&node, "");
    assert!(matches!(node.slots().b, SlotState::Written(_)));

    node.server().window_open = true;
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.machine.state().downloads, 2, "the image is not downloaded again");
}

#[tokio::test(start_paused = true)]
async fn another_file_of_the_same_name_is_another_image() {
    let node = ImageNode::in_window();
    node.server().window_open = false;
    node.run_until_idle().await.unwrap();
    let mut rebuilt = image_target("1.1");
    change_spec(&mut rebuilt, |spec| spec.sha256 = Sha256::hash(b"rebuilt"));
    node.server().target = Some(rebuilt);
    // The server uses the same digest for both, so the node must notice the difference.
    node.server().forgetful = true;
    node.server().window_open = true;
    node.run_until_idle().await.unwrap();
    let stories: Vec<_> = {
        let server = node.server();
        let attempts = server.reported_events.values();
        let last = attempts.map(|events| events.last().unwrap().kind.name());
        last.collect()
    };
    assert_eq!(stories.len(), 2, "{stories:?}");
    assert!(stories.contains(&"cancelled") && stories.contains(&"finished"), "{stories:?}");
    assert_runs_new(&node, "");
}

/// Its signature is valid for ever, and the server, or an attacker who controls it, allows the downgrade.
#[tokio::test(start_paused = true)]
async fn an_image_older_than_one_that_proved_itself_needs_the_owners_permission() {
    let node = ImageNode::in_window();
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.slots().version_floor("demo"), Some("1.1"));
    let downloads = node.machine.state().downloads;

    let mut older = image_target("1.0.9");
    older.digest = "older".into();
    node.server().reported_events.clear();
    node.server().target = Some(older);
    node.clock.advance(TimeDelta::minutes(2));
    node.run_until_idle().await.unwrap_err();
    let EventKind::Failed { failure, .. } = last_event(&node).kind else { panic!("a failure") };
    assert_eq!(failure.kind, FailureKind::Limits, "{failure}");
    assert!(failure.reason.contains("1.0.9 is older than 1.1"), "{failure}");
    assert_eq!(node.machine.state().downloads, downloads, "nothing was downloaded");
    assert_runs_new(&node, "");

    let limits = "[image]\nunsigned_images = true\ndowngrades = true\n";
    std::fs::write(node.paths().limits(), limits).unwrap();
    node.server().reported_events.clear();
    node.server().window_open = false;
    node.clock.advance(TimeDelta::hours(2));
    node.run_until_idle().await.unwrap();
    assert!(node.server().story().starts_with("downloading"), "{}", node.server().story());
}

#[tokio::test(start_paused = true)]
async fn an_image_that_failed_is_retried_only_by_an_order() {
    let node = ImageNode::in_window();
    node.machine.state().healthy = false;
    node.run_until_idle().await.unwrap_err();
    node.server().reported_events.clear();
    node.machine.state().healthy = true;
    node.clock.advance(TimeDelta::minutes(2));
    node.run_until_idle().await.unwrap_err();
    assert_runs_old(&node, "");
    let EventKind::Failed { failure, .. } = last_event(&node).kind else { panic!("a failure") };
    assert_eq!(failure.kind, FailureKind::Verify);
    assert!(failure.reason.contains("not tried again automatically"), "{failure}");

    node.server().reported_events.clear();
    let mut ordered = image_target("1.1");
    change_spec(&mut ordered, |spec| spec.allow_retry = true);
    node.server().target = Some(ordered);
    node.clock.advance(TimeDelta::minutes(2));
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
}

#[tokio::test(start_paused = true)]
async fn an_order_does_not_wait_after_a_finished_attempt_and_counts_once() {
    let node = ImageNode::in_window();
    node.machine.state().healthy = false;
    node.server().orders_retry = true;
    node.run_until_idle().await.unwrap_err();
    assert_runs_old(&node, "");
    let server = node.server();
    assert_eq!(server.reported_events.len(), 2, "{:?}", server.reported_events);
    for events in server.reported_events.values() {
        let names = events.iter().map(|event| event.kind.name());
        let story = names.collect::<Vec<_>>().join(", ");
        assert!(story.ends_with("began, reboot begun, verify begun, reverted"), "{story}");
    }
}

/// The power failed after the trial was recorded as failed and before its boot entry was withdrawn, and the machine
/// ignores the reset.
#[tokio::test]
async fn after_a_reset_that_does_not_happen_nothing_more_is_done() {
    let node = ImageNode::in_window();
    let machine = &node.machine;
    let record = SlotFile::open(&node.paths().slots(), Arc::new(node.clock.clone())).unwrap();
    let observation = reconcile_slots(machine, &record, machine).await.unwrap();
    let old = observation.expect("the slots agree with the record");
    let image = SlotImage {
        file: Sha256::hash(b"1.1"),
        profile_name: "demo".into(),
        image_id: "1.1".into(),
        raw: None,
    };
    let raw = RawImage { sha256: Sha256::hash(b"raw"), bytes: 30 };
    for event in [
        slots::SlotEvent::Begin { image, allow_retry: false },
        slots::SlotEvent::Wrote(raw),
        slots::SlotEvent::Arm { allow_retry: false },
    ] {
        record.step(Slot::B, &event, &old).unwrap();
    }
    {
        let mut state = machine.state();
        (state.running, state.b) = (Slot::B, BootEntry::Counted { left: 2, done: 1 });
    }
    let new = machine.observe().await.unwrap();
    let failed = slots::SlotEvent::Failed {
        reason: "the unit app.service is failed".into(),
        log: String::new(),
    };
    for event in [slots::SlotEvent::Booted, failed] {
        record.step(Slot::B, &event, &new).unwrap();
    }

    let observation = reconcile_slots(machine, &record, machine).await.unwrap();
    assert_eq!(observation, None);
    let state = machine.state();
    assert_eq!(state.log, ["withdraw"]);
    assert_eq!((&state.a, &state.b), (&BootEntry::Plain, &BootEntry::Absent));
}
