//! The power cut at every write of a whole update of an image, and between any two flushes where disks lose what they
//! were not told to flush.
//!
//! An emulated machine with two slots carries the update out with a real server, from its first start to the image that
//! is kept, while all that its disk is told is recorded. Then the disk is made as it is after a cut, for one cut after
//! the other, and read as the firmware and the loader read it: what would start must be one release, whole.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_VM` | `all`, or nothing of this is told |
//! | `EVENKEEL_IMAGE_CUT_SAMPLES` | how many cuts lose something, between each flush and the next |
//! | `EVENKEEL_IMAGE_CUT_SEED` | which ones |

use std::time::Instant;

use evenkeel_tests::cut::{NEW, OLD, Outcome, Recorded, Verdict, cut_after, cut_everywhere};
use evenkeel_tests::history::{number, say};
use evenkeel_tests::lab::vm::{Kind, Vms};

/// How many cuts are tried of a disk that was never told to flush the kernel.
const UNFLUSHED: u64 = 40;

/// An update from a release of this kind, and what came of cutting it everywhere.
fn cut(vms: &Vms, kind: Kind) -> (Recorded, Outcome, u64) {
    let samples = number("EVENKEEL_IMAGE_CUT_SAMPLES", 40);
    let seed = number(
        "EVENKEEL_IMAGE_CUT_SEED",
        u64::from(std::process::id()) * 7_919,
    );
    say(&format!("EVENKEEL_IMAGE_CUT_SEED={seed}"));
    let begun = Instant::now();
    let recorded = Recorded::make(vms, kind);
    let recording = &recorded.recording;
    let (flushes, writes) = (recording.flushes(), recording.writes());
    say(&format!(
        "{kind:?}: an update of {flushes} flushes and {writes} writes, recorded in {:?}",
        begun.elapsed()
    ));
    let mut judge = recorded.judge();
    let before = recorded.before.clone();
    let outcome = cut_everywhere(recording, before, &mut judge, (samples, seed));
    say(&format!(
        "{kind:?}: {} cuts in order and {} with loss, {samples} a flush, in {:?}: {} dead, {} more started what is no release\n{outcome}",
        outcome.tried(false),
        outcome.tried(true),
        begun.elapsed(),
        outcome.dead(),
        outcome.bad() - outcome.dead(),
    ));
    (recorded, outcome, seed)
}

#[test]
fn the_old_or_the_new_image_starts_wherever_the_power_is_cut() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let (recorded, outcome, seed) = cut(&vms, Kind::Good);
    assert_eq!(outcome.bad(), 0, "{outcome}");
    // Else something else was recorded than an update.
    let runs = |version: &str, slot, is_on_trial| Verdict::Runs {
        version: version.to_owned(),
        slot,
        is_on_trial,
    };
    for verdict in [
        runs(OLD, 'a', false),
        runs(NEW, 'b', true),
        runs(NEW, 'b', false),
    ] {
        for lossy in [false, true] {
            assert!(
                outcome.ends.contains_key(&(lossy, verdict.clone())),
                "{verdict}: {outcome}"
            );
        }
    }
    // Who finds nothing wrong with these writes must find what is wrong if the kernel had not been flushed.
    let mut judge = recorded.judge();
    let never = recorded.recording.never_flushed(&recorded.kernel);
    let lost = cut_after(&never, recorded.before, &mut judge, 1, (UNFLUSHED, seed));
    say(&format!(
        "a kernel that is never flushed, {UNFLUSHED} cuts: {} dead, {} bad\n{lost}",
        lost.dead(),
        lost.bad()
    ));
    assert!(lost.dead() > 0, "{lost}");
}

#[test]
fn an_entry_that_is_written_too_early_is_caught() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let (_, outcome, _) = cut(&vms, Kind::WrongOrder);
    assert!(outcome.bad() > 0, "{outcome}");
}
