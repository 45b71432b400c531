//! Power cuts in random instants of real updates, one after the other on one machine. Whatever it runs then is an old
//! release or a new one, whole, and it goes on with the next.

use std::time::Duration;

use evenkeel_simulator::chance::Chance;
use evenkeel_tests::history::{number, say};
use evenkeel_tests::lab::vm::{Kind, Release, Slot, Vms};

use crate::node::{Node, PART};

/// The power goes at most so long after what is waited for, and so long after a machine was switched on again.
const LATER: Duration = Duration::from_secs(4);
const ON: Duration = Duration::from_secs(25);

/// How often in a row.
const ROW: (u64, u64) = (1, 3);

/// What the first cut of a row waits for.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The order was given: the image may be on its way.
    Ordered,
    /// The slot is being written.
    Written,
    /// It is armed.
    Armed,
    /// The loader has counted the first boot.
    Counted,
    /// The new release, or the old one again, comes up.
    Up,
}

const MOMENTS: [Moment; 5] = [
    Moment::Ordered,
    Moment::Written,
    Moment::Armed,
    Moment::Counted,
    Moment::Up,
];

#[test]
fn after_power_cuts_in_random_instants_the_old_or_the_new_release_runs_and_the_record_says_which() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let seed = number("EVENKEEL_VM_SEED", u64::from(std::process::id()) * 7_919);
    say(&format!("EVENKEEL_VM_SEED={seed}"));
    let mut node = Node::join(vms, "cuts");
    let mut runs = (node.old.clone(), Slot::A);
    for update in 1..=number("EVENKEEL_VM_CUTS", 3) {
        let mut chance = Chance::new(seed, 1_000 + update);
        let next = node.vms.release(&format!("1.{update}"), Kind::Good);
        // Each moment has its turn; the seed says which is the first.
        let turn = usize::try_from((seed + update) % MOMENTS.len() as u64).expect("a few");
        let told = cut(
            &mut node,
            &mut chance,
            (&next, MOMENTS[turn]),
            runs.1.other(),
        );
        let run = node.ended(&next);
        let booted = node.agrees(&[&runs.0, &next]);
        say(&format!("{told}: {}, {booted:?}", run["state"]));
        if booted.version == next.version {
            runs = (next, booted.slot);
        }
    }
    node.judge(&[&runs.0]);
}

/// Orders a release that goes into a slot, waits for a moment, and cuts the power once or several times. Says when.
fn cut(
    node: &mut Node,
    chance: &mut Chance,
    (next, moment): (&Release, Moment),
    slot: Slot,
) -> String {
    let before = node.vm.head(slot);
    node.order(next);
    match moment {
        Moment::Ordered => {}
        Moment::Written => node.vm.until_head(slot, PART, |head| head != before),
        Moment::Armed => node.until_armed(slot),
        Moment::Counted => node.until_counted(slot),
        Moment::Up => {
            node.until_armed(slot);
            let version = next.version.clone();
            node.vm.until_line("a release comes up", PART, |line| {
                let booted = line.contains("evenkeel-lab: booted");
                (booted && line.contains(&version)).then_some(())
            });
        }
    }
    let later = chance.length((Duration::ZERO, LATER));
    node.vm.wait(later);
    node.vm.cut();
    let first = format!("cut at {moment:?}+{later:?}");
    let again = (1..chance.between(ROW.0, ROW.1)).map(|_| {
        node.vm.start();
        let later = chance.length((Duration::ZERO, ON));
        node.vm.wait(later);
        node.vm.cut();
        format!("again after {later:?}")
    });
    let told: Vec<_> = [first].into_iter().chain(again).collect();
    node.vm.start();
    told.join(", ")
}
