//! When an image is healthy, and how much time it has.

use super::*;
use crate::link::LinkError;

#[tokio::test(start_paused = true)]
async fn a_temporary_read_failure_ends_no_trial_without_a_boot_counter() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.remove_counter();
    let parts = machine.parts();
    machine.with_state(|state| state.broken = vec!["look"]);
    let repairing = async {
        sleep(Duration::from_secs(20)).await;
        machine.with_state(|state| state.broken.clear());
    };
    let (outcome, ()) = tokio::join!(run_trial(&parts), repairing);
    let outcome = outcome.unwrap();
    assert!(matches!(outcome, TrialOutcome::Committed { .. }), "{outcome:?}");
    assert_runs_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn without_a_boot_counter_a_late_agent_has_the_full_deadline() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.remove_counter();
    machine.set_uptime(3_600);
    let outcome = machine.run().await.unwrap().unwrap();
    let TrialOutcome::Committed { took } = outcome else { panic!("{outcome:?}") };
    assert!(took >= Duration::from_hours(1), "from boot: {took:?}");
    assert_runs_new(&machine);
}

#[tokio::test(start_paused = true)]
async fn the_first_check_is_never_cut_off() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.slow = Some(("units", Duration::from_secs(5))));
    machine.boot();
    machine.set_uptime(90);
    let TrialOutcome::FellBack { reason } = machine.run().await.unwrap().unwrap() else {
        panic!("kept behind the deadline")
    };
    assert!(reason.ends_with("it had been healthy for only 0 s"), "{reason}");
    assert_eq!(machine.count("poll"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_stable_time_starts_again_after_a_failure() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.fails_at = Some(3));
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    let TrialOutcome::Committed { took } = outcome else { panic!("{outcome:?}") };
    // Not healthy four seconds after the start at five; healthy from six on, for ten.
    assert!((21..=23).contains(&took.as_secs()), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_boot() {
    let machine = Machine::armed().await;
    machine.boot();
    machine.set_uptime(57);
    let begun = Instant::now();
    let outcome = machine.run().await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    let TrialOutcome::FellBack { reason } = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("it had been healthy for"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn the_server_must_be_reached_if_the_old_image_reached_it() {
    let machine = Machine::armed().await;
    machine.with_state(|state| state.broken = vec!["poll"]);
    machine.boot();
    machine.reconcile().await;
    let mut parts = machine.parts();
    parts.requires_server = false;
    let outcome = run_trial(&parts).await.unwrap();
    assert!(matches!(outcome, TrialOutcome::Committed { .. }), "{outcome:?}");

    let machine = Machine::armed().await;
    machine.with_state(|state| state.broken = vec!["poll"]);
    machine.boot();
    let TrialOutcome::FellBack { reason } = machine.run().await.unwrap().unwrap() else {
        panic!("kept without the server")
    };
    assert!(reason.contains("the server cannot be reached"), "{reason}");
}

/// State of slot B after one more trial in which the server cannot be reached.
async fn try_without_server(machine: &Machine) -> SlotState {
    machine.with_state(|state| state.broken = vec!["poll"]);
    machine.boot();
    let outcome = machine.run().await.expect("power").expect("an end");
    assert!(matches!(outcome, TrialOutcome::FellBack { .. }), "{outcome:?}");
    machine.boot_until_settled().await;
    assert_runs_old(machine);
    state_of_b(machine)
}

#[tokio::test(start_paused = true)]
async fn an_image_is_bad_only_after_three_trials_without_a_server() {
    let machine = Machine::armed().await;
    for times in 1..=2 {
        let b = try_without_server(&machine).await;
        let SlotState::Written(image) = b else { panic!("{b:?}") };
        let slots = machine.record().get();
        assert!(slots.bad.is_empty(), "{slots:?}");
        let undecided = slots.find_undecided(&image.file).unwrap();
        assert_eq!(undecided.times, times);
        let reason = &undecided.latest_end.reason;
        assert!(reason.contains("the server cannot be reached"), "{reason}");
        assert_eq!(undecided.latest_end.log, "the last words\n");
        machine.arm_again().await;
    }
    let b = try_without_server(&machine).await;
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
    assert_eq!(machine.record().get().bad.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_undecided_image_is_committed_when_the_server_is_back() {
    let machine = Machine::armed().await;
    try_without_server(&machine).await;
    machine.with_state(|state| state.broken.clear());
    machine.arm_again().await;
    machine.boot();
    let outcome = machine.run().await.unwrap().unwrap();
    assert!(matches!(outcome, TrialOutcome::Committed { .. }), "{outcome:?}");
    assert_runs_new(&machine);
    assert!(machine.record().get().undecided.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_image_is_bad_with_or_without_a_server() {
    let machine = Machine::armed().await;
    // The unit is not active shortly before the deadline, so the image was not healthy for the
    // required time.
    machine.with_state(|state| (state.broken, state.fails_at) = (vec!["poll"], Some(26)));
    machine.boot();
    machine.run().await.unwrap().unwrap();
    machine.boot_until_settled().await;
    assert_runs_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cut_after_any_write_of_an_undecided_trial_leads_to_the_old_image() {
    for cut in [Cut::Before("withdraw"), Cut::After("withdraw")] {
        let machine = Machine::armed().await;
        machine.with_state(|state| (state.broken, state.cut) = (vec!["poll"], Some(cut)));
        machine.boot();
        assert!(machine.run().await.is_none(), "no cut at {cut:?}");
        machine.boot_until_settled().await;
        assert_runs_old(&machine);
        let b = state_of_b(&machine);
        assert!(matches!(b, SlotState::Written(_)), "{cut:?}: {b:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ended_before_the_reset_resumes_an_undecided_trial() {
    let machine = Machine::armed().await;
    machine.with_state(|state| {
        (state.broken, state.cut) = (vec!["poll"], Some(Cut::Before("withdraw")));
    });
    machine.boot();
    assert!(machine.run().await.is_none());
    // Only the agent ended, and the deadline has passed.
    machine.set_uptime(70);
    let polls = machine.count("poll");
    let outcome = machine.run().await.unwrap().unwrap();
    assert!(matches!(outcome, TrialOutcome::FellBack { .. }), "{outcome:?}");
    assert_eq!(machine.count("poll"), polls, "the server is not polled again");
    machine.boot_until_settled().await;
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Written(_)), "{b:?}");
}

#[tokio::test(start_paused = true)]
async fn any_answer_of_the_server_counts_and_polls_are_limited() {
    let answers: [fn() -> LinkError; 5] = [
        || LinkError::Busy { retry_after: Duration::from_secs(5), message: String::new() },
        || LinkError::Unauthenticated(String::new()),
        || LinkError::Denied(String::new()),
        || LinkError::Refused(String::new()),
        || LinkError::InvalidAnswer("it is empty"),
    ];
    for answer in answers {
        let machine = Machine::armed().await;
        machine.with_state(|state| state.refusal = Some(answer));
        machine.boot();
        let outcome = machine.run().await.unwrap().unwrap();
        assert!(matches!(outcome, TrialOutcome::Committed { .. }), "{outcome:?}");
        assert!((1..=2).contains(&machine.count("poll")), "{}", machine.count("poll"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_with_an_unusable_server_link_is_bad() {
    let machine = Machine::armed().await;
    machine
        .with_state(|state| state.refusal = Some(|| LinkError::Setup("no authority".to_owned())));
    machine.boot();
    machine.run().await.unwrap().unwrap();
    machine.boot_until_settled().await;
    assert_runs_old(&machine);
    let b = state_of_b(&machine);
    assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");

    // An image without any link is rejected as well, even if the server is not required.
    for is_demanded in [true, false] {
        let machine = Machine::armed().await;
        machine.boot();
        machine.reconcile().await;
        let mut parts = machine.parts();
        parts.requires_server = is_demanded;
        parts.link = Err("no authority".to_owned());
        let TrialOutcome::FellBack { reason } = run_trial(&parts).await.unwrap() else {
            panic!("committed without a link to the server")
        };
        assert!(reason.ends_with("no link to the server: no authority"), "{reason}");
        assert_eq!(machine.count("poll"), 0);
        machine.boot_until_settled().await;
        assert_runs_old(&machine);
        let b = state_of_b(&machine);
        assert!(matches!(b, SlotState::Bad { .. }), "{b:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn health_checks_of_the_owner_can_fail_a_trial() {
    let machine = Machine::armed().await;
    crate::hooks::fake::add_program(machine.root(), "/etc/evenkeel/health.d", "10-pumps");
    machine.boot();
    machine.with_state(|state| state.check = 1);
    let TrialOutcome::FellBack { reason } = machine.run().await.unwrap().unwrap() else {
        panic!("committed against the owner's health check")
    };
    assert!(reason.contains("the health check 10-pumps ended with status 1"), "{reason}");

    let machine = Machine::armed().await;
    crate::hooks::fake::add_program(machine.root(), "/etc/evenkeel/health.d", "10-pumps");
    machine.boot();
    machine.run().await.unwrap().unwrap();
    assert_runs_new(&machine);
}
