//! A machine whose power, record or boot control can fail at any point.

mod health;
mod machine;

use std::fs;

use self::machine::{Cut, Machine};
use super::*;

/// Points after a write and before the next one, in the order in which a healthy image passes them.
const CUTS_TO_NEW: [Cut; 4] = [
    Cut::Before("units"), // after "booted"
    Cut::Before("poll"),
    Cut::Before("bless"), // after "passed"
    Cut::After("bless"),  // after blessing
];

/// The same for an unhealthy image.
const CUTS_TO_OLD: [Cut; 4] = [
    Cut::Before("units"),    // after "booted"
    Cut::Before("words"),    // before the rejection
    Cut::Before("withdraw"), // after the rejection
    Cut::After("withdraw"),  // after withdrawing
];

fn state_of_b(machine: &Machine) -> SlotState {
    machine.record().get().b
}

#[track_caller]
fn assert_runs_new(machine: &Machine) {
    let slots = machine.record().get();
    assert!(matches!(slots.b, SlotState::Good(_)), "{:?}", slots.b);
    assert_eq!(slots.last_good, Some(Slot::B));
    machine.with_state(|state| {
        assert_eq!(state.running, Slot::B);
        assert_eq!(state.b, BootEntry::Plain);
        assert_eq!(state.a, BootEntry::Plain, "the old image can still be booted");
    });
}

#[track_caller]
fn assert_runs_old(machine: &Machine) {
    let slots = machine.record().get();
    assert!(matches!(slots.a, SlotState::Good(_)), "{:?}", slots.a);
    assert_eq!(slots.last_good, Some(Slot::A));
    machine.with_state(|state| {
        assert_eq!(state.running, Slot::A);
        assert_eq!(state.a, BootEntry::Plain);
        assert_eq!(state.b, BootEntry::Absent);
    });
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_is_committed() {
    let machine = Machine::armed().await;
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    let TrialOutcome::Committed { took } = outcome else { panic!("{outcome:?}") };
    // Five seconds until the agent started, and ten of health.
    assert!((15..=17).contains(&took.as_secs()), "{took:?}");
    assert_runs_new(&machine);
    assert!(machine.is_trial_over());
    assert_eq!(machine.count("reset"), 0);
    assert!(machine.count("units") >= 5);

    machine.boot();
    assert_eq!(machine.run().await.unwrap().unwrap(), TrialOutcome::NotOnTrial);
    assert_runs_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_image_is_rejected_with_the_reason_and_the_failure_log() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.unit = "failed");
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    let expected = "not healthy 60 s after boot: the unit app.service is failed";
    assert_eq!(outcome, TrialOutcome::FellBack { reason: expected.to_owned() });
    let SlotState::Bad { reason, log, .. } = state_of_b(&machine) else {
        panic!("{:?}", state_of_b(&machine))
    };
    assert_eq!((reason.as_str(), log.as_str()), (expected, "the last words\n"));
    assert_eq!(machine.count("reset"), 1);
    assert!(!machine.is_trial_over(), "if the reset fails, the guard resets the machine");
    assert_eq!(machine.boot_until_settled().await, TrialOutcome::NotOnTrial);
    assert_runs_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_cut_after_any_write_of_a_commit_leads_to_the_new_image() {
    for cut in CUTS_TO_NEW {
        let machine = Machine::armed().await;
        machine.with_state(|state| state.cut = Some(cut));
        machine.boot();
        assert!(machine.run().await.is_none(), "no cut at {cut:?}");
        machine.boot_until_settled().await;
        assert_runs_new(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_after_any_write_of_a_fallback_leads_to_the_old_image() {
    for cut in CUTS_TO_OLD {
        let machine = Machine::armed().await;
        machine.with_state(|state| {
            state.unit = "failed";
            state.cut = Some(cut);
        });
        machine.boot();
        assert!(machine.run().await.is_none(), "no cut at {cut:?}");
        machine.boot_until_settled().await;
        assert_runs_old(&machine);
        let b = state_of_b(&machine);
        assert!(matches!(b, SlotState::Bad { .. }), "{cut:?}: {b:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_in_every_trial_ends_on_the_old_image() {
    let machine = Machine::armed().await;
    for _ in 0..3 {
        machine.with_state(|state| state.cut = Some(Cut::Before("poll")));
        machine.boot();
        assert!(machine.run().await.is_none());
        assert_eq!(machine.with_state(|state| state.running), Slot::B);
    }
    machine.boot_until_settled().await;
    assert_eq!(machine.with_state(|state| state.running), Slot::A);
    assert!(matches!(state_of_b(&machine), SlotState::Bad { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_that_cannot_be_blessed_is_given_up_but_not_bad() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.broken = vec!["bless"]);
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    assert!(matches!(outcome, TrialOutcome::FellBack { .. }), "{outcome:?}");
    assert!(machine.count("bless") > 5, "retried until the deadline");
    machine.with_state(|state| state.broken.clear());
    machine.boot_until_settled().await;
    assert_runs_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Written(_)), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_that_can_be_neither_committed_nor_withdrawn_keeps_running() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.broken = vec!["bless", "withdraw"]);
    machine.boot();
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.starts_with("healthy, but"), "{failure}");
    assert_eq!(machine.count("reset"), 0);
    assert!(machine.is_trial_over(), "the guard would reset it in vain");

    machine.with_state(|state| state.broken.clear());
    machine.run().await.unwrap().unwrap();
    assert_runs_new(&machine);
    assert_eq!(machine.count("reset"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_image_whose_entry_cannot_be_removed_is_still_given_up() {
    let machine = Machine::armed().await;
    machine.with_state(|state| {
        state.unit = "failed";
        state.broken = vec!["withdraw"];
    });
    machine.boot();
    machine.run().await.unwrap().unwrap();
    assert_eq!(machine.count("reset"), 1);
    assert!(matches!(state_of_b(&machine), SlotState::Bad { .. }));
    // The loader counts, and no agent takes the bad image for a stable system in between.
    assert_eq!(machine.boot_until_settled().await, TrialOutcome::NotOnTrial);
    assert_eq!(machine.with_state(|state| state.running), Slot::A);
    assert_eq!(machine.count("reset"), 3, "once per try");
    machine.with_state(|state| state.broken.clear());
    machine.reconcile().await;
    assert_runs_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_bad_image_without_a_boot_counter_is_not_reset_for_ever() {
    let machine = Machine::armed().await;
    machine.with_state(|state| {
        state.unit = "failed";
        state.broken = vec!["withdraw"];
    });
    machine.boot();
    machine.run().await.unwrap().unwrap();
    // The counter was removed from the entry.
    machine.with_state(|state| state.b = BootEntry::Plain);
    machine.boot();
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.contains("cannot be withdrawn"), "{failure}");
    assert_eq!(machine.count("reset"), 1);
    machine.with_state(|state| state.broken.clear());
    machine.boot_until_settled().await;
    assert_runs_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_boot_of_a_good_image_is_confirmed_and_one_on_trial_is_not() {
    let machine = Machine::armed().await;
    machine.with_state(|state| {
        state.counts_good_boots = true;
        state.a = BootEntry::OneShot;
        state.broken.push("confirm");
    });
    // The next start tries again.
    assert!(!machine.reconcile().await);
    assert_eq!(machine.with_state(|state| state.a.clone()), BootEntry::OneShot);
    machine.with_state(|state| state.broken.clear());
    machine.reconcile().await;
    assert_eq!(machine.with_state(|state| state.a.clone()), BootEntry::Plain);
    assert_eq!(machine.count("confirm"), 2);
    machine.boot();
    machine.reconcile().await;
    assert_eq!(machine.count("confirm"), 2, "the image is on trial");
}

/// Otherwise a boot loader that counts one boot starts the other image at the next reset.
#[tokio::test(start_paused = true)]
async fn a_boot_is_confirmed_as_well_if_the_reconciliation_could_not_read_the_boot_state() {
    let machine = Machine::armed().await;
    machine.with_state(|state| {
        state.counts_good_boots = true;
        state.a = BootEntry::OneShot;
    });
    let outcome = run_trial(&machine.parts()).await.unwrap();
    assert!(matches!(outcome, TrialOutcome::NotOnTrial), "{outcome:?}");
    assert_eq!(machine.with_state(|state| state.a.clone()), BootEntry::Plain);
    assert_eq!(machine.count("confirm"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_counted_boot_that_is_not_on_trial_is_not_taken_for_settled() {
    let machine = Machine::armed().await;
    let seen = BootControl::observe(&machine).await.unwrap();
    machine.record().step(Slot::B, &SlotEvent::NotTried, &seen).unwrap();
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    assert!(matches!(outcome, TrialOutcome::FellBack { .. }), "{outcome:?}");
    assert_eq!(machine.count("reset"), 1);
    assert!(!machine.is_trial_over(), "the guard continues");
    machine.remove_counter();
    assert_eq!(machine.run().await.unwrap().unwrap(), TrialOutcome::NotOnTrial);
    machine.boot_until_settled().await;
    assert_runs_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_slow_change_is_waited_for_and_not_started_twice() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.slow = Some(("bless", Duration::from_secs(25))));
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    assert!(matches!(outcome, TrialOutcome::Committed { .. }), "{outcome:?}");
    assert_eq!(machine.count("bless"), 1);
    assert_runs_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn no_other_change_starts_while_one_does_not_end() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.slow = Some(("bless", Duration::from_hours(1))));
    machine.boot();
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.contains("did not bless"), "{failure}");
    assert_eq!((machine.count("bless"), machine.count("withdraw")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failed_repair_is_retried_during_the_same_start() {
    let machine = Machine::armed().await;
    machine.with_state(|state| {
        state.unit = "failed";
        state.cut = Some(Cut::Before("withdraw"));
    });
    machine.boot();
    assert!(machine.run().await.is_none());
    // The counter is used up, so the old image runs and finds an entry to withdraw.
    machine.with_state(|state| {
        state.b = BootEntry::Counted { left: 0, done: 3 };
        state.broken = vec!["withdraw"];
    });
    machine.boot();
    let repairing = async {
        sleep(Duration::from_secs(3)).await;
        machine.with_state(|state| state.broken.clear());
    };
    let (_, ()) = tokio::join!(machine.reconcile(), repairing);
    assert_runs_old(&machine);
    assert_eq!(machine.count("withdraw"), 4, "the interrupted one, and three");
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_image_that_is_the_only_one_keeps_running() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.unit = "failed");
    machine.boot();
    machine.with_state(|state| state.a = BootEntry::Absent);
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.ends_with(ONLY_BOOTABLE_SLOT), "{failure}");
    assert_eq!((machine.count("withdraw"), machine.count("reset")), (0, 0));
    assert!(machine.is_trial_over());
}

#[tokio::test(start_paused = true)]
async fn with_a_broken_record_the_loaders_counter_decides() {
    let machine = Machine::armed().await;
    for boot in 1..=3 {
        machine.boot();
        machine.break_record();
        let parts = machine.parts();
        let outcome = run_trial(&parts).await.unwrap();
        assert!(matches!(outcome, TrialOutcome::FellBack { .. }), "{outcome:?}");
        assert_eq!(machine.count("reset"), boot);
        machine.repair_record();
    }
    assert_eq!(machine.count("withdraw"), 0);
    assert!(matches!(state_of_b(&machine), SlotState::Armed { .. }));
    machine.boot_until_settled().await;
    assert_runs_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_fails_during_the_trial_leads_to_the_old_image() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.breaks_record = Some("units"));
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    let TrialOutcome::FellBack { reason } = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("cannot be recorded"), "{reason}");
    assert_eq!(machine.count("bless"), 0, "never before \"passed\"");
    machine.repair_record();
    machine.boot_until_settled().await;
    assert_runs_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_fails_after_the_commit_does_not_undo_it() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.breaks_record = Some("bless"));
    machine.boot();
    machine.run().await.unwrap().unwrap_err();
    assert_eq!((machine.count("withdraw"), machine.count("reset")), (0, 0));
    assert!(machine.is_trial_over());
    machine.repair_record();
    machine.boot_until_settled().await;
    assert_runs_new(&machine);
}

/// Such as a node that is updated by packages and has a RAUC with three bootable slots.
#[tokio::test(start_paused = true)]
async fn an_agent_without_a_record_does_not_wait_for_an_unreadable_boot_state() {
    let machine = Machine::armed().await;
    machine.remove_record();
    machine.with_state(|state| state.broken = vec!["look"]);
    let begun = Instant::now();
    run_trial(&machine.parts()).await.unwrap_err();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(machine.count("reset"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_boot_state_resets_only_a_counted_boot_without_an_ended_trial() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.with_state(|state| state.broken = vec!["look"]);
    let parts = machine.parts();
    let outcome = run_trial(&parts).await.unwrap();
    assert!(matches!(outcome, TrialOutcome::FellBack { .. }), "{outcome:?}");
    assert_eq!((machine.count("withdraw"), machine.count("reset")), (0, 1));

    guard::stop_guard(&parts.paths);
    for _ in 0..2 {
        let begun = Instant::now();
        run_trial(&parts).await.unwrap_err();
        assert!(begun.elapsed() >= parts.health.deadline);
        fs::remove_dir_all(machine.root().join("run")).ok();
        machine.remove_counter();
    }
    assert_eq!(machine.count("reset"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_is_stopped_by_a_commit_but_not_by_a_fallback() {
    for (unit, last) in [("active", 'V'), ("failed", '.')] {
        let machine = Machine::armed().await;
        machine.boot();
        crate::hooks::fake::create_folder(machine.root(), "/dev");
        let device = machine.root().join("dev/watchdog0");
        fs::write(&device, "").unwrap();
        machine.with_state(|state| state.unit = unit);
        machine.run().await.unwrap().unwrap();
        let eaten = fs::read_to_string(&device).unwrap();
        assert!(eaten.ends_with(last), "{eaten}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_guard_resets_a_counted_boot_that_does_not_end() {
    let machine = Machine::armed().await;
    machine.boot();
    let parts = machine.parts();
    let deadline = parts.health.deadline;
    let begun = Instant::now();
    let guarded = run_guard(&parts.paths, deadline, parts.reset.as_ref()).await;
    assert_eq!(guarded, GuardOutcome::Reset);
    assert_eq!(machine.count("reset"), 1);
    // Up for five seconds at its start; one minute for the agent to record the reason.
    let waited = begun.elapsed().as_secs();
    assert!((115..=118).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn the_guard_ends_with_the_trial_and_ignores_other_boots() {
    let machine = Machine::armed().await;
    machine.boot();
    let parts = machine.parts();
    let deadline = parts.health.deadline;
    let guarding = run_guard(&parts.paths, deadline, parts.reset.as_ref());
    let (guarded, outcome) = tokio::join!(guarding, machine.run());
    outcome.unwrap().unwrap();
    assert_eq!(guarded, GuardOutcome::TrialEnded);

    machine.boot();
    let guarded = run_guard(&parts.paths, deadline, parts.reset.as_ref()).await;
    assert_eq!(guarded, GuardOutcome::NotCounted);
    assert_eq!(machine.count("reset"), 0);
}
