use chrono::DateTime;

use super::super::slots::{BadImage, Raw};
use super::*;
use crate::model::{ImageRules, ImageWish, Sha256};

fn step(again: bool) -> Step {
    Step {
        slot: Slot::B,
        wish: ImageWish {
            os_id: "os-2".into(),
            name: "Demo 1.1".into(),
            profile_name: "demo".into(),
            image_id: "1.1".into(),
            architecture: "x86_64".into(),
            url: "https://images.example/demo-1.1.raw.zst".into(),
            sha256: Sha256::of(b"1.1"),
            signatures: Vec::new(),
            rules: ImageRules::default(),
            again,
        },
        room: None,
    }
}

fn what(image_id: &str) -> What {
    What {
        file: Sha256::of(image_id.as_bytes()),
        profile_name: "demo".into(),
        image_id: image_id.into(),
        raw: Some(Raw {
            sha256: Sha256::of(b"raw"),
            bytes: 40,
        }),
    }
}

fn armed(boot_id: &str) -> SlotState {
    SlotState::Armed {
        what: what("1.1"),
        boot_id: boot_id.into(),
    }
}

/// How far 1.1 has come, which failed here before, on a node that runs 1.0 from the first slot.
fn standing(again: bool, state: SlotState, entry: Entry) -> Standing {
    let slots = Slots {
        a: SlotState::Good(what("1.0")),
        b: state,
        last_good: Some(Slot::A),
        bad: vec![BadImage {
            file: Sha256::of(b"1.1"),
            image_id: "1.1".into(),
            why: "it hung".into(),
            at: DateTime::UNIX_EPOCH,
        }],
        sequence: 7,
    };
    let seen = Seen {
        booted: Some(Slot::A),
        boot_id: "now".into(),
        image: None,
        a: Entry::Plain,
        b: entry,
        foreign: Vec::new(),
    };
    Standing::of(&step(again), &slots, &seen)
}

#[test]
fn an_earlier_failure_is_not_told_of_an_image_that_was_ordered_again() {
    let half = What {
        raw: None,
        ..what("1.1")
    };
    let unfinished = [
        SlotState::Empty,
        SlotState::Writing(half.clone()),
        SlotState::Written(half),
        SlotState::Written(what("1.2")),
        armed("then"),
    ];
    for state in unfinished {
        let ordered = standing(true, state.clone(), Entry::Absent);
        assert!(
            matches!(&ordered, Standing::Astray(why) if why.ends_with(state.words())),
            "{ordered:?}"
        );
        let by_itself = standing(false, state, Entry::Absent);
        assert_eq!(by_itself, Standing::failed("it hung", ""));
    }
}

#[test]
fn an_image_that_was_ordered_again_is_armed_and_may_fail_again() {
    let ordered = |state, entry| standing(true, state, entry);
    let written = SlotState::Written(what("1.1"));
    assert_eq!(
        ordered(written, Entry::Absent),
        Standing::Ready(what("1.1"))
    );
    assert_eq!(
        ordered(armed("now"), Entry::Absent),
        Standing::HalfArmed(what("1.1"))
    );
    assert_eq!(ordered(armed("now"), Entry::Once), Standing::Armed);
    let bad = SlotState::Bad {
        what: what("1.1"),
        why: "it panicked".into(),
        log: "Oops\n".into(),
    };
    assert_eq!(
        ordered(bad, Entry::Absent),
        Standing::failed("it panicked", "Oops\n")
    );
}
