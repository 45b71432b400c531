//! The table printed, its properties, the record on the disk, and a model of the whole machine.

mod file;
mod model;
mod reconcile;
mod table;

use chrono::{DateTime, Utc};
use proptest::prelude::*;

use super::*;
use crate::model::Sha256;

const NOON: DateTime<Utc> = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

/// The image with this number.
fn image(number: u8) -> What {
    What {
        file: Sha256::from([number; 32]),
        profile_name: "demo".to_owned(),
        image_id: format!("1.{number}"),
        raw: None,
    }
}

/// What is in its file.
fn raw(number: u8) -> Raw {
    Raw {
        sha256: Sha256::from([number; 32]),
        bytes: 1 << 20,
    }
}

fn counted(left: u8, done: u8) -> Entry {
    Entry::Counted { left, done }
}

fn seen(booted: Slot, a: Entry, b: Entry) -> Seen {
    Seen {
        booted: Some(booted),
        boot_id: "now".to_owned(),
        image: None,
        a,
        b,
        foreign: Vec::new(),
    }
}

fn armed(boot_id: &str) -> SlotState {
    SlotState::Armed {
        what: image(2),
        boot_id: boot_id.to_owned(),
    }
}

fn trial(passed: bool) -> SlotState {
    SlotState::Trial {
        what: image(2),
        boots: vec!["then".to_owned()],
        passed,
        doubt: None,
    }
}

/// On trial, and left in an earlier boot without a word against it.
fn doubted() -> SlotState {
    SlotState::Trial {
        what: image(2),
        boots: vec!["then".to_owned()],
        passed: false,
        doubt: Some(doubt()),
    }
}

fn doubt() -> Doubt {
    Doubt {
        why: "the server cannot be reached".to_owned(),
        log: "no route".to_owned(),
    }
}

fn bad() -> SlotState {
    SlotState::Bad {
        what: image(2),
        why: "it panicked".to_owned(),
        log: "Oops".to_owned(),
    }
}

/// Slot a is good, and the last good one.
fn beside_a_good_one(b: SlotState) -> Slots {
    Slots {
        a: SlotState::Good(image(1)),
        b,
        last_good: Some(Slot::A),
        bad: Vec::new(),
        undecided: Vec::new(),
        sequence: 6,
    }
}

/// A state in one word.
fn shown(state: &SlotState) -> &'static str {
    match state {
        SlotState::Trial { passed: true, .. } => "passed",
        SlotState::Trial { doubt: Some(_), .. } => "doubted",
        state => state.name(),
    }
}

fn any_slot() -> impl Strategy<Value = Slot> {
    prop_oneof![Just(Slot::A), Just(Slot::B)]
}

fn any_entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        Just(Entry::Absent),
        (0..4u8, 0..4u8).prop_map(|(left, done)| counted(left, done)),
        Just(Entry::Plain),
        Just(Entry::Once),
        Just(Entry::Strange("two of them".to_owned())),
    ]
}

fn any_boot() -> impl Strategy<Value = String> {
    prop_oneof![Just("now".to_owned()), Just("then".to_owned())]
}

fn any_seen() -> impl Strategy<Value = Seen> {
    let booted = proptest::option::weighted(0.9, any_slot());
    let foreign = prop_oneof![Just(Vec::new()), Just(vec!["memtest.conf".to_owned()])];
    (booted, any_boot(), any_entry(), any_entry(), foreign).prop_map(
        |(booted, boot_id, a, b, foreign)| Seen {
            booted,
            boot_id,
            image: None,
            a,
            b,
            foreign,
        },
    )
}

fn any_what() -> impl Strategy<Value = What> {
    (1..4u8).prop_map(image)
}

fn any_state() -> impl Strategy<Value = SlotState> {
    prop_oneof![
        Just(SlotState::Empty),
        any_what().prop_map(SlotState::Writing),
        any_what().prop_map(SlotState::Written),
        (any_what(), any_boot()).prop_map(|(what, boot_id)| SlotState::Armed { what, boot_id }),
        (any_what(), any_boot(), 0..3u8).prop_map(|(what, boot, come_to)| {
            SlotState::Trial {
                what,
                boots: vec![boot],
                passed: come_to == 1,
                doubt: (come_to == 2).then(doubt),
            }
        }),
        any_what().prop_map(SlotState::Good),
        any_what().prop_map(|what| SlotState::Bad {
            what,
            why: "it panicked".to_owned(),
            log: String::new(),
        }),
    ]
}

/// Any record that could be read: the last good slot is good.
fn any_slots() -> impl Strategy<Value = Slots> {
    let bad = proptest::collection::btree_set(1..4u8, 0..3);
    (any_state(), any_state(), any_slot(), any::<bool>(), bad).prop_map(
        |(a, b, slot, is_known, bad)| {
            let mut slots = Slots {
                a,
                b,
                ..Slots::default()
            };
            let is_good = matches!(slots.state(slot), SlotState::Good(_));
            slots.last_good = (is_good && is_known).then_some(slot);
            for number in bad {
                slots.brand(&image(number), "it panicked", NOON);
            }
            slots
        },
    )
}
