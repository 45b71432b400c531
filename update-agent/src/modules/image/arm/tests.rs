use chrono::DateTime;

use super::super::slots::{BadImage, Raw, Undecided};
use super::*;
use crate::model::{ImageWish, Sha256};

fn step(again: bool) -> Step {
    Step {
        slot: Slot::B,
        wish: ImageWish {
            again,
            ..ImageWish::sample("1.1")
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
        undecided: Vec::new(),
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
fn a_trial_that_was_left_undecided_is_told_by_the_attempt_that_made_it_alone() {
    let doubt = Doubt {
        why: "the server cannot be reached".into(),
        log: "no route\n".into(),
    };
    let undecided = Undecided {
        file: Sha256::of(b"1.1"),
        times: 2,
        doubt: doubt.clone(),
    };
    let slots = Slots {
        undecided: vec![undecided],
        ..Slots::default()
    };
    let step = step(false);
    let ready = || Standing::Ready(what("1.1"));
    assert_eq!(ready().since(2, &step, &slots), ready(), "of another one");
    let told = ready().since(1, &step, &slots);
    assert_eq!(told, Standing::Undecided(doubt));
    let (failure, is_final) = told.problem(&step).expect("it does not run");
    assert!(is_final);
    assert!(
        failure.reason.ends_with(": the server cannot be reached"),
        "{failure}"
    );
    assert_eq!(failure.log, "no route\n");
    // What else became of it says more.
    let worse = Standing::failed("it panicked", "");
    assert_eq!(worse.clone().since(1, &step, &slots), worse);
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
