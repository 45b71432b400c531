//! Power cuts at random instants of successive updates of one machine. Afterwards the machine runs a
//! complete old or new release, and takes the next update.

use std::time::Duration;

use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::{number, print_progress};
use evenkeel_tests::lab::vm::{Release, ReleaseKind, Slot, Vms};

use super::node::{Node, STEP_TIMEOUT};

/// Maximum delay between a moment and the power cut, and maximum uptime after a restart.
const MAX_CUT_DELAY: Duration = Duration::from_secs(4);
const MAX_UPTIME: Duration = Duration::from_secs(25);

/// Minimum and maximum number of successive power cuts.
const CUT_COUNT_RANGE: (u64, u64) = (1, 3);

/// Moment after which the power is cut first.
#[derive(Clone, Copy, Debug)]
enum UpdateMoment {
    /// The update is ordered; the download may have started.
    Ordered,
    /// The slot is being written.
    SlotWriting,
    /// The slot is armed.
    Armed,
    /// The loader has counted the first boot.
    BootCounted,
    /// The new release, or again the old one, is up.
    ReleaseUp,
}

const UPDATE_MOMENTS: [UpdateMoment; 5] = [
    UpdateMoment::Ordered,
    UpdateMoment::SlotWriting,
    UpdateMoment::Armed,
    UpdateMoment::BootCounted,
    UpdateMoment::ReleaseUp,
];

#[test]
fn after_power_cuts_at_random_instants_the_old_or_the_new_release_runs_as_recorded() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let seed = number("EVENKEEL_VM_SEED", u64::from(std::process::id()) * 7_919);
    print_progress(&format!("EVENKEEL_VM_SEED={seed}"));
    let mut node = Node::join(vms, "cuts");
    let mut runs = (node.old.clone(), Slot::A);
    for update in 1..=number("EVENKEEL_VM_CUTS", 3) {
        let mut rng = Rng::new(seed, 1_000 + update);
        let next = node.vms.release(&format!("1.{update}"), ReleaseKind::Good);
        // The moments take turns; the seed decides which is the first.
        let turn = usize::try_from((seed + update) % UPDATE_MOMENTS.len() as u64).expect("a few");
        let cuts =
            cut_during_update(&mut node, &mut rng, (&next, UPDATE_MOMENTS[turn]), runs.1.other());
        let run = node.wait_for_run_end(&next);
        let booted = node.wait_for_matching_record(&[&runs.0, &next]);
        print_progress(&format!("{cuts}: {}, {booted:?}", run["state"]));
        if booted.version == next.version {
            runs = (next, booted.slot);
        }
    }
    node.check_disk(&[&runs.0]);
}

/// Orders a release for a slot, waits for a moment, and cuts the power once or several times. Returns a
/// description.
fn cut_during_update(
    node: &mut Node,
    rng: &mut Rng,
    (next, moment): (&Release, UpdateMoment),
    slot: Slot,
) -> String {
    let before = node.vm.slot_head(slot);
    node.order_update(next);
    match moment {
        UpdateMoment::Ordered => {}
        UpdateMoment::SlotWriting => node.vm.until_head(slot, STEP_TIMEOUT, |head| head != before),
        UpdateMoment::Armed => node.wait_until_armed(slot),
        UpdateMoment::BootCounted => node.wait_until_counted(slot),
        UpdateMoment::ReleaseUp => {
            node.wait_until_armed(slot);
            let version = next.version.clone();
            node.vm.until_line("a release is up", STEP_TIMEOUT, |line| {
                let booted = line.contains("evenkeel-lab: booted");
                (booted && line.contains(&version)).then_some(())
            });
        }
    }
    let later = rng.duration((Duration::ZERO, MAX_CUT_DELAY));
    node.vm.run_for(later);
    node.vm.cut();
    let first = format!("cut at {moment:?}+{later:?}");
    let again = (1..rng.between(CUT_COUNT_RANGE.0, CUT_COUNT_RANGE.1)).map(|_| {
        node.vm.start();
        let later = rng.duration((Duration::ZERO, MAX_UPTIME));
        node.vm.run_for(later);
        node.vm.cut();
        format!("again after {later:?}")
    });
    let cuts: Vec<_> = [first].into_iter().chain(again).collect();
    node.vm.start();
    cuts.join(", ")
}
