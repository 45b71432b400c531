use super::*;
use crate::facts::SlotFact;
use crate::model::{Failure, ImageChange, Sha256};
use crate::modules::image::slots::BadImage;

#[test]
fn leave_that_ended_on_its_way_is_no_leave() {
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let answer = |before, now| pb::BeginResponse {
        answer: Some(pb::begin_response::Answer::Granted(pb::Granted { before })),
        now,
    };
    let granted = Leave::Granted {
        before: DateTime::from_timestamp(10, 0),
    };
    assert_eq!(leave(answer(at(10), at(9))).unwrap(), granted);
    assert!(matches!(
        leave(answer(at(10), at(10))).unwrap(),
        Leave::Refused { .. }
    ));
    assert!(leave(pb::BeginResponse::default()).is_err());
}

#[test]
fn a_wish_that_is_not_known_is_told_from_none() {
    let fetch = |target| pb::Decision {
        act: Some(pb::decision::Act::Fetch(pb::Fetch { target })),
        ..pb::Decision::default()
    };
    let unknown = pb::Target {
        digest: "d".into(),
        wish: None,
    };
    let Act::Fetch(target) = decision(fetch(Some(unknown))).unwrap().act else {
        panic!("a fetch")
    };
    assert_eq!(target.wish, Wish::Unknown);
    assert!(decision(fetch(None)).is_err());
    assert!(decision(fetch(Some(pb::Target::default()))).is_err());
    assert_eq!(decision(pb::Decision::default()).unwrap().act, Act::Idle);
}

#[test]
fn kernels_are_wishes_that_this_agent_does_not_know() {
    let told = pb::Target {
        digest: "d".into(),
        wish: Some(pb::target::Wish::Kernel(pb::Kernel::default())),
    };
    assert_eq!(target(Some(told)).unwrap().wish, Wish::Unknown);
}

#[test]
fn each_end_of_an_attempt_tells_which_image_then_ran() {
    let failure = || Failure::new(FailureKind::Verify, "it hung");
    let ended = |booted: Option<&str>| {
        let booted = booted.map(str::to_owned);
        let results = Vec::new();
        [
            News::Finished {
                results: results.clone(),
                booted: booted.clone(),
            },
            News::Failed {
                failure: failure(),
                results,
                booted: booted.clone(),
            },
            News::Reverted {
                failure: failure(),
                booted,
            },
        ]
    };
    for (booted, expected) in [(Some("1.0"), "1.0"), (None, "")] {
        for news in ended(booted) {
            let said = event(&Event {
                sequence: 7,
                at: DateTime::UNIX_EPOCH,
                boot_id: "boot-1".into(),
                news,
                account: None,
            });
            let (told, why) = match said.news.unwrap() {
                pb::event::News::Finished(end) => (end.booted_image_id, None),
                pb::event::News::Failed(end) => (end.booted_image_id, Some(end.reason)),
                pb::event::News::Reverted(end) => (end.booted_image_id, Some(end.reason)),
                other => panic!("{other:?}"),
            };
            assert_eq!(told, expected);
            assert!(why.is_none_or(|why| why == "it hung"));
        }
    }
}

#[test]
fn a_plan_tells_which_image_is_to_follow_which() {
    let mut plan = Plan {
        reboot_expected: true,
        ..Plan::default()
    };
    assert_eq!(plan_message(&plan).image, None);
    plan.image = Some(ImageChange {
        profile_name: "edge".into(),
        before: "1.0".into(),
        wanted: "1.1".into(),
    });
    let told = pb::ImageChange {
        profile_name: "edge".into(),
        before: "1.0".into(),
        wanted: "1.1".into(),
    };
    assert_eq!(plan_message(&plan).image, Some(told));
}

#[test]
fn what_failed_here_and_what_lies_in_the_slots_is_told_and_changes_the_digest() {
    let mut facts = Facts::default();
    let before = facts_digest(&facts);
    let file = Sha256::of(b"1.1");
    facts.bad_images.push(BadImage {
        file,
        image_id: "1.1".into(),
        why: "it hung".into(),
        at: DateTime::UNIX_EPOCH,
    });
    let with_bad = facts_digest(&facts);
    facts.slots.push(SlotFact {
        name: "root-a".into(),
        state: "good".into(),
        image_id: "1.0".into(),
    });
    assert_ne!(with_bad, before);
    assert_ne!(facts_digest(&facts), with_bad);

    let told = facts_message(&facts);

    let bad = pb::BadImage {
        sha256: file.to_string(),
        image_id: "1.1".into(),
        why: "it hung".into(),
    };
    assert_eq!(told.bad_images, [bad]);
    let slot = pb::ImageSlot {
        name: "root-a".into(),
        state: "good".into(),
        image_id: "1.0".into(),
    };
    assert_eq!(told.slots, [slot]);
    // When it failed is the node's own clock's matter: the digest must not turn on that.
    facts.bad_images[0].at = DateTime::from_timestamp(9, 0).unwrap();
    assert_eq!(facts_message(&facts), told);
}

#[test]
fn leave_ahead_has_an_end_and_so_has_each_of_its_windows() {
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    let told = |expires| pb::Grant {
        target_digest: "d".into(),
        windows: vec![
            pb::Window {
                start: at(1),
                end: at(2),
            },
            pb::Window {
                start: at(3),
                end: None,
            },
        ],
        expires,
    };
    let heard = grant(told(at(9))).unwrap();
    assert_eq!(heard.windows.len(), 1);
    assert_eq!(heard.windows[0].end.timestamp(), 2);
    assert_eq!(heard.expires.timestamp(), 9);
    assert_eq!(grant(told(None)), None);
}

#[test]
fn a_poll_is_never_wanted_at_once() {
    let soon = answer(pb::PollResponse::default()).unwrap();
    assert_eq!(soon.next_poll, SHORTEST);
    let later = pb::PollResponse {
        next_poll_millis: 30_000,
        ..pb::PollResponse::default()
    };
    assert_eq!(answer(later).unwrap().next_poll, Duration::from_secs(30));
}

#[test]
fn the_digest_of_the_facts_changes_with_them() {
    let mut facts = Facts::default();
    let before = facts_digest(&facts);
    assert_eq!(facts_digest(&facts), before);
    facts.audit = "x".into();
    assert_ne!(facts_digest(&facts), before);
}
