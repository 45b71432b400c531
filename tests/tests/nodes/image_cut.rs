//! Power cuts at every write of a whole image update, and between flushes with loss of unflushed data.
//!
//! An emulated machine with two slots is updated by a real server, from the first start to the
//! blessed image, while all writes to its disk are recorded. For each cut the test then rebuilds the
//! disk as the cut leaves it, and reads it as the firmware and the boot loader do: they must start
//! one complete release. The boot loader is systemd-boot, or GRUB with RAUC.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_VM` | must be `all`, otherwise the tests are skipped |
//! | `EVENKEEL_IMAGE_CUT_SAMPLES` | number of cuts with loss after each flush |
//! | `EVENKEEL_IMAGE_CUT_SEED` | seed of the cuts with loss |

use std::time::Instant;

use evenkeel_tests::cut::{
    BootVerdict, BundleRecording, CutStatistics, DiskJudge, NEW_VERSION, OLD_VERSION, Recording,
    UpdateRecording, cut_after, cut_everywhere,
};
use evenkeel_tests::history::{number, print_progress};
use evenkeel_tests::lab::vm::{RaucVms, ReleaseKind, Vms};

/// Number of cuts of a disk on which a part was never flushed.
const UNFLUSHED_CUTS: u64 = 40;

/// Cuts a recording everywhere and prints the results. Also returns the seed.
fn cut_recording(
    name: &str,
    (recording, before): (&Recording, Vec<u8>),
    judge: &mut impl DiskJudge,
) -> (CutStatistics, u64) {
    let samples = number("EVENKEEL_IMAGE_CUT_SAMPLES", 40);
    let seed = number("EVENKEEL_IMAGE_CUT_SEED", u64::from(std::process::id()) * 7_919);
    print_progress(&format!("EVENKEEL_IMAGE_CUT_SEED={seed}"));
    let begun = Instant::now();
    let (flushes, writes) = (recording.flushes(), recording.writes());
    print_progress(&format!("{name}: an update of {flushes} flushes and {writes} writes"));
    let outcome = cut_everywhere(recording, before, judge, (samples, seed));
    print_progress(&format!(
        "{name}: {} cuts in order and {} with loss, {samples} per flush, in {:?}: {} dead, {} more started a mixture of releases\n{outcome}",
        outcome.count_cuts(false),
        outcome.count_cuts(true),
        begun.elapsed(),
        outcome.count_dead(),
        outcome.count_bad() - outcome.count_dead(),
    ));
    (outcome, seed)
}

/// Records an update from a release of this kind and cuts it everywhere.
fn record_and_cut(vms: &Vms, kind: ReleaseKind) -> (UpdateRecording, CutStatistics, u64) {
    let recorded = UpdateRecording::record(vms, kind);
    let before = recorded.disk_before.clone();
    let recording = (&recorded.recording, before);
    let (outcome, seed) = cut_recording(&format!("{kind:?}"), recording, &mut recorded.judge());
    (recorded, outcome, seed)
}

/// Asserts that each of these ends occurs among the cuts with loss and among the others. Otherwise
/// the recording is not an update.
#[track_caller]
fn assert_ends(outcome: &CutStatistics, ends: &[(&str, char, bool)]) {
    for (version, slot, is_on_trial) in ends {
        let verdict = BootVerdict::Runs {
            version: (*version).to_owned(),
            slot: *slot,
            is_on_trial: *is_on_trial,
        };
        for lossy in [false, true] {
            assert!(
                outcome.verdicts.contains_key(&(lossy, verdict.clone())),
                "{verdict}: {outcome}"
            );
        }
    }
}

/// Asserts that cuts of a recording whose last part was never flushed leave a dead machine. A check
/// that finds no fault in the real recording must find these faults.
#[track_caller]
fn assert_never_flushed_is_caught(
    never: &Recording,
    before: Vec<u8>,
    judge: &mut impl DiskJudge,
    seed: u64,
) {
    let lost = cut_after(never, before, judge, 1, (UNFLUSHED_CUTS, seed));
    print_progress(&format!(
        "a part that is never flushed, {UNFLUSHED_CUTS} cuts: {} dead, {} bad\n{lost}",
        lost.count_dead(),
        lost.count_bad()
    ));
    assert!(lost.count_dead() > 0, "{lost}");
}

#[test]
fn the_old_or_the_new_image_starts_wherever_the_power_is_cut() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let (recorded, outcome, seed) = record_and_cut(&vms, ReleaseKind::Good);
    assert_eq!(outcome.count_bad(), 0, "{outcome}");
    let ends = [(OLD_VERSION, 'a', false), (NEW_VERSION, 'b', true), (NEW_VERSION, 'b', false)];
    assert_ends(&outcome, &ends);
    let mut judge = recorded.judge();
    let never = recorded.recording.never_flushed(&recorded.kernel_range);
    assert_never_flushed_is_caught(&never, recorded.disk_before, &mut judge, seed);
}

#[test]
fn with_rauc_and_grub_the_old_or_the_new_image_starts_wherever_the_power_is_cut() {
    let Some(rauc) = RaucVms::open_if_all() else {
        return;
    };
    let recorded = BundleRecording::record(&rauc);
    let mut judge = recorded.judge();
    let recording = (&recorded.recording, recorded.disk_before.clone());
    let (outcome, seed) = cut_recording("RAUC", recording, &mut judge);
    assert_eq!(outcome.count_bad(), 0, "{outcome}");
    assert_ends(&outcome, &[(OLD_VERSION, 'a', false), (NEW_VERSION, 'b', false)]);
    let mut judge = recorded.judge();
    let never = recorded.recording.never_flushed(&recorded.new_slot);
    assert_never_flushed_is_caught(&never, recorded.disk_before, &mut judge, seed);
}

#[test]
fn an_entry_that_is_written_too_early_is_caught() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let (_, outcome, _) = record_and_cut(&vms, ReleaseKind::WrongOrder);
    assert!(outcome.count_bad() > 0, "{outcome}");
}
