//! A machine that loses power wherever it may, and whose record or boot control fails.

mod health;
mod machine;

use std::fs;

use self::machine::{Cut, Machine};
use super::*;

/// The place right after a write, and before the next one, in the order in which a healthy image passes them.
const WAY_TO_NEW: [Cut; 4] = [
    Cut::Before("units"), // behind W8
    Cut::Before("poll"),
    Cut::Before("bless"), // behind W9
    Cut::After("bless"),  // behind W10
];

/// The same of an image that is not.
const WAY_TO_OLD: [Cut; 4] = [
    Cut::Before("units"),    // behind W8
    Cut::Before("words"),    // before U1
    Cut::Before("withdraw"), // behind U1
    Cut::After("withdraw"),  // behind U2
];

fn state_of_b(machine: &Machine) -> SlotState {
    machine.record().get().b
}

#[track_caller]
fn rests_on_new(machine: &Machine) {
    let slots = machine.record().get();
    assert!(matches!(slots.b, SlotState::Good(_)), "{:?}", slots.b);
    assert_eq!(slots.last_good, Some(Slot::B));
    machine.with(|world| {
        assert_eq!(world.running, Slot::B);
        assert_eq!(world.b, Entry::Plain);
        assert_eq!(world.a, Entry::Plain, "the way back is left");
    });
}

#[track_caller]
fn rests_on_old(machine: &Machine) {
    let slots = machine.record().get();
    assert!(matches!(slots.a, SlotState::Good(_)), "{:?}", slots.a);
    assert_eq!(slots.last_good, Some(Slot::A));
    machine.with(|world| {
        assert_eq!(world.running, Slot::A);
        assert_eq!(world.a, Entry::Plain);
        assert_eq!(world.b, Entry::Absent);
    });
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_is_kept() {
    let machine = Machine::armed().await;
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    let Over::Committed { took } = over else {
        panic!("{over:?}")
    };
    // Five seconds until the agent started, and ten of health.
    assert!((15..=17).contains(&took.as_secs()), "{took:?}");
    rests_on_new(&machine);
    assert!(machine.is_over());
    assert_eq!(machine.count("reset"), 0);
    assert!(machine.count("units") >= 5);

    machine.boot();
    assert_eq!(machine.run().await.unwrap().unwrap(), Over::NotOnTrial);
    rests_on_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_not_healthy_is_given_up_with_the_reason_and_the_last_words() {
    let machine = Machine::armed().await;
    machine.with(|world| world.unit = "failed");
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    let expected = "not healthy 60 s after boot: the unit app.service is failed";
    assert_eq!(
        over,
        Over::FellBack {
            why: expected.to_owned()
        }
    );
    let SlotState::Bad { why, log, .. } = state_of_b(&machine) else {
        panic!("{:?}", state_of_b(&machine))
    };
    assert_eq!((why.as_str(), log.as_str()), (expected, "the last words\n"));
    assert_eq!(machine.count("reset"), 1);
    assert!(
        !machine.is_over(),
        "a reset that does not come is made by the guard"
    );
    assert_eq!(machine.rest().await, Over::NotOnTrial);
    rests_on_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_cut_behind_any_write_on_the_way_to_the_new_image_leads_to_it() {
    for cut in WAY_TO_NEW {
        let machine = Machine::armed().await;
        machine.with(|world| world.cut = Some(cut));
        machine.boot();
        assert!(machine.run().await.is_none(), "no cut at {cut:?}");
        machine.rest().await;
        rests_on_new(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_behind_any_write_on_the_way_back_leads_to_the_old_image() {
    for cut in WAY_TO_OLD {
        let machine = Machine::armed().await;
        machine.with(|world| {
            world.unit = "failed";
            world.cut = Some(cut);
        });
        machine.boot();
        assert!(machine.run().await.is_none(), "no cut at {cut:?}");
        machine.rest().await;
        rests_on_old(&machine);
        let b = state_of_b(&machine);
        assert!(matches!(b, SlotState::Bad { .. }), "{cut:?}: {b:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn power_that_fails_at_every_trial_ends_on_the_old_image() {
    let machine = Machine::armed().await;
    for _ in 0..3 {
        machine.with(|world| world.cut = Some(Cut::Before("poll")));
        machine.boot();
        assert!(machine.run().await.is_none());
        assert_eq!(machine.with(|world| world.running), Slot::B);
    }
    machine.rest().await;
    assert_eq!(machine.with(|world| world.running), Slot::A);
    assert!(matches!(state_of_b(&machine), SlotState::Bad { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_that_cannot_be_blessed_is_left_and_not_called_bad() {
    let machine = Machine::armed().await;
    machine.with(|world| world.broken = vec!["bless"]);
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    assert!(matches!(over, Over::FellBack { .. }), "{over:?}");
    assert!(machine.count("bless") > 5, "it is tried until the deadline");
    machine.with(|world| world.broken.clear());
    machine.rest().await;
    rests_on_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Written(_)), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_healthy_image_that_can_be_neither_kept_nor_left_runs_on_until_it_can() {
    let machine = Machine::armed().await;
    machine.with(|world| world.broken = vec!["bless", "withdraw"]);
    machine.boot();
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.starts_with("healthy, but"), "{failure}");
    assert_eq!(machine.count("reset"), 0);
    assert!(machine.is_over(), "the guard would reset it for nothing");

    machine.with(|world| world.broken.clear());
    machine.run().await.unwrap().unwrap();
    rests_on_new(&machine);
    assert_eq!(machine.count("reset"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sick_image_whose_entry_cannot_be_removed_is_left_all_the_same() {
    let machine = Machine::armed().await;
    machine.with(|world| {
        world.unit = "failed";
        world.broken = vec!["withdraw"];
    });
    machine.boot();
    machine.run().await.unwrap().unwrap();
    assert_eq!(machine.count("reset"), 1);
    assert!(matches!(state_of_b(&machine), SlotState::Bad { .. }));
    // Nor later: the loader counts, and no agent takes what is bad for settled meanwhile.
    assert_eq!(machine.rest().await, Over::NotOnTrial);
    assert_eq!(machine.with(|world| world.running), Slot::A);
    assert_eq!(machine.count("reset"), 3, "once for each try");
    machine.with(|world| world.broken.clear());
    machine.settle().await;
    rests_on_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_bad_image_is_not_reset_for_ever_where_nobody_counts() {
    let machine = Machine::armed().await;
    machine.with(|world| {
        world.unit = "failed";
        world.broken = vec!["withdraw"];
    });
    machine.boot();
    machine.run().await.unwrap().unwrap();
    // Somebody took the counter from its entry.
    machine.with(|world| world.b = Entry::Plain);
    machine.boot();
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.contains("cannot be left"), "{failure}");
    assert_eq!(machine.count("reset"), 1);
    machine.with(|world| world.broken.clear());
    machine.rest().await;
    rests_on_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn what_was_counted_and_is_not_known_to_be_on_trial_is_not_taken_for_settled() {
    let machine = Machine::armed().await;
    let seen = BootControl::look(&machine).await.unwrap();
    machine
        .record()
        .step(Slot::B, &Event::NotTried, &seen)
        .unwrap();
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    assert!(matches!(over, Over::FellBack { .. }), "{over:?}");
    assert_eq!(machine.count("reset"), 1);
    assert!(!machine.is_over(), "the guard watches on");
    machine.without_counter();
    assert_eq!(machine.run().await.unwrap().unwrap(), Over::NotOnTrial);
    machine.rest().await;
    rests_on_old(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_takes_long_is_waited_for_and_not_begun_beside_itself() {
    let machine = Machine::armed().await;
    machine.with(|world| world.slow = Some(("bless", Duration::from_secs(25))));
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    assert!(matches!(over, Over::Committed { .. }), "{over:?}");
    assert_eq!(machine.count("bless"), 1);
    rests_on_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_begun_beside_a_change_that_does_not_end() {
    let machine = Machine::armed().await;
    machine.with(|world| world.slow = Some(("bless", Duration::from_hours(1))));
    machine.boot();
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.contains("did not bless"), "{failure}");
    assert_eq!((machine.count("bless"), machine.count("withdraw")), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_mended_at_a_start_is_tried_again_in_it() {
    let machine = Machine::armed().await;
    machine.with(|world| {
        world.unit = "failed";
        world.cut = Some(Cut::Before("withdraw"));
    });
    machine.boot();
    assert!(machine.run().await.is_none());
    // The counter is spent, so the old image runs and finds an entry that is to go.
    machine.with(|world| {
        world.b = Entry::Counted { left: 0, done: 3 };
        world.broken = vec!["withdraw"];
    });
    machine.boot();
    let mending = async {
        sleep(Duration::from_secs(3)).await;
        machine.with(|world| world.broken.clear());
    };
    let (_, ()) = tokio::join!(machine.settle(), mending);
    rests_on_old(&machine);
    assert_eq!(
        machine.count("withdraw"),
        4,
        "the one that was cut off, and three"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sick_image_that_is_all_there_is_to_boot_runs_on() {
    let machine = Machine::armed().await;
    machine.with(|world| world.unit = "failed");
    machine.boot();
    machine.with(|world| world.a = Entry::Absent);
    let failure = machine.run().await.unwrap().unwrap_err();
    assert!(failure.reason.ends_with(NOTHING_ELSE), "{failure}");
    assert_eq!((machine.count("withdraw"), machine.count("reset")), (0, 0));
    assert!(machine.is_over());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_takes_nothing_on_trial_leaves_the_word_to_the_loaders_counter() {
    let machine = Machine::armed().await;
    for boot in 1..=3 {
        machine.boot();
        machine.break_record();
        let parts = machine.parts();
        let over = see_through(&parts).await.unwrap();
        assert!(matches!(over, Over::FellBack { .. }), "{over:?}");
        assert_eq!(machine.count("reset"), boot);
        machine.mend_record();
    }
    assert_eq!(machine.count("withdraw"), 0);
    assert!(matches!(state_of_b(&machine), SlotState::Armed { .. }));
    machine.rest().await;
    rests_on_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_fails_later_on_trial_lets_the_old_image_conclude() {
    let machine = Machine::armed().await;
    machine.with(|world| world.breaks_record = Some("units"));
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    let Over::FellBack { why } = over else {
        panic!("{over:?}")
    };
    assert!(why.contains("cannot be written down"), "{why}");
    assert_eq!(machine.count("bless"), 0, "never before W9");
    machine.mend_record();
    machine.rest().await;
    rests_on_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_fails_behind_the_commit_changes_nothing_of_it() {
    let machine = Machine::armed().await;
    machine.with(|world| world.breaks_record = Some("bless"));
    machine.boot();
    machine.run().await.unwrap().unwrap_err();
    assert_eq!((machine.count("withdraw"), machine.count("reset")), (0, 0));
    assert!(machine.is_over());
    machine.mend_record();
    machine.rest().await;
    rests_on_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn who_cannot_look_is_reset_only_if_the_loader_counts_and_no_trial_has_ended() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.with(|world| world.broken = vec!["look"]);
    let parts = machine.parts();
    let over = see_through(&parts).await.unwrap();
    assert!(matches!(over, Over::FellBack { .. }), "{over:?}");
    assert_eq!((machine.count("withdraw"), machine.count("reset")), (0, 1));

    guard::end(&parts.place);
    for _ in 0..2 {
        let begun = Instant::now();
        see_through(&parts).await.unwrap_err();
        assert!(begun.elapsed() >= parts.health.deadline);
        fs::remove_dir_all(machine.root().join("run")).ok();
        machine.without_counter();
    }
    assert_eq!(machine.count("reset"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_is_let_go_with_the_commit_and_not_with_a_fall_back() {
    for (unit, last) in [("active", 'V'), ("failed", '.')] {
        let machine = Machine::armed().await;
        machine.boot();
        crate::hooks::fake::folder(machine.root(), "/dev");
        let device = machine.root().join("dev/watchdog0");
        fs::write(&device, "").unwrap();
        machine.with(|world| world.unit = unit);
        machine.run().await.unwrap().unwrap();
        let eaten = fs::read_to_string(&device).unwrap();
        assert!(eaten.ends_with(last), "{eaten}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_guard_resets_a_counted_boot_that_comes_to_no_end() {
    let machine = Machine::armed().await;
    machine.boot();
    let parts = machine.parts();
    let deadline = parts.health.deadline;
    let begun = Instant::now();
    let guarded = guard(&parts.place, deadline, parts.reset.as_ref()).await;
    assert_eq!(guarded, Guarded::Reset);
    assert_eq!(machine.count("reset"), 1);
    // Up for five seconds at its start; a minute for the agent to say why.
    let waited = begun.elapsed().as_secs();
    assert!((115..=118).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn the_guard_ends_with_the_trial_and_guards_nothing_else() {
    let machine = Machine::armed().await;
    machine.boot();
    let parts = machine.parts();
    let deadline = parts.health.deadline;
    let guarding = guard(&parts.place, deadline, parts.reset.as_ref());
    let (guarded, over) = tokio::join!(guarding, machine.run());
    over.unwrap().unwrap();
    assert_eq!(guarded, Guarded::Over);

    machine.boot();
    let guarded = guard(&parts.place, deadline, parts.reset.as_ref()).await;
    assert_eq!(guarded, Guarded::NotCounted);
    assert_eq!(machine.count("reset"), 0);
}
