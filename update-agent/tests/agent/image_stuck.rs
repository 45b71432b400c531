//! An image that cannot be armed, cannot be taken back, comes too late or cannot be fetched.

use std::fs;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::journal::FileJournal;
use evenkeel_update_agent::model::{FailureKind, Sha256, Wish};
use evenkeel_update_agent::modules::image::slots::SlotState;
use evenkeel_update_agent::status;

use crate::image_steps::{STORY, rests_on_new, rests_on_old, reverted};
use crate::support::image_node::{ImageNode, image};

/// A node that has leave for an hour, and comes back two hours after a write at which it dies.
fn that_comes_back_late(at: usize) -> ImageNode {
    let node = ImageNode::in_window();
    node.server().before = Some(node.clock.now() + TimeDelta::hours(1));
    {
        let mut state = node.machine.state();
        state.cut = Some(at);
        state.off = TimeDelta::hours(2);
    }
    node
}

/// What was done to the slots before it died, and after; none if it lived.
fn before_and_after(node: &ImageNode) -> Option<(Vec<String>, Vec<String>)> {
    let state = node.machine.state();
    let (before, after) = state.log.split_at(state.logged?);
    Some((before.to_vec(), after.to_vec()))
}

#[track_caller]
fn went_back_late(node: &ImageNode, context: &str) {
    rests_on_old(node, context);
    let failure = reverted(node);
    let kinds = [FailureKind::Interrupted, FailureKind::Reboot];
    assert!(kinds.contains(&failure.kind), "{context}: {failure:?}");
    assert!(
        matches!(node.slots().b, SlotState::Written(_)),
        "{context}: {:?}",
        node.slots()
    );
}

/// Leave was given, the power failed, and the node comes back when the window is over.
#[tokio::test(start_paused = true)]
async fn what_is_not_armed_when_its_window_ends_is_not_armed_after_it() {
    let (mut early, mut late) = (0, 0);
    for at in 1.. {
        let node = that_comes_back_late(at);
        node.live().await.ok();
        let Some((before, after)) = before_and_after(&node) else {
            break;
        };
        let context = format!("write {at}: {before:?}, then {after:?}");
        assert!(!after.iter().any(|done| done == "arm"), "{context}");
        if before.iter().any(|done| done == "arm") {
            // The power cut was the reset.
            early += 1;
            assert!(node.server().story().ends_with("finished"), "{context}");
            rests_on_new(&node, &context);
        } else {
            late += 1;
            went_back_late(&node, &context);
        }
    }
    assert!(early > 0 && late > 0, "{early} {late}");
}

/// The same, but the machine stays up: what was armed meanwhile must not stay so, and what was half armed not become so.
#[tokio::test(start_paused = true)]
async fn an_agent_that_comes_back_after_its_window_arms_nothing_and_leaves_nothing_armed() {
    let mut half = 0;
    for at in 1.. {
        let node = that_comes_back_late(at);
        {
            let mut state = node.machine.state();
            (state.dies_alone, state.stays_up) = (true, true);
        }
        node.live().await.ok();
        let Some((before, after)) = before_and_after(&node) else {
            break;
        };
        let context = format!("write {at}: {before:?}, then {after:?}");
        assert!(!after.iter().any(|done| done == "arm"), "{context}");
        went_back_late(&node, &context);
        half += usize::from(before.ends_with(&["kernel".to_owned()]));
    }
    // Behind the kernel, and before the entry is made: the record says that it is armed.
    assert!(half > 1, "{half}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_holds_the_reset_up_until_the_window_is_over_keeps_the_slot_from_being_armed() {
    let node = ImageNode::in_window();
    node.server().before = Some(node.clock.now() + TimeDelta::hours(1));
    node.hook("before-reboot");
    node.machine.state().hooks_take = Some((node.clock.clone(), TimeDelta::hours(2)));
    node.live().await.unwrap_err();
    went_back_late(&node, "");
    let log = node.machine.state().log.clone();
    assert!(!log.iter().any(|done| done == "arm"), "{log:?}");
}

/// As after a change of the configuration that the agent cannot use.
#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_find_the_slots_after_the_reset_does_not_call_the_image_good() {
    let node = ImageNode::in_window();
    node.machine.state().stays_up = true;
    node.live().await.unwrap();
    node.machine.state().hidden = true;
    node.boot();
    let error = node.live().await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("module image is missing"), "{error}");
    assert_eq!(
        node.server().story(),
        "downloading, downloaded, began, reboot begun"
    );
    let waiting = node.server().waiting.last().unwrap().clone();
    assert!(waiting.contains("evenkeel-agent doctor"), "{waiting}");

    node.machine.state().hidden = false;
    node.live().await.unwrap();
    rests_on_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_is_not_over_while_nobody_can_tell_whether_the_slot_is_armed() {
    for blind in [
        // The look at what was done, and the one before it is taken back.
        [true, true],
        // The one that tells that it needs its reboot.
        [false, true],
    ] {
        let node = ImageNode::in_window();
        node.machine.state().blind_after_arming = blind.to_vec();
        node.live().await.unwrap();
        rests_on_new(&node, &format!("{blind:?}"));
        assert_eq!(node.server().story(), STORY, "{blind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_armed_and_nobody_waits_for_is_disarmed() {
    let node = ImageNode::in_window();
    node.machine.state().stays_up = true;
    node.live().await.unwrap();
    assert!(matches!(node.slots().b, SlotState::Armed { .. }));
    fs::remove_file(node.place().journal()).unwrap();
    node.server().target = None;
    node.live().await.unwrap();
    rests_on_old(&node, "");
    assert!(matches!(node.slots().b, SlotState::Written(_)));
}

/// Wherever the power fails meanwhile.
#[tokio::test(start_paused = true)]
async fn an_image_on_whose_trial_the_server_is_away_is_left_with_that_reason_and_kept_later() {
    for at in 1.. {
        let node = ImageNode::in_window();
        {
            let mut state = node.machine.state();
            (state.needs_server, state.cut_off_on_trial) = (true, true);
            state.cut = Some(at);
        }
        let context = format!("write {at}");
        node.live().await.ok();
        rests_on_old(&node, &context);
        let slots = node.slots();
        assert!(slots.bad.is_empty(), "{context}: {slots:?}");
        assert!(
            matches!(slots.b, SlotState::Written(_)),
            "{context}: {slots:?}"
        );
        let failure = reverted(&node);
        assert_eq!(failure.kind, FailureKind::Verify, "{context}");
        let (reason, log) = (&failure.reason, &failure.log);
        assert!(
            reason.contains("the server cannot be reached"),
            "{context}: {reason}"
        );
        assert_eq!(log, "the last words\n", "{context}");
        let had_power = node.machine.state().cut.is_some();

        node.machine.state().cut = None;
        node.machine.state().cut_off_on_trial = false;
        node.server().told.clear();
        node.clock.advance(TimeDelta::minutes(2));
        node.live().await.unwrap();
        rests_on_new(&node, &context);
        assert!(node.slots().undecided.is_empty(), "{context}");
        if had_power {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn on_a_node_that_cannot_reboot_nothing_is_armed() {
    let node = ImageNode::in_window();
    node.machine.state().hindrance = Some("no command to reboot is configured".into());
    node.live().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.server().begins, 0);
    let shown = status::read(&node.place().status()).unwrap();
    assert!(shown.waiting.contains("no command to reboot"), "{shown:?}");
    let log = node.machine.state().log.clone();
    assert_eq!(log, ["withdraw", "begin to write", "write"]);

    node.machine.state().hindrance = None;
    node.live().await.unwrap();
    rests_on_new(&node, "");
}

#[tokio::test(start_paused = true)]
async fn what_is_told_anew_of_the_same_image_counts_for_an_attempt_that_is_open() {
    let node = ImageNode::in_window();
    node.machine.state().later = Some("the line is down".into());
    node.live().await.unwrap_err();
    let signed = vec!["key:signature".to_owned()];
    let mut anew = image("1.1");
    if let Wish::Image(wish) = &mut anew.wish {
        wish.signatures.clone_from(&signed);
    }
    node.server().target = Some(anew.clone());
    node.live().await.unwrap_err();
    assert_eq!(node.machine.state().asked_with, signed);
    let open = FileJournal::look(&node.place().journal()).unwrap();
    assert_eq!(open.unwrap().target, anew);
    let kept = node.machine.state().kept.clone();
    assert!(!kept.contains(&None), "{kept:?}");

    node.machine.state().later = None;
    node.live().await.unwrap();
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn what_was_fetched_stays_when_its_attempt_fails_and_goes_when_it_is_not_wanted() {
    let node = ImageNode::in_window();
    node.machine.state().broken = Some("the server sends noise".into());
    node.live().await.unwrap_err();
    let own = Some(Sha256::of(b"1.1"));
    let kept = node.machine.state().kept.clone();
    assert!(!kept.is_empty(), "it was never asked");
    assert!(kept.iter().all(|kept| *kept == own), "{kept:?}");

    {
        let mut state = node.machine.state();
        (state.broken, state.later) = (None, Some("the line is down".into()));
    }
    node.server().told.clear();
    node.live().await.unwrap_err();
    node.server().target = None;
    node.live().await.unwrap();
    assert_eq!(node.server().story(), "downloading, cancelled");
    assert_eq!(node.machine.state().kept.last(), Some(&None));
}
