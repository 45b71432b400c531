//! The printed table, its properties, the record on disk, and a model of the whole machine.

mod file;
mod model;
mod reconcile;
mod table;

use chrono::{DateTime, Utc};
use proptest::prelude::*;

use super::*;
use crate::model::Sha256;

const NOON: DateTime<Utc> = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

fn slot_image(number: u8) -> SlotImage {
    SlotImage {
        file: Sha256::from([number; 32]),
        profile_name: "demo".to_owned(),
        image_id: format!("1.{number}"),
        raw: None,
    }
}

/// The unpacked content of that image.
fn raw_image(number: u8) -> RawImage {
    RawImage { sha256: Sha256::from([number; 32]), bytes: 1 << 20 }
}

fn counted(left: u8, done: u8) -> BootEntry {
    BootEntry::Counted { left, done }
}

fn boot_observation(booted: Slot, a: BootEntry, b: BootEntry) -> BootObservation {
    BootObservation {
        booted: Some(booted),
        boot_id: "now".to_owned(),
        image: None,
        a,
        b,
        foreign: Vec::new(),
    }
}

fn armed(boot_id: &str) -> SlotState {
    SlotState::Armed { image: slot_image(2), boot_id: boot_id.to_owned() }
}

fn trial(is_healthy: bool) -> SlotState {
    SlotState::Trial {
        image: slot_image(2),
        boots: vec!["then".to_owned()],
        passed: is_healthy,
        undecided_end: None,
    }
}

/// On trial, with an undecided end in an earlier boot.
fn undecided_trial() -> SlotState {
    SlotState::Trial {
        image: slot_image(2),
        boots: vec!["then".to_owned()],
        passed: false,
        undecided_end: Some(undecided_end()),
    }
}

fn undecided_end() -> TrialEnd {
    TrialEnd { reason: "the server cannot be reached".to_owned(), log: "no route".to_owned() }
}

fn bad() -> SlotState {
    SlotState::Bad {
        image: slot_image(2),
        reason: "it panicked".to_owned(),
        log: "Oops".to_owned(),
    }
}

/// A record in which slot A is good and the last good one.
fn with_good_slot_a(b: SlotState) -> Slots {
    Slots {
        a: SlotState::Good(slot_image(1)),
        b,
        last_good: Some(Slot::A),
        bad: Vec::new(),
        undecided: Vec::new(),
        version_floors: Vec::new(),
        sequence: 6,
    }
}

/// One-word label of a state.
fn state_label(state: &SlotState) -> &'static str {
    match state {
        SlotState::Trial { passed: true, .. } => "passed",
        SlotState::Trial { undecided_end: Some(_), .. } => "undecided",
        state => state.name(),
    }
}

fn any_slot() -> impl Strategy<Value = Slot> {
    prop_oneof![Just(Slot::A), Just(Slot::B)]
}

fn any_entry() -> impl Strategy<Value = BootEntry> {
    prop_oneof![
        Just(BootEntry::Absent),
        (0..4u8, 0..4u8).prop_map(|(left, done)| counted(left, done)),
        Just(BootEntry::Plain),
        Just(BootEntry::OneShot),
        Just(BootEntry::Invalid("two of them".to_owned())),
    ]
}

fn any_boot() -> impl Strategy<Value = String> {
    prop_oneof![Just("now".to_owned()), Just("then".to_owned())]
}

fn any_observation() -> impl Strategy<Value = BootObservation> {
    let booted = proptest::option::weighted(0.9, any_slot());
    let foreign = prop_oneof![Just(Vec::new()), Just(vec!["memtest.conf".to_owned()])];
    (booted, any_boot(), any_entry(), any_entry(), foreign).prop_map(
        |(booted, boot_id, a, b, foreign)| BootObservation {
            booted,
            boot_id,
            image: None,
            a,
            b,
            foreign,
        },
    )
}

fn any_image() -> impl Strategy<Value = SlotImage> {
    (1..4u8).prop_map(slot_image)
}

fn any_state() -> impl Strategy<Value = SlotState> {
    prop_oneof![
        Just(SlotState::Empty),
        any_image().prop_map(SlotState::Writing),
        any_image().prop_map(SlotState::Written),
        (any_image(), any_boot()).prop_map(|(image, boot_id)| SlotState::Armed { image, boot_id }),
        (any_image(), any_boot(), 0..3u8).prop_map(|(image, boot, come_to)| {
            SlotState::Trial {
                image,
                boots: vec![boot],
                passed: come_to == 1,
                undecided_end: (come_to == 2).then(undecided_end),
            }
        }),
        any_image().prop_map(SlotState::Good),
        any_image().prop_map(|image| SlotState::Bad {
            image,
            reason: "it panicked".to_owned(),
            log: String::new(),
        }),
    ]
}

/// Any valid record: the last good slot is good.
fn any_slots() -> impl Strategy<Value = Slots> {
    let bad = proptest::collection::btree_set(1..4u8, 0..3);
    (any_state(), any_state(), any_slot(), any::<bool>(), bad).prop_map(
        |(a, b, slot, is_known, bad)| {
            let mut slots = Slots { a, b, ..Slots::default() };
            let is_good = matches!(slots.state(slot), SlotState::Good(_));
            slots.last_good = (is_good && is_known).then_some(slot);
            for number in bad {
                slots.remember_bad(&slot_image(number), "it panicked", NOON);
            }
            slots
        },
    )
}
