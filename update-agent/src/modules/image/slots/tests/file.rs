//! The record on the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_kit::clock::TestClock;
use serde_json::Value;

use super::*;

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("slots.json");
    (folder, path)
}

fn open(path: &Path) -> Result<SlotFile, Failure> {
    SlotFile::open(path, Arc::new(TestClock::new(NOON)))
}

fn first_start() -> Seen {
    seen(Slot::A, Entry::Plain, Entry::Absent)
}

fn begin() -> Event {
    Event::Begin {
        what: image(2),
        again: false,
    }
}

#[test]
fn what_was_said_is_on_the_disk() {
    let (_folder, path) = place();
    let file = open(&path).unwrap();
    assert_eq!(file.get(), Slots::default());
    assert!(!path.exists(), "to look changes nothing");
    assert!(file.reconcile(&first_start()).unwrap().is_empty());
    let slots = file.step(Slot::B, &begin(), &first_start()).unwrap();
    assert_eq!(slots.b, SlotState::Writing(image(2)));
    assert_eq!(slots, file.get());
    assert_eq!(open(&path).unwrap().get(), slots);
}

#[test]
fn every_state_is_read_as_it_was_written() {
    let (_folder, path) = place();
    let states = [
        SlotState::Empty,
        SlotState::Writing(image(2)),
        SlotState::Written(What {
            raw: Some(raw(2)),
            ..image(2)
        }),
        armed("then"),
        trial(true),
        doubted(),
        SlotState::Good(image(2)),
        bad(),
    ];
    for state in states {
        let mut slots = beside_a_good_one(state);
        slots.brand(&image(3), "it panicked", NOON);
        slots.doubt(&image(2).file, &doubt());
        fs::write(&path, record::write(&slots).unwrap()).unwrap();
        assert_eq!(open(&path).unwrap().get(), slots);
    }
}

#[test]
fn a_record_without_doubts_is_one_that_knows_none() {
    let (_folder, path) = place();
    let slots = beside_a_good_one(trial(false));
    let written = record::write(&slots).unwrap();
    let text = String::from_utf8(written.clone()).unwrap();
    assert!(
        !text.contains("doubt") && !text.contains("undecided"),
        "{text}"
    );
    fs::write(&path, written).unwrap();
    assert_eq!(open(&path).unwrap().get(), slots);
}

#[test]
fn what_says_nothing_new_is_not_written_and_neither_is_what_is_refused() {
    let (_folder, path) = place();
    let file = open(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    fs::remove_file(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    file.step(Slot::B, &Event::NotTried, &first_start())
        .unwrap();
    let refused = file.step(Slot::A, &begin(), &first_start()).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Plan);
    assert_eq!(
        refused.reason,
        "to write an image is not possible: the slot root-a is what runs"
    );
    assert!(!file.forget_bad(&image(2).file).unwrap());
    assert!(!path.exists());
}

#[test]
fn a_record_that_makes_no_sense_is_told_and_left_as_it_is() {
    let (_folder, path) = place();
    let file = open(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    let sound = fs::read_to_string(&path).unwrap();
    let newer = sound.replace("\"format\":1", "\"format\":2,\"more\":true");
    let unknown = sound.replace("\"sequence\"", "\"sequel\"");
    let no_good = sound.replace("\"last_good\"", "\"best\"");
    let state = sound.replacen("\"good\"", "\"better\"", 1);
    let other_good = sound.replace("\"last_good\":\"a\"", "\"last_good\":\"b\"");
    let half = sound[..sound.len() / 2].to_owned();
    for (bad, why) in [
        (newer, "another version of the agent wrote it"),
        (unknown, "missing field `sequence`"),
        (no_good, "missing field `last_good`"),
        (state, "unknown variant `better`"),
        (other_good, "calls the slot root-b the last good one"),
        (half, "EOF"),
        ("\u{0}".repeat(64), "expected value"),
        (String::new(), "EOF"),
    ] {
        assert_ne!(bad, sound);
        fs::write(&path, &bad).unwrap();
        let failure = open(&path).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        let said = failure.reason;
        assert!(said.contains(why) && said.contains("slots.json"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), bad);
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let failure = open(&path).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage, "it cannot be read");
}

/// As an older agent reads what a newer one wrote on its trial.
#[test]
fn what_a_newer_agent_added_is_read_past_and_gone_with_the_next_step() {
    let (_folder, path) = place();
    let file = open(&path).unwrap();
    file.reconcile(&first_start()).unwrap();
    let mut slots = beside_a_good_one(doubted());
    if let SlotState::Trial { what, .. } = &mut slots.b {
        what.raw = Some(raw(2));
    }
    slots.brand(&image(3), "it panicked", NOON);
    slots.doubt(&image(2).file, &doubt());
    let written = record::write(&slots).unwrap();
    let mut newer: Value = serde_json::from_slice(&written).unwrap();
    let objects = [
        "",
        "/slots",
        "/slots/a/good",
        "/slots/b/trial",
        "/slots/b/trial/what/raw",
        "/slots/b/trial/doubt",
        "/slots/bad/0",
        "/slots/undecided/0",
        "/slots/undecided/0/doubt",
    ];
    for object in objects {
        let object = newer.pointer_mut(object).and_then(Value::as_object_mut);
        let added = object.expect("an object").insert("more".into(), 1.into());
        assert_eq!(added, None);
    }
    fs::write(&path, newer.to_string()).unwrap();

    let older = open(&path).unwrap();

    assert_eq!(older.get(), slots);
    assert!(older.forget_bad(&image(3).file).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("more"), "{text}");
}

#[test]
fn a_record_that_cannot_be_written_is_not_gone_on_with() {
    let file = open(Path::new("/proc/nowhere/slots.json")).unwrap();
    let failure = file.reconcile(&first_start()).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Storage);
    assert_eq!(file.get(), Slots::default());
}

#[test]
fn an_image_that_failed_is_remembered_with_its_time_until_it_is_forgotten() {
    let (_folder, path) = place();
    let clock = TestClock::new(NOON);
    let file = SlotFile::open(&path, Arc::new(clock.clone())).unwrap();
    file.reconcile(&first_start()).unwrap();
    let idle = first_start();
    let on_trial = seen(Slot::B, Entry::Plain, counted(2, 1));
    for event in [begin(), Event::Wrote(raw(2)), Event::Arm { again: false }] {
        file.step(Slot::B, &event, &idle).unwrap();
    }
    file.reconcile(&on_trial).unwrap();
    clock.advance(TimeDelta::minutes(10));
    let failed = Event::Failed {
        why: "unit web.service failed".to_owned(),
        log: String::new(),
    };
    file.step(Slot::B, &failed, &on_trial).unwrap();

    let again = open(&path).unwrap();
    let slots = again.get();
    let known = slots.known_bad(&image(2).file).expect("it is remembered");
    assert_eq!(known.image_id, "1.2");
    assert_eq!(known.at, NOON + TimeDelta::minutes(10));
    again.step(Slot::B, &begin(), &idle).unwrap_err();
    assert!(again.forget_bad(&image(2).file).unwrap());
    assert!(!again.forget_bad(&image(2).file).unwrap());
    assert!(open(&path).unwrap().get().bad.is_empty());
    again.step(Slot::B, &begin(), &idle).unwrap();
}
