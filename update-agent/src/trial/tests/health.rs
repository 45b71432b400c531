//! When an image is healthy, and how much time it has.

use super::*;
use crate::link::LinkError;

#[tokio::test(start_paused = true)]
async fn a_look_that_fails_for_a_while_ends_no_trial_also_where_nobody_counts() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.without_counter();
    let parts = machine.parts();
    machine.with(|world| world.broken = vec!["look"]);
    let mending = async {
        sleep(Duration::from_secs(20)).await;
        machine.with(|world| world.broken.clear());
    };
    let (over, ()) = tokio::join!(see_through(&parts), mending);
    let over = over.unwrap();
    assert!(matches!(over, Over::Committed { .. }), "{over:?}");
    rests_on_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn where_nobody_counts_an_agent_that_is_started_late_has_the_whole_time() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.without_counter();
    machine.up_for(3_600);
    let over = machine.run().await.unwrap().unwrap();
    let Over::Committed { took } = over else {
        panic!("{over:?}")
    };
    assert!(took >= Duration::from_hours(1), "from boot: {took:?}");
    rests_on_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_judged_before_it_was_asked_for_once() {
    let machine = Machine::armed().await;
    machine.with(|world| world.slow = Some(("units", Duration::from_secs(5))));
    machine.boot();
    machine.up_for(90);
    let Over::FellBack { why } = machine.run().await.unwrap().unwrap() else {
        panic!("kept behind the deadline")
    };
    assert!(why.ends_with("it had been healthy for 0 s only"), "{why}");
    assert_eq!(machine.count("poll"), 1);
}

#[tokio::test(start_paused = true)]
async fn health_counts_from_the_last_interruption_on() {
    let machine = Machine::armed().await;
    machine.with(|world| world.falters_at = Some(3));
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    let Over::Committed { took } = over else {
        panic!("{over:?}")
    };
    // Not well four seconds after the start at five; well from six on, for ten.
    assert!((21..=23).contains(&took.as_secs()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_boot() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.up_for(57);
    let begun = Instant::now();
    let over = machine.run().await.unwrap().unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    let Over::FellBack { why } = over else {
        panic!("{over:?}")
    };
    assert!(why.contains("it had been healthy for"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn the_server_must_be_reached_if_the_old_image_had_reached_it() {
    let machine = Machine::armed().await;
    machine.with(|world| world.broken = vec!["poll"]);
    machine.boot();
    machine.settle().await;
    let mut parts = machine.parts();
    parts.server = false;
    let over = see_through(&parts).await.unwrap();
    assert!(matches!(over, Over::Committed { .. }), "{over:?}");

    let machine = Machine::armed().await;
    machine.with(|world| world.broken = vec!["poll"]);
    machine.boot();
    let Over::FellBack { why } = machine.run().await.unwrap().unwrap() else {
        panic!("kept without the server")
    };
    assert!(why.contains("the server cannot be reached"), "{why}");
}

/// How the image in slot b stands after one more trial in which no server answers.
async fn without_a_server(machine: &Machine) -> SlotState {
    machine.with(|world| world.broken = vec!["poll"]);
    machine.boot();
    let over = machine.run().await.expect("power").expect("an end");
    assert!(matches!(over, Over::FellBack { .. }), "{over:?}");
    machine.rest().await;
    rests_on_old(machine);
    state_of_b(machine)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_for_the_whole_trial_brands_no_image_until_the_third_time() {
    let machine = Machine::armed().await;
    for times in 1..=2 {
        let b = without_a_server(&machine).await;
        let SlotState::Written(what) = b else {
            panic!("{b:?}")
        };
        let slots = machine.record().get();
        assert!(slots.bad.is_empty(), "{slots:?}");
        let undecided = slots.undecided(&what.file).unwrap();
        assert_eq!(undecided.times, times);
        let why = &undecided.doubt.why;
        assert!(why.contains("the server cannot be reached"), "{why}");
        assert_eq!(undecided.doubt.log, "the last words\n");
        machine.arm_again().await;
    }
    let b = without_a_server(&machine).await;
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
    assert_eq!(machine.record().get().bad.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_was_left_for_want_of_a_server_is_kept_when_the_server_is_back() {
    let machine = Machine::armed().await;
    without_a_server(&machine).await;
    machine.with(|world| world.broken.clear());
    machine.arm_again().await;
    machine.boot();
    let over = machine.run().await.unwrap().unwrap();
    assert!(matches!(over, Over::Committed { .. }), "{over:?}");
    rests_on_new(&machine);
    assert!(machine.record().get().undecided.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_sick_image_is_a_bad_one_whether_the_server_is_away_or_not() {
    let machine = Machine::armed().await;
    // Shortly before the deadline the unit is not active: it was not well for as long as it must be.
    machine.with(|world| (world.broken, world.falters_at) = (vec!["poll"], Some(26)));
    machine.boot();
    machine.run().await.unwrap().unwrap();
    machine.rest().await;
    rests_on_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cut_behind_any_write_of_an_undecided_trial_leads_to_the_old_image() {
    for cut in [Cut::Before("withdraw"), Cut::After("withdraw")] {
        let machine = Machine::armed().await;
        machine.with(|world| (world.broken, world.cut) = (vec!["poll"], Some(cut)));
        machine.boot();
        assert!(machine.run().await.is_none(), "no cut at {cut:?}");
        machine.rest().await;
        rests_on_old(&machine);
        let b = state_of_b(&machine);
        assert!(matches!(b, SlotState::Written(_)), "{cut:?}: {b:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_ended_before_the_reset_goes_on_with_an_undecided_trial() {
    let machine = Machine::armed().await;
    machine.with(|world| {
        (world.broken, world.cut) = (vec!["poll"], Some(Cut::Before("withdraw")));
    });
    machine.boot();
    assert!(machine.run().await.is_none());
    // The agent alone ended, and the deadline is over.
    machine.up_for(70);
    let polls = machine.count("poll");
    let over = machine.run().await.unwrap().unwrap();
    assert!(matches!(over, Over::FellBack { .. }), "{over:?}");
    assert_eq!(machine.count("poll"), polls, "it is not asked again");
    machine.rest().await;
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Written(_)), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_was_reached_whatever_it_says_and_is_not_asked_at_each_beat() {
    let answers: [fn() -> LinkError; 4] = [
        || LinkError::Busy {
            again: Duration::from_secs(5),
            why: String::new(),
        },
        || LinkError::Denied(String::new()),
        || LinkError::Refused(String::new()),
        || LinkError::Nonsense("it is empty"),
    ];
    for answer in answers {
        let machine = Machine::armed().await;
        machine.with(|world| world.refuses = Some(answer));
        machine.boot();
        let over = machine.run().await.unwrap().unwrap();
        assert!(matches!(over, Over::Committed { .. }), "{over:?}");
        assert!(
            (1..=2).contains(&machine.count("poll")),
            "{}",
            machine.count("poll")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_whose_agent_cannot_use_its_way_to_the_server_is_a_bad_one() {
    let machine = Machine::armed().await;
    machine.with(|world| world.refuses = Some(|| LinkError::Setup("no authority".to_owned())));
    machine.boot();
    machine.run().await.unwrap().unwrap();
    machine.rest().await;
    rests_on_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");

    // Nor is one kept that has no such way at all, also if nobody demands the server.
    for is_demanded in [true, false] {
        let machine = Machine::armed().await;
        machine.boot();
        machine.settle().await;
        let mut parts = machine.parts();
        parts.server = is_demanded;
        parts.link = Err("no authority".to_owned());
        let Over::FellBack { why } = see_through(&parts).await.unwrap() else {
            panic!("kept without a way to the server")
        };
        assert!(why.ends_with("no way to the server: no authority"), "{why}");
        assert_eq!(machine.count("poll"), 0);
        machine.rest().await;
        rests_on_old(&machine);
        let b = state_of_b(&machine);
        assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn programs_of_the_owner_have_a_say() {
    let machine = Machine::armed().await;
    crate::hooks::fake::program(machine.root(), "/etc/evenkeel/health.d", "10-pumps");
    machine.boot();
    machine.with(|world| world.check = 1);
    let Over::FellBack { why } = machine.run().await.unwrap().unwrap() else {
        panic!("kept against the owner's word")
    };
    assert!(
        why.contains("the health check 10-pumps ended with status 1"),
        "{why}"
    );

    let machine = Machine::armed().await;
    crate::hooks::fake::program(machine.root(), "/etc/evenkeel/health.d", "10-pumps");
    machine.boot();
    machine.run().await.unwrap().unwrap();
    rests_on_new(&machine);
}
