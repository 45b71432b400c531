//! The boot chain from the firmware to the user space of a release, with bad releases and power cuts.
//! No server is needed: the test writes a release into its slot directly.

use std::time::{Duration, Instant};

use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::{number, print_progress};
use evenkeel_tests::lab::until;
use evenkeel_tests::lab::vm::{
    BootCount, BootedRelease, ReleaseKind, Resets, Slot, SlotEntry, Vm, Vms, counts, startable,
};

use super::{NEW_VERSION, OLD_VERSION};

/// Number of tries that the loader has for a bad release.
const BAD_RELEASE_TRIES: u32 = 2;

/// Number of tries for a good release: more than one, because a busy machine may fail a boot.
const GOOD_RELEASE_TRIES: u32 = 3;

/// Maximum duration of one boot on a busy machine, even if the boot fails.
const BOOT_TIMEOUT: Duration = Duration::from_mins(5);

/// A machine that prints nothing for this time hangs. A slow machine is only reset too early, which
/// does not change the result.
const HANG_TIMEOUT: Duration = Duration::from_secs(12);

/// Minimum and maximum number of successive power cuts.
const CUT_COUNT_RANGE: (u64, u64) = (2, 4);

/// Maximum delay between a moment and the power cut.
const MAX_CUT_DELAY: Duration = Duration::from_secs(3);

/// Moment after which the power is cut.
#[derive(Clone, Copy, Debug)]
enum BootMoment {
    /// The firmware starts.
    PoweredOn,
    /// The loader has counted the boot.
    BootCounted,
    ReleaseUp,
}

const BOOT_MOMENTS: [BootMoment; 3] =
    [BootMoment::PoweredOn, BootMoment::BootCounted, BootMoment::ReleaseUp];

/// The release in a slot, as it prints itself when it is up.
fn release_in(slot: Slot) -> BootedRelease {
    let version = match slot {
        Slot::A => OLD_VERSION,
        Slot::B => NEW_VERSION,
    };
    BootedRelease { version: version.to_owned(), slot }
}

/// A machine that runs the old release and has this number of tries for a new release.
fn arm_release(vms: &Vms, kind: ReleaseKind, tries: u32) -> Vm {
    let vm = vms.machine_without_server(&vms.release(OLD_VERSION, ReleaseKind::Good), "armed");
    vm.put_release(Slot::B, &vms.release(NEW_VERSION, kind), tries);
    let entries = vm.entries();
    assert_eq!(counts(&entries, Slot::A), [BootCount::Permanent]);
    let fresh = BootCount::Trial { left: tries, done: 0 };
    assert_eq!(counts(&entries, Slot::B), [fresh]);
    vm
}

/// Checks a machine that is off and has given up the new release: its entry has no tries left or is
/// deleted. The entry of the old release is unchanged.
fn assert_abandoned(entries: &[SlotEntry]) {
    assert_eq!(counts(entries, Slot::A), [BootCount::Permanent], "{entries:?}");
    let left = counts(entries, Slot::B);
    let is_left = matches!(left[..], [] | [BootCount::Trial { left: 0, done: BAD_RELEASE_TRIES }]);
    assert!(is_left, "{entries:?}");
}

/// Checks a new release that always ends in a reset by the machine itself.
fn assert_falls_back(kind: ReleaseKind) {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut vm = arm_release(&vms, kind, BAD_RELEASE_TRIES);
    let begun = Instant::now();
    vm.start();
    // The first release that is up is the old one, so the new one was never up.
    let booted = vm.until_booted(BOOT_TIMEOUT * (BAD_RELEASE_TRIES + 1));
    let resets = vm.resets();
    vm.cut();
    let elapsed = begun.elapsed();
    let entries = vm.entries();
    print_progress(&format!(
        "{kind:?}: {resets:?}, then {booted:?} after {elapsed:?}; {entries:?}"
    ));
    assert_eq!(booted, release_in(Slot::A));
    assert!(resets.by_itself >= BAD_RELEASE_TRIES, "{resets:?}");
    assert_eq!(resets.from_outside, 0);
    assert_abandoned(&entries);
}

#[test]
fn a_good_release_in_the_other_slot_comes_up_on_trial() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut vm = arm_release(&vms, ReleaseKind::Good, GOOD_RELEASE_TRIES);
    let begun = Instant::now();
    vm.start();
    let booted = vm.until_booted(BOOT_TIMEOUT);
    let resets = vm.resets();
    vm.cut();
    let elapsed = begun.elapsed();
    let entries = vm.entries();
    print_progress(&format!("good: {resets:?}, then {booted:?} after {elapsed:?}; {entries:?}"));
    assert_eq!(booted, release_in(Slot::B));
    assert_eq!(resets.from_outside, 0);
    assert_eq!(counts(&entries, Slot::A), [BootCount::Permanent]);
    // An emulated kernel that gets too little time may panic. Each reset and the successful boot use
    // a try.
    let tried = |done| BootCount::Trial { left: GOOD_RELEASE_TRIES - done, done };
    assert_eq!(counts(&entries, Slot::B), [tried(resets.by_itself + 1)]);
}

#[test]
fn a_kernel_that_panics_leads_back_to_the_old_release() {
    assert_falls_back(ReleaseKind::Panic);
}

#[test]
fn noise_instead_of_a_kernel_leads_back_to_the_old_release() {
    assert_falls_back(ReleaseKind::NoiseKernel);
}

#[test]
fn a_release_without_init_leads_back_to_the_old_release() {
    assert_falls_back(ReleaseKind::NoInit);
}

#[test]
fn a_root_that_is_not_there_leads_back_to_the_old_release() {
    assert_falls_back(ReleaseKind::NoRoot);
}

#[test]
fn a_hang_before_user_space_leads_back_to_the_old_release_once_it_was_reset_from_outside() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut vm = arm_release(&vms, ReleaseKind::HangEarly, BAD_RELEASE_TRIES);
    let begun = Instant::now();
    vm.start();
    for done in 1..=BAD_RELEASE_TRIES {
        let left = BAD_RELEASE_TRIES - done;
        let counted = [BootCount::Trial { left, done }];
        vm.until_entries("the loader counts", BOOT_TIMEOUT, |entries| {
            counts(entries, Slot::B) == counted
        });
        vm.until_line("the kernel waits", BOOT_TIMEOUT, |line| {
            line.contains(ReleaseKind::HANG_MESSAGE).then_some(())
        });
        vm.until_silent(HANG_TIMEOUT, BOOT_TIMEOUT);
        // The machine hangs, so it must not reset itself.
        assert_eq!(vm.resets().by_itself, 0);
        vm.reset();
    }
    let booted = vm.until_booted(BOOT_TIMEOUT);
    let resets = vm.resets();
    vm.cut();
    let elapsed = begun.elapsed();
    let entries = vm.entries();
    print_progress(&format!("hang: {resets:?}, then {booted:?} after {elapsed:?}; {entries:?}"));
    assert_eq!(booted, release_in(Slot::A));
    assert_eq!(resets.from_outside, BAD_RELEASE_TRIES);
    assert_abandoned(&entries);
}

/// Starts a machine and cuts its power at a random instant of the boot. Returns a description.
fn cut_during_boot(vm: &mut Vm, rng: &mut Rng) -> String {
    let before = vm.entries();
    let slots = startable(&before);
    let drawn = *rng.pick(&BOOT_MOMENTS);
    let later = rng.duration((Duration::ZERO, MAX_CUT_DELAY));
    // Only a boot on trial is counted.
    let is_counted =
        slots == [Slot::B] && !counts(&before, Slot::B).contains(&BootCount::Permanent);
    let moment = match drawn {
        BootMoment::BootCounted if !is_counted => BootMoment::PoweredOn,
        moment => moment,
    };
    vm.start();
    match moment {
        BootMoment::PoweredOn => {}
        BootMoment::BootCounted => {
            vm.until_entries("the loader counts", BOOT_TIMEOUT, |entries| entries != before);
        }
        BootMoment::ReleaseUp => {
            let booted = vm.until_booted(BOOT_TIMEOUT);
            assert_expected_release(&slots, vm.resets(), &booted);
        }
    }
    let begun = Instant::now();
    until("the drawn instant", MAX_CUT_DELAY + BOOT_TIMEOUT, || {
        (begun.elapsed() >= later).then_some(())
    });
    vm.cut();
    format!("{moment:?}+{later:?}")
}

/// Asserts that the loader started an expected release. A reset by the machine itself uses a try, so
/// after one the old release is possible as well.
#[track_caller]
fn assert_expected_release(slots: &[Slot], resets: Resets, booted: &BootedRelease) {
    let mut may: Vec<_> = slots.iter().copied().map(release_in).collect();
    if resets.by_itself > 0 {
        may.push(release_in(Slot::A));
    }
    assert!(may.contains(booted), "{booted:?} is up, expected one of {may:?}");
}

#[test]
fn after_power_cuts_in_several_boots_of_a_trial_the_old_or_the_new_release_comes_up() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let seed = number("EVENKEEL_VM_SEED", u64::from(std::process::id()) * 7_919);
    print_progress(&format!("EVENKEEL_VM_SEED={seed}"));
    for series in 0..number("EVENKEEL_VM_CUTS", 3) {
        let mut rng = Rng::new(seed, series);
        let mut vm = arm_release(&vms, ReleaseKind::Good, BAD_RELEASE_TRIES);
        let cuts = rng.between(CUT_COUNT_RANGE.0, CUT_COUNT_RANGE.1);
        let cuts: Vec<_> = (0..cuts).map(|_| cut_during_boot(&mut vm, &mut rng)).collect();
        let before = vm.entries();
        vm.start();
        let booted = vm.until_booted(BOOT_TIMEOUT);
        let resets = vm.resets();
        vm.cut();
        let entries = vm.entries();
        print_progress(&format!("series {series}: cut at {cuts:?}, then {booted:?}; {entries:?}"));
        assert_expected_release(&startable(&before), resets, &booted);
        assert_eq!(counts(&entries, Slot::A), [BootCount::Permanent], "{entries:?}");
    }
}
