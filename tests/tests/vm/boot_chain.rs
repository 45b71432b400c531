//! What the chain from the firmware to a release's user space does when the release is no good, or the power goes.
//! Nothing here needs a server: a release is put into its slot from outside.

use std::time::{Duration, Instant};

use evenkeel_simulator::chance::Chance;
use evenkeel_tests::history::{number, say};
use evenkeel_tests::lab::until;
use evenkeel_tests::lab::vm::{
    Booted, Count, Entry, Kind, Resets, Slot, Vm, Vms, counts, startable,
};

use crate::{NEW, OLD};

/// How often the loader tries a new release that is no good.
const TRIES: u32 = 2;

/// How often it tries one that is good: more than once, since this machine may be busy.
const GOOD_TRIES: u32 = 3;

/// How long one boot may take on a busy machine, also one that fails in the end.
const BOOT: Duration = Duration::from_mins(5);

/// A machine that prints nothing for so long hangs. A slower one is only reset too early, which changes no end.
const HANGS: Duration = Duration::from_secs(12);

/// How often in a row the power goes.
const CUTS: (u64, u64) = (2, 4);

/// The power goes at most so long after what is waited for.
const LATER: Duration = Duration::from_secs(3);

/// What a cut of the power waits for.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Nothing: the firmware has only begun.
    On,
    /// The loader has counted the boot.
    Counted,
    /// The release is up.
    Up,
}

const MOMENTS: [Moment; 3] = [Moment::On, Moment::Counted, Moment::Up];

/// The release that is in a slot, as it says itself when it comes up.
fn release_in(slot: Slot) -> Booted {
    let version = match slot {
        Slot::A => OLD,
        Slot::B => NEW,
    };
    Booted {
        version: version.to_owned(),
        slot,
    }
}

/// A machine that runs the old release and will try a new one of this kind so often.
fn armed(vms: &Vms, kind: Kind, tries: u32) -> Vm {
    let vm = vms.lone_machine(&vms.release(OLD, Kind::Good), "armed");
    vm.put(Slot::B, &vms.release(NEW, kind), tries);
    let entries = vm.entries();
    assert_eq!(counts(&entries, Slot::A), [Count::Kept]);
    let fresh = Count::Trial {
        left: tries,
        done: 0,
    };
    assert_eq!(counts(&entries, Slot::B), [fresh]);
    vm
}

/// Holds that a machine which is off has left the new release: its entry has no try left, or is gone. The old one's was
/// never touched.
fn assert_left(entries: &[Entry]) {
    assert_eq!(counts(entries, Slot::A), [Count::Kept], "{entries:?}");
    let left = counts(entries, Slot::B);
    let is_left = matches!(
        left[..],
        [] | [Count::Trial {
            left: 0,
            done: TRIES
        }]
    );
    assert!(is_left, "{entries:?}");
}

/// Tells of a new release that always ends in a reset by itself.
fn falls_back(kind: Kind) {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut vm = armed(&vms, kind, TRIES);
    let begun = Instant::now();
    vm.start();
    // The first that comes up, so the new one never did.
    let booted = vm.until_booted(BOOT * (TRIES + 1));
    let resets = vm.resets();
    vm.cut();
    let passed = begun.elapsed();
    let entries = vm.entries();
    say(&format!(
        "{kind:?}: {resets:?}, then {booted:?} after {passed:?}; {entries:?}"
    ));
    assert_eq!(booted, release_in(Slot::A));
    assert!(resets.by_itself >= TRIES, "{resets:?}");
    assert_eq!(resets.from_outside, 0);
    assert_left(&entries);
}

#[test]
fn a_good_release_in_the_other_slot_comes_up_on_trial() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut vm = armed(&vms, Kind::Good, GOOD_TRIES);
    let begun = Instant::now();
    vm.start();
    let booted = vm.until_booted(BOOT);
    let resets = vm.resets();
    vm.cut();
    let passed = begun.elapsed();
    let entries = vm.entries();
    say(&format!(
        "good: {resets:?}, then {booted:?} after {passed:?}; {entries:?}"
    ));
    assert_eq!(booted, release_in(Slot::B));
    assert_eq!(resets.from_outside, 0);
    assert_eq!(counts(&entries, Slot::A), [Count::Kept]);
    // An emulated kernel that gets no time may panic: each reset has cost a try, and the boot that came up another.
    let tried = |done| Count::Trial {
        left: GOOD_TRIES - done,
        done,
    };
    assert_eq!(counts(&entries, Slot::B), [tried(resets.by_itself + 1)]);
}

#[test]
fn a_kernel_that_panics_leads_back_to_the_old_release() {
    falls_back(Kind::Panic);
}

#[test]
fn noise_in_place_of_a_kernel_leads_back_to_the_old_release() {
    falls_back(Kind::NoiseKernel);
}

#[test]
fn a_release_without_init_leads_back_to_the_old_release() {
    falls_back(Kind::NoInit);
}

#[test]
fn a_root_that_is_not_there_leads_back_to_the_old_release() {
    falls_back(Kind::NoRoot);
}

#[test]
fn a_hang_before_user_space_leads_back_to_the_old_release_once_it_was_reset_from_outside() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut vm = armed(&vms, Kind::HangEarly, TRIES);
    let begun = Instant::now();
    vm.start();
    for done in 1..=TRIES {
        let left = TRIES - done;
        let counted = [Count::Trial { left, done }];
        vm.until_entries("the loader counts", BOOT, |entries| {
            counts(entries, Slot::B) == counted
        });
        vm.until_line("the kernel waits", BOOT, |line| {
            line.contains(Kind::WAITS).then_some(())
        });
        vm.until_silent(HANGS, BOOT);
        // Nobody on the machine does it: else it did not hang.
        assert_eq!(vm.resets().by_itself, 0);
        vm.reset();
    }
    let booted = vm.until_booted(BOOT);
    let resets = vm.resets();
    vm.cut();
    let passed = begun.elapsed();
    let entries = vm.entries();
    say(&format!(
        "hang: {resets:?}, then {booted:?} after {passed:?}; {entries:?}"
    ));
    assert_eq!(booted, release_in(Slot::A));
    assert_eq!(resets.from_outside, TRIES);
    assert_left(&entries);
}

/// Switches a machine on, and cuts its power in some instant of the boot. Says which.
fn cut_once(vm: &mut Vm, chance: &mut Chance) -> String {
    let before = vm.entries();
    let slots = startable(&before);
    let drawn = *chance.pick(&MOMENTS);
    let later = chance.length((Duration::ZERO, LATER));
    // Only a boot on trial is counted.
    let is_counted = slots == [Slot::B] && !counts(&before, Slot::B).contains(&Count::Kept);
    let moment = match drawn {
        Moment::Counted if !is_counted => Moment::On,
        moment => moment,
    };
    vm.start();
    match moment {
        Moment::On => {}
        Moment::Counted => {
            vm.until_entries("the loader counts", BOOT, |entries| entries != before);
        }
        Moment::Up => {
            let booted = vm.until_booted(BOOT);
            assert_may(&slots, vm.resets(), &booted);
        }
    }
    let begun = Instant::now();
    until("the drawn instant", LATER + BOOT, || {
        (begun.elapsed() >= later).then_some(())
    });
    vm.cut();
    format!("{moment:?}+{later:?}")
}

/// Holds that what came up is what the loader was to start. A reset by itself costs a try, so behind one it may be the
/// old release all the same, but nothing else.
#[track_caller]
fn assert_may(slots: &[Slot], resets: Resets, booted: &Booted) {
    let mut may: Vec<_> = slots.iter().copied().map(release_in).collect();
    if resets.by_itself > 0 {
        may.push(release_in(Slot::A));
    }
    assert!(may.contains(booted), "{booted:?} came up, not {may:?}");
}

#[test]
fn after_power_cuts_in_several_boots_of_a_trial_the_old_or_the_new_release_comes_up() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let seed = number("EVENKEEL_VM_SEED", u64::from(std::process::id()) * 7_919);
    say(&format!("EVENKEEL_VM_SEED={seed}"));
    for series in 0..number("EVENKEEL_VM_CUTS", 3) {
        let mut chance = Chance::new(seed, series);
        let mut vm = armed(&vms, Kind::Good, TRIES);
        let cuts = chance.between(CUTS.0, CUTS.1);
        let cuts: Vec<_> = (0..cuts).map(|_| cut_once(&mut vm, &mut chance)).collect();
        let before = vm.entries();
        vm.start();
        let booted = vm.until_booted(BOOT);
        let resets = vm.resets();
        vm.cut();
        let entries = vm.entries();
        say(&format!(
            "series {series}: cut at {cuts:?}, then {booted:?}; {entries:?}"
        ));
        assert_may(&startable(&before), resets, &booted);
        assert_eq!(counts(&entries, Slot::A), [Count::Kept], "{entries:?}");
    }
}
