//! An image, from the server's word to the slot that boots, with the power failing at every write on the way.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_update_agent::commands::images::reconcile;
use evenkeel_update_agent::model::{Event, Failure, FailureKind, News, Sha256, Wish};
use evenkeel_update_agent::modules::image::boot_control::BootControl;
use evenkeel_update_agent::modules::image::slots::{
    self, Entry, Raw, Slot, SlotFile, SlotState, What,
};

use crate::support::image_node::{ImageNode, image};

pub const STORY: &str = "downloading, downloaded, began, reboot begun, verify begun, finished";
const BACK: &str = "downloading, downloaded, began, reboot begun, verify begun, reverted";

/// An attempt writes so often at least: the journal, the record and the boot entries, before and behind each.
const LEAST_WRITES: usize = 30;

fn last(node: &ImageNode) -> Event {
    node.server().only_attempt().last().unwrap().clone()
}

#[track_caller]
pub fn reverted(node: &ImageNode) -> Failure {
    let last = last(node);
    let News::Reverted { failure, booted } = last.news else {
        panic!("{last:?}")
    };
    assert_eq!(booted.as_deref(), Some("1.0"));
    failure
}

/// All rests on the new image, and everybody says so.
#[track_caller]
pub fn rests_on_new(node: &ImageNode, context: &str) {
    let slots = node.slots();
    assert!(
        matches!(slots.b, SlotState::Good(_)),
        "{context}: {slots:?}"
    );
    assert_eq!(slots.last_good, Some(Slot::B), "{context}");
    assert!(slots.bad.is_empty(), "{context}");
    let state = node.machine.state();
    assert_eq!(state.running, Slot::B, "{context}");
    assert_eq!(
        (&state.a, &state.b),
        (&Entry::Plain, &Entry::Plain),
        "{context}"
    );
    let booted = node.server().facts.clone().unwrap().booted_image;
    assert_eq!(booted.unwrap().image_id, "1.1", "{context}");
}

/// All rests on the old image, and nothing starts the other one.
#[track_caller]
pub fn rests_on_old(node: &ImageNode, context: &str) {
    let slots = node.slots();
    assert!(
        matches!(slots.a, SlotState::Good(_)),
        "{context}: {slots:?}"
    );
    assert_eq!(slots.last_good, Some(Slot::A), "{context}");
    let state = node.machine.state();
    assert_eq!(state.running, Slot::A, "{context}");
    assert_eq!(
        (&state.a, &state.b),
        (&Entry::Plain, &Entry::Absent),
        "{context}"
    );
    let booted = node.server().facts.clone().unwrap().booted_image;
    assert_eq!(booted.unwrap().image_id, "1.0", "{context}");
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_is_fetched_in_parts_armed_tried_and_kept() {
    let node = ImageNode::in_window();
    node.live().await.unwrap();
    rests_on_new(&node, "");
    assert_eq!(node.server().story(), STORY);
    let log = node.machine.state().log.clone();
    assert_eq!(
        log,
        [
            "withdraw",
            "begin to write",
            "write",
            "kernel",
            "arm",
            "bless"
        ]
    );
    assert_eq!(node.machine.state().downloads, 2);
    let server = node.server();
    let News::Downloading(plan) = &server.only_attempt()[0].news else {
        panic!("a plan")
    };
    let change = plan.image.as_ref().unwrap();
    assert_eq!(
        (change.before.as_str(), change.wanted.as_str()),
        ("1.0", "1.1")
    );
    assert_eq!(
        server.only_attempt().last().unwrap().news.booted(),
        Some("1.1")
    );
}

#[tokio::test(start_paused = true)]
async fn an_image_that_does_not_prove_healthy_is_left_and_told_with_the_reason_and_the_log() {
    let node = ImageNode::in_window();
    node.machine.state().healthy = false;
    node.live().await.unwrap_err();
    rests_on_old(&node, "");
    assert_eq!(node.server().story(), BACK);
    let failure = reverted(&node);
    assert_eq!(failure.kind, FailureKind::Verify);
    assert!(
        failure.reason.contains("the unit app.service is failed"),
        "{failure}"
    );
    assert_eq!(failure.log, "the last words\n");
    assert!(matches!(node.slots().b, SlotState::Bad { .. }));
    assert_eq!(node.slots().bad.len(), 1);
}

/// The power fails once behind, or before, each write of the journal, the record and the boot entries.
#[tokio::test(start_paused = true)]
async fn wherever_the_power_fails_a_healthy_image_is_kept_in_the_end() {
    let mut at = 1;
    loop {
        let node = ImageNode::in_window();
        node.machine.state().cut = Some(at);
        let end = node.live().await;
        let context = format!("write {at}");
        assert!(end.is_ok(), "{context}: {end:?}");
        rests_on_new(&node, &context);
        let story = node.server().story();
        // A power cut behind the arming is the reset before it was asked for.
        let expected = match node.machine.state().told {
            0 if story != STORY => STORY.replace("reboot begun, ", ""),
            _ => STORY.to_owned(),
        };
        assert_eq!(story, expected, "{context}");
        assert!(!node.place().journal().exists(), "{context}");
        if node.machine.state().cut.is_some() {
            break;
        }
        at += 1;
    }
    assert!(at > LEAST_WRITES, "{at}");
}

#[tokio::test(start_paused = true)]
async fn wherever_the_power_fails_an_image_that_is_not_healthy_is_left_in_the_end() {
    let (mut at, mut silent) = (1, 0);
    loop {
        let node = ImageNode::in_window();
        {
            let mut state = node.machine.state();
            state.cut = Some(at);
            state.healthy = false;
        }
        let context = format!("write {at}");
        // Behind the last write all is told: the agent that starts then has nothing to complain of.
        silent += usize::from(node.live().await.is_ok());
        rests_on_old(&node, &context);
        assert!(
            matches!(node.slots().b, SlotState::Bad { .. }),
            "{context}: {:?}",
            node.slots()
        );
        let failure = reverted(&node);
        assert!(
            failure.reason.contains("app.service"),
            "{context}: {failure}"
        );
        assert!(!node.place().journal().exists(), "{context}");
        if node.machine.state().cut.is_some() {
            break;
        }
        at += 1;
    }
    assert!(silent <= 1, "{silent}");
    assert!(at > LEAST_WRITES, "{at}");
}

/// What is armed boots with any reset, so it must not stay so.
#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_reboot_does_not_stay_armed() {
    let node = ImageNode::in_window();
    node.machine.state().owner = Some("somebody is logged in".into());
    node.live().await.unwrap_err();
    rests_on_old(&node, "");
    assert_eq!(node.machine.state().told, 0);
    assert_eq!(
        node.server().story(),
        "downloading, downloaded, began, reverted"
    );
    let failure = reverted(&node);
    assert_eq!(failure.kind, FailureKind::Reboot);
    assert!(
        failure.reason.ends_with("somebody is logged in"),
        "{failure}"
    );
    assert!(matches!(node.slots().b, SlotState::Written(_)));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_reboot_although_it_is_told_to_goes_back() {
    let node = ImageNode::in_window();
    node.machine.state().stays_up = true;
    for told in 1..=3 {
        node.live().await.unwrap();
        assert_eq!(node.machine.state().told, told);
        assert!(matches!(node.slots().b, SlotState::Armed { .. }));
        node.clock.advance(TimeDelta::minutes(5));
    }
    node.live().await.unwrap_err();
    rests_on_old(&node, "");
    let failure = reverted(&node);
    assert_eq!(failure.kind, FailureKind::Reboot);
    assert!(failure.reason.contains("3 times"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_download_that_has_to_wait_is_gone_on_with() {
    let node = ImageNode::in_window();
    node.machine.state().later = Some("the line is down".into());
    for _ in 0..2 {
        let error = node.live().await.unwrap_err();
        assert!(error.to_string().ends_with("the line is down"), "{error}");
    }
    assert_eq!(node.server().story(), "downloading");
    assert!(node.place().journal().exists());
    assert_eq!(node.machine.state().log, [""; 0]);

    node.machine.state().later = None;
    node.live().await.unwrap();
    rests_on_new(&node, "");
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test(start_paused = true)]
async fn an_image_is_prepared_ahead_of_its_window_and_no_more() {
    let node = ImageNode::in_window();
    node.server().open = false;
    node.live().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    rests_on_old(&node, "");
    assert!(matches!(node.slots().b, SlotState::Written(_)));

    node.server().open = true;
    node.live().await.unwrap();
    rests_on_new(&node, "");
    assert_eq!(node.machine.state().downloads, 2, "no network is needed");
}

#[tokio::test(start_paused = true)]
async fn another_file_under_the_same_name_is_another_image() {
    let node = ImageNode::in_window();
    node.server().open = false;
    node.live().await.unwrap();
    let mut rebuilt = image("1.1");
    if let Wish::Image(wish) = &mut rebuilt.wish {
        wish.sha256 = Sha256::of(b"rebuilt");
    }
    node.server().target = Some(rebuilt);
    // It is for the node to see that this is another one: the server names it by the same digest.
    node.server().forgetful = true;
    node.server().open = true;
    node.live().await.unwrap();
    let stories: Vec<_> = {
        let server = node.server();
        let attempts = server.told.values();
        let last = attempts.map(|events| events.last().unwrap().news.name());
        last.collect()
    };
    assert_eq!(stories.len(), 2, "{stories:?}");
    assert!(
        stories.contains(&"cancelled") && stories.contains(&"finished"),
        "{stories:?}"
    );
    rests_on_new(&node, "");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_failed_is_tried_again_by_an_order_alone() {
    let node = ImageNode::in_window();
    node.machine.state().healthy = false;
    node.live().await.unwrap_err();
    node.server().told.clear();
    node.machine.state().healthy = true;
    node.clock.advance(TimeDelta::minutes(2));
    node.live().await.unwrap_err();
    rests_on_old(&node, "");
    let News::Failed { failure, .. } = last(&node).news else {
        panic!("a failure")
    };
    assert_eq!(failure.kind, FailureKind::Verify);
    assert!(
        failure.reason.contains("not tried again by itself"),
        "{failure}"
    );

    node.server().told.clear();
    let mut ordered = image("1.1");
    if let Wish::Image(wish) = &mut ordered.wish {
        wish.again = true;
    }
    node.server().target = Some(ordered);
    node.clock.advance(TimeDelta::minutes(2));
    node.live().await.unwrap();
    rests_on_new(&node, "");
}

#[tokio::test(start_paused = true)]
async fn an_order_does_not_wait_for_what_was_just_seen_through_and_counts_once() {
    let node = ImageNode::in_window();
    node.machine.state().healthy = false;
    node.server().orders = true;
    node.live().await.unwrap_err();
    rests_on_old(&node, "");
    let server = node.server();
    assert_eq!(server.told.len(), 2, "{:?}", server.told);
    for events in server.told.values() {
        let names = events.iter().map(|event| event.news.name());
        let story = names.collect::<Vec<_>>().join(", ");
        assert!(
            story.ends_with("began, reboot begun, verify begun, reverted"),
            "{story}"
        );
    }
}

/// The power failed between U1 and U2, and the machine does not reset when it is told to.
#[tokio::test]
async fn behind_a_reset_that_does_not_come_about_nothing_more_is_done() {
    let node = ImageNode::in_window();
    let machine = &node.machine;
    let record = SlotFile::open(&node.place().slots(), Arc::new(node.clock.clone())).unwrap();
    let settled = reconcile(machine, &record, machine).await.unwrap();
    let old = settled.expect("it is well");
    let what = What {
        file: Sha256::of(b"1.1"),
        profile_name: "demo".into(),
        image_id: "1.1".into(),
        raw: None,
    };
    let raw = Raw {
        sha256: Sha256::of(b"raw"),
        bytes: 30,
    };
    for event in [
        slots::Event::Begin { what, again: false },
        slots::Event::Wrote(raw),
        slots::Event::Arm { again: false },
    ] {
        record.step(Slot::B, &event, &old).unwrap();
    }
    {
        let mut state = machine.state();
        (state.running, state.b) = (Slot::B, Entry::Counted { left: 2, done: 1 });
    }
    let new = machine.look().await.unwrap();
    let failed = slots::Event::Failed {
        why: "the unit app.service is failed".into(),
        log: String::new(),
    };
    for event in [slots::Event::Booted, failed] {
        record.step(Slot::B, &event, &new).unwrap();
    }

    let settled = reconcile(machine, &record, machine).await.unwrap();
    assert_eq!(settled, None);
    let state = machine.state();
    assert_eq!(state.log, ["withdraw"]);
    assert_eq!((&state.a, &state.b), (&Entry::Plain, &Entry::Absent));
}
