//! Power cuts at every write of a whole image update, and between flushes with loss of unflushed data.
//!
//! An emulated machine with two slots is updated by a real server, from the first start to the
//! blessed image, while all writes to its disk are recorded. For each cut the test then rebuilds the
//! disk as the cut leaves it, and reads it as the firmware and the boot loader do: they must start
//! one complete release.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_VM` | must be `all`, otherwise the tests are skipped |
//! | `EVENKEEL_IMAGE_CUT_SAMPLES` | number of cuts with loss after each flush |
//! | `EVENKEEL_IMAGE_CUT_SEED` | seed of the cuts with loss |

use std::time::Instant;

use evenkeel_tests::cut::{
    BootVerdict, CutStatistics, NEW_VERSION, OLD_VERSION, UpdateRecording, cut_after,
    cut_everywhere,
};
use evenkeel_tests::history::{number, print_progress};
use evenkeel_tests::lab::vm::{ReleaseKind, Vms};

/// Number of cuts of a disk on which the kernel was never flushed.
const UNFLUSHED_CUTS: u64 = 40;

/// Records an update from a release of this kind and cuts it everywhere.
fn record_and_cut(vms: &Vms, kind: ReleaseKind) -> (UpdateRecording, CutStatistics, u64) {
    let samples = number("EVENKEEL_IMAGE_CUT_SAMPLES", 40);
    let seed = number("EVENKEEL_IMAGE_CUT_SEED", u64::from(std::process::id()) * 7_919);
    print_progress(&format!("EVENKEEL_IMAGE_CUT_SEED={seed}"));
    let begun = Instant::now();
    let recorded = UpdateRecording::record(vms, kind);
    let recording = &recorded.recording;
    let (flushes, writes) = (recording.flushes(), recording.writes());
    print_progress(&format!(
        "{kind:?}: an update of {flushes} flushes and {writes} writes, recorded in {:?}",
        begun.elapsed()
    ));
    let mut judge = recorded.judge();
    let before = recorded.disk_before.clone();
    let outcome = cut_everywhere(recording, before, &mut judge, (samples, seed));
    print_progress(&format!(
        "{kind:?}: {} cuts in order and {} with loss, {samples} per flush, in {:?}: {} dead, {} more started a mixture of releases\n{outcome}",
        outcome.count_cuts(false),
        outcome.count_cuts(true),
        begun.elapsed(),
        outcome.count_dead(),
        outcome.count_bad() - outcome.count_dead(),
    ));
    (recorded, outcome, seed)
}

#[test]
fn the_old_or_the_new_image_starts_wherever_the_power_is_cut() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let (recorded, outcome, seed) = record_and_cut(&vms, ReleaseKind::Good);
    assert_eq!(outcome.count_bad(), 0, "{outcome}");
    // All three must occur, otherwise the recording is not an update.
    let runs = |version: &str, slot, is_on_trial| BootVerdict::Runs {
        version: version.to_owned(),
        slot,
        is_on_trial,
    };
    for verdict in
        [runs(OLD_VERSION, 'a', false), runs(NEW_VERSION, 'b', true), runs(NEW_VERSION, 'b', false)]
    {
        for lossy in [false, true] {
            assert!(
                outcome.verdicts.contains_key(&(lossy, verdict.clone())),
                "{verdict}: {outcome}"
            );
        }
    }
    // A check that finds no fault in these writes must find the faults of an unflushed kernel.
    let mut judge = recorded.judge();
    let never = recorded.recording.never_flushed(&recorded.kernel_range);
    let lost = cut_after(&never, recorded.disk_before, &mut judge, 1, (UNFLUSHED_CUTS, seed));
    print_progress(&format!(
        "a kernel that is never flushed, {UNFLUSHED_CUTS} cuts: {} dead, {} bad\n{lost}",
        lost.count_dead(),
        lost.count_bad()
    ));
    assert!(lost.count_dead() > 0, "{lost}");
}

#[test]
fn an_entry_that_is_written_too_early_is_caught() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let (_, outcome, _) = record_and_cut(&vms, ReleaseKind::WrongOrder);
    assert!(outcome.count_bad() > 0, "{outcome}");
}
