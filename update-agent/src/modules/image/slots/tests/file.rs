//! The record on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_kit::clock::TestClock;
use serde_json::Value;

use super::*;

fn record_path() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("slots.json");
    (folder, path)
}

fn open(path: &Path) -> Result<SlotFile, Failure> {
    SlotFile::open(path, Arc::new(TestClock::new(NOON)))
}

fn first_start() -> BootObservation {
    boot_observation(Slot::A, BootEntry::Plain, BootEntry::Absent)
}

fn begin() -> SlotEvent {
    SlotEvent::Begin { image: slot_image(2), allow_retry: false }
}

#[test]
fn each_step_is_stored_on_disk() {
    let (_folder, path) = record_path();
    let file = open(&path).unwrap();
    assert_eq!(file.get(), Slots::default());
    assert!(!path.exists(), "reading changes nothing");
    assert!(file.reconcile(&first_start()).unwrap().is_empty());
    let slots = file.step(Slot::B, &begin(), &first_start()).unwrap();
    assert_eq!(slots.b, SlotState::Writing(slot_image(2)));
    assert_eq!(slots, file.get());
    assert_eq!(open(&path).unwrap().get(), slots);
}

#[test]
fn every_state_is_read_as_it_was_written() {
    let (_folder, path) = record_path();
    let states = [
        SlotState::Empty,
        SlotState::Writing(slot_image(2)),
        SlotState::Written(SlotImage { raw: Some(raw_image(2)), ..slot_image(2) }),
        armed("then"),
        trial(true),
        undecided_trial(),
        SlotState::Good(slot_image(2)),
        bad(),
    ];
    for state in states {
        let mut slots = with_good_slot_a(state);
        slots.remember_bad(&slot_image(3), "it panicked", NOON);
        slots.count_undecided(&slot_image(2).file, &undecided_end());
        fs::write(&path, record::encode_slots(&slots).unwrap()).unwrap();
        assert_eq!(open(&path).unwrap().get(), slots);
    }
}

#[test]
fn a_record_without_undecided_images_omits_their_fields() {
    let (_folder, path) = record_path();
    let slots = with_good_slot_a(trial(false));
    let written = record::encode_slots(&slots).unwrap();
    let text = String::from_utf8(written.clone()).unwrap();
    assert!(!text.contains("undecided"), "{text}");
    fs::write(&path, written).unwrap();
    assert_eq!(open(&path).unwrap().get(), slots);
}

#[test]
fn an_unchanged_record_and_a_refused_step_are_not_written() {
    let (_folder, path) = record_path();
    let file = open(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    fs::remove_file(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    file.step(Slot::B, &SlotEvent::NotTried, &first_start()).unwrap();
    let refused = file.step(Slot::A, &begin(), &first_start()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Plan);
    assert_eq!(refused.reason, "to write an image is not possible: the slot root-a is what runs");
    assert!(!file.forget_bad(&slot_image(2).file).unwrap());
    assert!(!path.exists());
}

#[test]
fn an_invalid_record_is_reported_and_not_overwritten() {
    let (_folder, path) = record_path();
    let file = open(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    let sound = fs::read_to_string(&path).unwrap();
    let newer = sound.replace("\"format\":1", "\"format\":2,\"more\":true");
    let unknown = sound.replace("\"sequence\"", "\"sequel\"");
    let no_good = sound.replace("\"last_good\"", "\"best\"");
    let state = sound.replacen("\"good\"", "\"better\"", 1);
    let other_good = sound.replace("\"last_good\":\"a\"", "\"last_good\":\"b\"");
    let half = sound[..sound.len() / 2].to_owned();
    for (bad, reason) in [
        (newer, "another version of the agent wrote it"),
        (unknown, "missing field `sequence`"),
        (no_good, "missing field `last_good`"),
        (state, "unknown variant `better`"),
        (other_good, "names the slot root-b as the last good one"),
        (half, "EOF"),
        ("\u{0}".repeat(64), "expected value"),
        (String::new(), "EOF"),
    ] {
        assert_ne!(bad, sound);
        fs::write(&path, &bad).unwrap();
        let failure = open(&path).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let message = failure.reason;
        assert!(message.contains(reason) && message.contains("slots.json"), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), bad);
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let failure = open(&path).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage, "it cannot be read");
}

/// An older agent reads the record that a newer one wrote during its trial.
#[test]
fn unknown_fields_of_a_newer_agent_are_ignored_and_lost_with_the_next_step() {
    let (_folder, path) = record_path();
    let file = open(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    let mut slots = with_good_slot_a(undecided_trial());
    if let SlotState::Trial { image, .. } = &mut slots.b {
        image.raw = Some(raw_image(2));
    }
    slots.remember_bad(&slot_image(3), "it panicked", NOON);
    slots.count_undecided(&slot_image(2).file, &undecided_end());
    let written = record::encode_slots(&slots).unwrap();
    let mut newer: Value = serde_json::from_slice(&written).unwrap();
    let objects = [
        "",
        "/slots",
        "/slots/a/good",
        "/slots/b/trial",
        "/slots/b/trial/image/raw",
        "/slots/b/trial/undecided_end",
        "/slots/bad/0",
        "/slots/undecided/0",
        "/slots/undecided/0/latest_end",
    ];
    for object in objects {
        let object = newer.pointer_mut(object).and_then(Value::as_object_mut);
        let added = object.expect("an object").insert("more".into(), 1.into());
        assert_eq!(added, None);
    }
    fs::write(&path, newer.to_string()).unwrap();

    let older = open(&path).unwrap();

    assert_eq!(older.get(), slots);
    assert!(older.forget_bad(&slot_image(3).file).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("more"), "{text}");
}

#[test]
fn a_record_that_cannot_be_written_stops_the_agent() {
    let file = open(Path::new("/proc/nowhere/slots.json")).unwrap();
    let failure = file.reconcile(&first_start()).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert_eq!(file.get(), Slots::default());
}

#[test]
fn an_image_that_failed_is_remembered_with_its_time_until_it_is_forgotten() {
    let (_folder, path) = record_path();
    let clock = TestClock::new(NOON);
    let file = SlotFile::open(&path, Arc::new(clock.clone())).unwrap();
    file.reconcile(&first_start()).unwrap();
    let idle = first_start();
    let on_trial = boot_observation(Slot::B, BootEntry::Plain, counted(2, 1));
    for event in [begin(), SlotEvent::Wrote(raw_image(2)), SlotEvent::Arm { allow_retry: false }] {
        file.step(Slot::B, &event, &idle).unwrap();
    }
    file.reconcile(&on_trial).unwrap();
    clock.advance(TimeDelta::minutes(10));
    let failed =
        SlotEvent::Failed { reason: "unit web.service failed".to_owned(), log: String::new() };
    file.step(Slot::B, &failed, &on_trial).unwrap();

    let reopened = open(&path).unwrap();
    let slots = reopened.get();
    let bad_image = slots.find_bad(&slot_image(2).file).expect("it is remembered");
    assert_eq!(bad_image.image_id, "1.2");
    assert_eq!(bad_image.at, NOON + TimeDelta::minutes(10));
    reopened.step(Slot::B, &begin(), &idle).unwrap_err();
    assert!(reopened.forget_bad(&slot_image(2).file).unwrap());
    assert!(!reopened.forget_bad(&slot_image(2).file).unwrap());
    assert!(open(&path).unwrap().get().bad.is_empty());
    reopened.step(Slot::B, &begin(), &idle).unwrap();
}
