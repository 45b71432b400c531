//! Images that cannot be armed, disarmed or downloaded, or that come too late.

use std::fs;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::journal::FileJournal;
use evenkeel_update_agent::model::{EventKind, FailureKind, Sha256};
use evenkeel_update_agent::modules::image::slots::SlotState;
use evenkeel_update_agent::status;
use serde_json::Value;

use crate::image_steps::{STORY, assert_runs_new, assert_runs_old, revert_failure};
use crate::support::image_node::{ImageNode, change_spec, image_report, image_target};

/// A node with a start permit for one hour that loses power at the write `at` and returns two hours later.
fn node_back_after_window(at: usize) -> ImageNode {
    let node = ImageNode::in_window();
    node.server().start_deadline = Some(node.clock.now() + TimeDelta::hours(1));
    {
        let mut state = node.machine.state();
        state.power_cut_at = Some(at);
        state.downtime = TimeDelta::hours(2);
    }
    node
}

/// The operations on the slots before and after the power cut; `None` if there was none.
fn log_around_power_cut(node: &ImageNode) -> Option<(Vec<String>, Vec<String>)> {
    let state = node.machine.state();
    let (before, after) = state.log.split_at(state.logged_before_cut?);
    Some((before.to_vec(), after.to_vec()))
}

#[track_caller]
fn assert_reverted_late(node: &ImageNode, context: &str) {
    assert_runs_old(node, context);
    let failure = revert_failure(node);
    let kinds = [FailureKind::Interrupted, FailureKind::Reboot];
    assert!(kinds.contains(&failure.kind), "{context}: {failure:?}");
    assert!(matches!(node.slots().b, SlotState::Written(_)), "{context}: {:?}", node.slots());
}

/// The start was permitted, the power failed, and the node returns after the end of the window.
#[tokio::test(start_paused = true)]
async fn an_image_not_armed_when_its_window_ends_is_not_armed_later() {
    let (mut early, mut late) = (0, 0);
    for at in 1.. {
        let node = node_back_after_window(at);
        node.run_until_idle().await.ok();
        let Some((before, after)) = log_around_power_cut(&node) else {
            break;
        };
        let context = format!("write {at}: {before:?}, then {after:?}");
        assert!(!after.iter().any(|done| done == "arm"), "{context}");
        if before.iter().any(|done| done == "arm") {
            // The power cut acted as the reset.
            early += 1;
            assert!(node.server().story().ends_with("finished"), "{context}");
            assert_runs_new(&node, &context);
        } else {
            late += 1;
            assert_reverted_late(&node, &context);
        }
    }
    assert!(early > 0 && late > 0, "{early} {late}");
}

/// As above, but only the agent dies and the machine stays up: an armed slot must be disarmed, and a half-armed slot
/// must not be armed later.
#[tokio::test(start_paused = true)]
async fn an_agent_that_restarts_after_its_window_arms_nothing_and_disarms() {
    let mut half = 0;
    for at in 1.. {
        let node = node_back_after_window(at);
        {
            let mut state = node.machine.state();
            (state.only_agent_dies, state.ignores_reboot) = (true, true);
        }
        node.run_until_idle().await.ok();
        let Some((before, after)) = log_around_power_cut(&node) else {
            break;
        };
        let context = format!("write {at}: {before:?}, then {after:?}");
        assert!(!after.iter().any(|done| done == "arm"), "{context}");
        assert_reverted_late(&node, &context);
        half += usize::from(before.ends_with(&["kernel".to_owned()]));
    }
    // After the kernel and before the boot entry: the record says that the slot is armed.
    assert!(half > 1, "{half}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_delays_the_reset_past_the_window_prevents_arming() {
    let node = ImageNode::in_window();
    node.server().start_deadline = Some(node.clock.now() + TimeDelta::hours(1));
    node.add_hook("before-reboot");
    node.machine.state().hook_duration = Some((node.clock.clone(), TimeDelta::hours(2)));
    node.run_until_idle().await.unwrap_err();
    assert_reverted_late(&node, "");
    let log = node.machine.state().log.clone();
    assert!(!log.iter().any(|done| done == "arm"), "{log:?}");
}

/// As after a configuration change with which the agent cannot use its slots.
#[tokio::test(start_paused = true)]
async fn an_agent_without_slots_after_the_reset_does_not_accept_the_image() {
    let node = ImageNode::in_window();
    node.machine.state().ignores_reboot = true;
    node.run_until_idle().await.unwrap();
    node.machine.state().hides_slots = true;
    node.boot();
    let error = node.run_until_idle().await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("module image, which made this change, is not loaded"), "{error}");
    assert_eq!(node.server().story(), "downloading, downloaded, began, reboot begun");
    let waiting = node.server().waiting_reasons.last().unwrap().clone();
    assert!(waiting.contains("evenkeel-agent doctor"), "{waiting}");

    node.machine.state().hides_slots = false;
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

/// As a newer agent would: adds a field that this agent does not know to the spec in the first step.
fn write_newer_step(node: &ImageNode) {
    let path = node.paths().journal();
    let mut journal: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let spec = journal.pointer_mut("/attempt/steps/0/step/payload/spec").unwrap();
    assert!(spec["image_id"].is_string());
    spec["more"] = 1.into();
    fs::write(&path, journal.to_string()).unwrap();
}

/// The agent of the new image may be older than the agent that armed it, and an older agent may replace it before the
/// reboot.
#[tokio::test(start_paused = true)]
async fn an_attempt_with_a_step_of_a_newer_agent_fails_and_another_update_can_follow() {
    for is_rebooted in [true, false] {
        let node = ImageNode::in_window();
        node.machine.state().ignores_reboot = true;
        node.run_until_idle().await.unwrap();
        assert!(matches!(node.slots().b, SlotState::Armed { .. }));
        write_newer_step(&node);
        if is_rebooted {
            node.boot();
        }
        node.run_until_idle().await.unwrap_err();
        let story = node.server().story();
        assert_eq!(story, "downloading, downloaded, began, reboot begun, failed", "{is_rebooted}");
        let last = node.server().only_attempt().last().unwrap().clone();
        let booted = if is_rebooted { "1.1" } else { "1.0" };
        assert_eq!(image_report(&last).booted.as_deref(), Some(booted));
        let EventKind::Failed { failure } = last.kind else { panic!("{last:?}") };
        assert_eq!(failure.kind, FailureKind::Unsupported);
        assert!(failure.reason.contains("unknown field `more`"), "{failure}");
        if is_rebooted {
            assert_runs_new(&node, "the new image passed its trial");
        } else {
            assert_runs_old(&node, "the slot is disarmed");
        }

        {
            let mut server = node.server();
            server.reported_events.clear();
            server.target = Some(image_target("1.2"));
        }
        node.machine.state().ignores_reboot = false;
        node.run_until_idle().await.unwrap();
        assert_eq!(node.server().story(), STORY, "{is_rebooted}");
        let running = node.server().facts.clone().unwrap().booted_image;
        assert_eq!(running.unwrap().image_id, "1.2", "{is_rebooted}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_stays_open_while_the_armed_slot_cannot_be_observed() {
    for blind in [
        // The observation after the change, and the one before it is undone.
        [true, true],
        // The observation that shows that a reboot is needed.
        [false, true],
    ] {
        let node = ImageNode::in_window();
        node.machine.state().blind_after_arming = blind.to_vec();
        node.run_until_idle().await.unwrap();
        assert_runs_new(&node, &format!("{blind:?}"));
        assert_eq!(node.server().story(), STORY, "{blind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_armed_slot_without_an_attempt_is_disarmed() {
    let node = ImageNode::in_window();
    node.machine.state().ignores_reboot = true;
    node.run_until_idle().await.unwrap();
    assert!(matches!(node.slots().b, SlotState::Armed { .. }));
    fs::remove_file(node.paths().journal()).unwrap();
    node.server().target = None;
    node.run_until_idle().await.unwrap();
    assert_runs_old(&node, "");
    assert!(matches!(node.slots().b, SlotState::Written(_)));
}

/// The power fails at any write meanwhile.
#[tokio::test(start_paused = true)]
async fn an_image_whose_trial_cannot_reach_the_server_is_reverted_and_accepted_later() {
    for at in 1.. {
        let node = ImageNode::in_window();
        {
            let mut state = node.machine.state();
            (state.requires_server, state.offline_on_trial) = (true, true);
            state.power_cut_at = Some(at);
        }
        let context = format!("write {at}");
        node.run_until_idle().await.ok();
        assert_runs_old(&node, &context);
        let slots = node.slots();
        assert!(slots.bad.is_empty(), "{context}: {slots:?}");
        assert!(matches!(slots.b, SlotState::Written(_)), "{context}: {slots:?}");
        let failure = revert_failure(&node);
        assert_eq!(failure.kind, FailureKind::Verify, "{context}");
        let (reason, log) = (&failure.reason, &failure.log);
        assert!(reason.contains("the server cannot be reached"), "{context}: {reason}");
        assert_eq!(log, "the last log lines\n", "{context}");
        let had_power = node.machine.state().power_cut_at.is_some();

        node.machine.state().power_cut_at = None;
        node.machine.state().offline_on_trial = false;
        node.server().reported_events.clear();
        node.clock.advance(TimeDelta::minutes(2));
        node.run_until_idle().await.unwrap();
        assert_runs_new(&node, &context);
        assert!(node.slots().undecided.is_empty(), "{context}");
        if had_power {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_armed_on_a_node_that_cannot_reboot() {
    let node = ImageNode::in_window();
    node.machine.state().reboot_obstacle = Some("no reboot command is configured".into());
    node.run_until_idle().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.server().start_requests, 0);
    let status = status::read_status(&node.paths().status()).unwrap();
    assert!(status.waiting.contains("no reboot command"), "{status:?}");
    let log = node.machine.state().log.clone();
    assert_eq!(log, ["withdraw", "begin to write", "write"]);

    node.machine.state().reboot_obstacle = None;
    node.run_until_idle().await.unwrap();
    assert_runs_new(&node, "");
}

#[tokio::test(start_paused = true)]
async fn a_changed_spec_of_the_same_image_applies_to_an_open_attempt() {
    let node = ImageNode::in_window();
    node.machine.state().deferral = Some("the connection is down".into());
    node.run_until_idle().await.unwrap_err();
    let signed = vec!["key:signature".to_owned()];
    let mut changed = image_target("1.1");
    change_spec(&mut changed, |spec| spec.signatures.clone_from(&signed));
    node.server().target = Some(changed.clone());
    node.run_until_idle().await.unwrap_err();
    assert_eq!(node.machine.state().requested_signatures, signed);
    let open = FileJournal::peek(&node.paths().journal()).unwrap();
    assert_eq!(open.unwrap().target, changed);
    let retained = node.machine.state().retained.clone();
    assert!(!retained.contains(&None), "{retained:?}");

    node.machine.state().deferral = None;
    node.run_until_idle().await.unwrap();
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn a_download_survives_a_failed_attempt_and_is_discarded_when_withdrawn() {
    let node = ImageNode::in_window();
    node.machine.state().download_error = Some("the server sends noise".into());
    node.run_until_idle().await.unwrap_err();
    let own = Some(Sha256::hash(b"1.1"));
    let retained = node.machine.state().retained.clone();
    assert!(!retained.is_empty(), "no file was discarded");
    assert!(retained.iter().all(|file| *file == own), "{retained:?}");

    {
        let mut state = node.machine.state();
        (state.download_error, state.deferral) = (None, Some("the connection is down".into()));
    }
    node.server().reported_events.clear();
    node.run_until_idle().await.unwrap_err();
    node.server().target = None;
    node.run_until_idle().await.unwrap();
    assert_eq!(node.server().story(), "downloading, cancelled");
    assert_eq!(node.machine.state().retained.last(), Some(&None));
}

/// As RAUC does during an installation that a person, or an agent that was stopped, has started.
#[tokio::test(start_paused = true)]
async fn an_attempt_waits_while_the_boot_control_runs_another_command() {
    for (operation, story) in [("download", "downloading"), ("write", "downloading, downloaded")] {
        let node = ImageNode::in_window();
        node.machine.state().busy_after = Some(operation);
        node.run_until_idle().await.ok();
        assert_eq!(node.server().story(), story, "{operation}");
        let waiting = node.server().waiting_reasons.last().unwrap().clone();
        assert_eq!(waiting, "the boot control runs another command", "{operation}");

        node.run_until_idle().await.unwrap();
        assert_eq!(node.server().story(), STORY, "{operation}");
        assert_runs_new(&node, operation);
    }
}
