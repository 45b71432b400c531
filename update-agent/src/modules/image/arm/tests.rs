use chrono::DateTime;

use super::super::slots::{BadImage, RawImage, UndecidedImage};
use super::*;
use crate::model::{ImageSpec, Sha256};

fn step(allow_retry: bool) -> ImageStep {
    ImageStep {
        slot: Slot::B,
        spec: ImageSpec { allow_retry, ..ImageSpec::sample("1.1") },
        slot_capacity: None,
    }
}

fn slot_image(image_id: &str) -> SlotImage {
    SlotImage {
        file: Sha256::hash(image_id.as_bytes()),
        profile_name: "demo".into(),
        image_id: image_id.into(),
        raw: Some(RawImage { sha256: Sha256::hash(b"raw"), bytes: 40 }),
    }
}

fn armed(boot_id: &str) -> SlotState {
    SlotState::Armed { image: slot_image("1.1"), boot_id: boot_id.into() }
}

/// The stage of image 1.1, which failed here before, on a node that runs 1.0 from slot A.
fn stage(allow_retry: bool, state: SlotState, entry: BootEntry) -> ImageStage {
    let slots = Slots {
        a: SlotState::Good(slot_image("1.0")),
        b: state,
        last_good: Some(Slot::A),
        bad: vec![BadImage {
            file: Sha256::hash(b"1.1"),
            image_id: "1.1".into(),
            reason: "it hung".into(),
            at: DateTime::UNIX_EPOCH,
        }],
        undecided: Vec::new(),
        version_floors: Vec::new(),
        sequence: 7,
    };
    let observation = BootObservation {
        booted: Some(Slot::A),
        boot_id: "now".into(),
        image: None,
        a: BootEntry::Plain,
        b: entry,
        foreign: Vec::new(),
    };
    ImageStage::determine(&step(allow_retry), &slots, &observation)
}

#[test]
fn an_ordered_retry_does_not_report_an_earlier_failure() {
    let half = SlotImage { raw: None, ..slot_image("1.1") };
    let unfinished = [
        SlotState::Empty,
        SlotState::Writing(half.clone()),
        SlotState::Written(half),
        SlotState::Written(slot_image("1.2")),
        armed("then"),
    ];
    for state in unfinished {
        let ordered = stage(true, state.clone(), BootEntry::Absent);
        assert!(
            matches!(&ordered, ImageStage::Unexpected(reason) if reason.ends_with(state.description())),
            "{ordered:?}"
        );
        let by_itself = stage(false, state, BootEntry::Absent);
        assert_eq!(by_itself, ImageStage::failed("it hung", ""));
    }
}

#[test]
fn an_undecided_trial_is_reported_only_by_its_own_attempt() {
    let latest_end =
        TrialEnd { reason: "the server cannot be reached".into(), log: "no route\n".into() };
    let undecided =
        UndecidedImage { file: Sha256::hash(b"1.1"), times: 2, latest_end: latest_end.clone() };
    let slots = Slots { undecided: vec![undecided], ..Slots::default() };
    let step = step(false);
    let ready = || ImageStage::Ready(slot_image("1.1"));
    assert_eq!(ready().with_undecided_since(2, &step, &slots), ready(), "of another attempt");
    let reported = ready().with_undecided_since(1, &step, &slots);
    assert_eq!(reported, ImageStage::Undecided(latest_end));
    let (failure, is_final) = reported.problem(&step).expect("it does not run");
    assert!(is_final);
    assert!(failure.reason.ends_with(": the server cannot be reached"), "{failure}");
    assert_eq!(failure.log, "no route\n");
    // Any other outcome has precedence.
    let worse = ImageStage::failed("it panicked", "");
    assert_eq!(worse.clone().with_undecided_since(1, &step, &slots), worse);
}

#[test]
fn an_image_with_an_ordered_retry_is_armed_and_may_fail_again() {
    let ordered = |state, entry| stage(true, state, entry);
    let written = SlotState::Written(slot_image("1.1"));
    assert_eq!(ordered(written, BootEntry::Absent), ImageStage::Ready(slot_image("1.1")));
    assert_eq!(ordered(armed("now"), BootEntry::Absent), ImageStage::HalfArmed(slot_image("1.1")));
    assert_eq!(ordered(armed("now"), BootEntry::OneShot), ImageStage::Armed);
    let bad = SlotState::Bad {
        image: slot_image("1.1"),
        reason: "it panicked".into(),
        log: "Oops\n".into(),
    };
    assert_eq!(ordered(bad, BootEntry::Absent), ImageStage::failed("it panicked", "Oops\n"));
}
