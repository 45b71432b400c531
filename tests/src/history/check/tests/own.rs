//! Nodes with our own agent.

use evenkeel_simulator::ground_truth::{Attempt, AttemptEvent, OwnGroundTruth, StartPermit};

use super::*;
use evenkeel_simulator::eim::cron::RepeatedWindows;

use crate::history::operator_log::{PauseRecord, ScheduleRecord};

/// An attempt that downloaded, requested a start at 120, started at 122 and finished.
pub(super) fn attempt() -> Attempt {
    let events = [("downloading", 90), ("downloaded", 91), ("began", 122), ("finished", 130)];
    Attempt {
        id: Uuid::from_u128(1),
        digest: POLICY.into(),
        events: events.map(|(name, time)| AttemptEvent { name, at: moment(time) }).to_vec(),
        acknowledged: 4,
        permit: Some(StartPermit::Online {
            requested_at: at(120),
            granted_at: at(121),
            start_before: at(200),
        }),
        forgotten: false,
        image: None,
        again: false,
        booted: None,
    }
}

pub(super) fn record() -> Run {
    let events = [
        ("downloading", "downloading", Some(1), 91),
        ("downloaded", "staged", Some(2), 92),
        ("began", "applying", Some(3), 123),
        ("finished", "succeeded", Some(4), 131),
    ];
    run(1, Some(1), &events)
}

fn broken_rules(attempts: Vec<Attempt>, runs: &[Run], log: &OperatorLog) -> Vec<Rule> {
    let ground_truth = OwnGroundTruth { attempts, facts_digest: Vec::new() };
    broken_own_rules(&member(), &ground_truth, runs, log)
}

#[test]
fn a_record_that_matches_the_attempt_breaks_no_rule() {
    assert_eq!(broken_rules(vec![attempt()], &[record()], &usual_log()), []);
}

#[test]
fn an_acknowledged_attempt_without_a_run_is_lost() {
    assert_eq!(broken_rules(vec![attempt()], &[], &usual_log()), [Rule::NoReportIsLost]);
    let silent = Attempt { acknowledged: 0, ..attempt() };
    assert_eq!(broken_rules(vec![silent], &[], &usual_log()), [], "it was not acknowledged");
}

#[test]
fn an_acknowledged_event_that_is_not_recorded_is_lost() {
    let mut short = record();
    short.events.pop();
    short.state = "applying".into();
    let broken = broken_rules(vec![attempt()], &[short], &usual_log());
    assert_eq!(broken, [Rule::NoReportIsLost, Rule::EndsMatch]);
}

#[test]
fn an_attempt_that_is_two_runs_is_found() {
    let mut again = record();
    again.id = "osupdaterun-00000002".into();
    for entry in &mut again.events {
        entry.at += TimeDelta::seconds(100);
    }
    assert_eq!(broken_rules(vec![attempt()], &[record(), again], &usual_log()), [Rule::NoRunTwice]);
}

#[test]
fn an_event_that_is_recorded_twice_is_found() {
    let mut twice = record();
    let copy = twice.events[1].clone();
    twice.events.insert(2, copy);
    assert_eq!(broken_rules(vec![attempt()], &[twice], &usual_log()), [Rule::NoRunTwice]);
}

#[test]
fn an_event_that_the_node_did_not_do_is_found() {
    let unknown_run = Run { attempt: Some(Uuid::from_u128(9)), ..record() };
    let broken = broken_rules(vec![], &[unknown_run], &usual_log());
    assert_eq!(broken, [Rule::NothingIsInvented]);
    let mut other = record();
    other.events[1].event = "nothing_to_do".into();
    assert_eq!(broken_rules(vec![attempt()], &[other], &usual_log()), [Rule::NothingIsInvented]);
    let mut cancelled = record();
    let by_server =
        RunEntry { event: "cancelled".into(), sequence: None, ..cancelled.events[2].clone() };
    cancelled.events.insert(2, by_server);
    assert_eq!(
        broken_rules(vec![attempt()], &[cancelled], &usual_log()),
        [Rule::NothingIsInvented]
    );
}

#[test]
fn an_end_that_differs_from_the_node_is_found() {
    let mut other = record();
    other.state = "cancelled".into();
    assert_eq!(broken_rules(vec![attempt()], &[other], &usual_log()), [Rule::EndsMatch]);
}

#[test]
fn a_start_outside_its_permit_is_found() {
    let late = Attempt {
        permit: Some(StartPermit::Online {
            requested_at: at(100),
            granted_at: at(101),
            start_before: at(122),
        }),
        ..attempt()
    };
    let without = Attempt { permit: None, ..attempt() };
    for attempt in [late, without] {
        assert_eq!(
            broken_rules(vec![attempt], &[record()], &usual_log()),
            [Rule::NoStartWithoutPermit]
        );
    }
}

#[test]
fn a_permit_without_a_window_or_a_desired_update_or_in_a_pause_is_found() {
    let mut shorter = usual_log();
    shorter.windows[0].window.1 = at(199);
    let mut closed = usual_log();
    closed.windows[0].validity.removed = Some(action(110, 111));
    let mut unwished = usual_log();
    unwished.assignments[0].validity.removed = Some(action(110, 111));
    let mut paused = usual_log();
    let validity = Validity::since(action(110, 111));
    paused.pauses.push(PauseRecord { scope: POLICY.into(), validity });
    let mut cancelled = usual_log();
    cancelled.cancellations.push(("inst-00000001".into(), action(110, 111)));
    for log in [shorter, closed, unwished, paused, cancelled] {
        assert_eq!(broken_rules(vec![attempt()], &[record()], &log), [Rule::NoStartWithoutPermit]);
    }
    let mut just_then = usual_log();
    just_then.windows[0].validity.removed = Some(action(120, 122));
    assert_eq!(
        broken_rules(vec![attempt()], &[record()], &just_then),
        [],
        "it may have come first"
    );
}

#[test]
fn an_offline_grant_is_checked_against_the_node_clock() {
    let ahead = |granted_at: i64, windows: (i64, i64), expires: i64| Attempt {
        permit: Some(StartPermit::Offline {
            requested_at: at(granted_at),
            granted_at: at(granted_at),
            windows: vec![(at(windows.0), at(windows.1))],
            expires: at(expires),
        }),
        ..attempt()
    };
    let check = |attempt| broken_rules(vec![attempt], &[record()], &usual_log());
    assert_eq!(check(ahead(50, (100, 200), 300)), []);
    assert_eq!(check(ahead(50, (100, 122), 300)), [Rule::NoStartWithoutPermit]);
    assert_eq!(check(ahead(50, (100, 200), 122)), [Rule::NoStartWithoutPermit]);
    assert_eq!(
        check(ahead(4, (100, 200), 300)),
        [Rule::NoStartWithoutPermit],
        "no update was desired yet"
    );
    let mut wrong_clock = ahead(50, (100, 200), 300);
    wrong_clock.events[2].at.node_time = at(222);
    assert_eq!(check(wrong_clock), [Rule::NoStartWithoutPermit]);
}

/// An order to update an instance now, created and replaced at these seconds.
fn order(created_at: i64, removed_at: Option<i64>) -> WindowRecord {
    WindowRecord {
        scope: "inst-00000001".into(),
        window: (at(created_at), at(200)),
        is_order: true,
        validity: Validity {
            created: action(created_at, created_at + 1),
            removed: removed_at.map(|removed_at| action(removed_at, removed_at + 1)),
        },
    }
}

#[test]
fn an_offline_grant_given_after_a_cancellation_is_found() {
    let ahead = |granted_at: i64| Attempt {
        permit: Some(StartPermit::Offline {
            requested_at: at(granted_at),
            granted_at: at(granted_at),
            windows: vec![(at(100), at(200))],
            expires: at(300),
        }),
        ..attempt()
    };
    let cancelled = |requested_at: i64| {
        let mut log = usual_log();
        let cancel = ("inst-00000001".into(), action(requested_at, requested_at + 1));
        log.cancellations.push(cancel);
        log
    };
    let check = |attempt, log: &OperatorLog| broken_rules(vec![attempt], &[record()], log);
    assert_eq!(
        check(ahead(115), &cancelled(110)),
        [Rule::NoStartWithoutPermit],
        "the window was cancelled while it was open"
    );
    assert_eq!(
        check(ahead(98), &cancelled(95)),
        [Rule::NoStartWithoutPermit],
        "the attempt was called off"
    );
    assert_eq!(check(ahead(80), &cancelled(85)), [], "the server did not know the attempt yet");
    assert_eq!(check(ahead(93), &cancelled(95)), [], "the grant was earlier");
    let mut ordered = cancelled(95);
    ordered.windows.push(order(97, None));
    assert_eq!(check(ahead(99), &ordered), [], "there was a new order");
    let mut unmade = ahead(50);
    if let Some(StartPermit::Offline { windows, .. }) = &mut unmade.permit {
        windows.push((at(220), at(230)));
    }
    assert_eq!(
        check(unmade, &usual_log()),
        [Rule::NoStartWithoutPermit],
        "one of its windows did not exist"
    );
}

#[test]
fn an_offline_grant_for_an_order_is_found() {
    let mut ordered = usual_log();
    ordered.windows = vec![order(60, None)];
    let ahead = Attempt {
        permit: Some(StartPermit::Offline {
            requested_at: at(70),
            granted_at: at(70),
            windows: vec![(at(60), at(200))],
            expires: at(300),
        }),
        ..attempt()
    };
    let check = |log: &OperatorLog| broken_rules(vec![ahead.clone()], &[record()], log);
    assert_eq!(check(&ordered), [Rule::NoStartWithoutPermit]);
    ordered.windows[0].is_order = false;
    assert_eq!(check(&ordered), [], "a schedule may be granted ahead");
}

#[test]
fn a_permit_from_a_replaced_order_is_found() {
    let mut ordered = usual_log();
    ordered.windows = vec![order(60, None)];
    assert_eq!(broken_rules(vec![attempt()], &[record()], &ordered), []);
    ordered.windows = vec![order(60, Some(110))];
    ordered.cancellations.push(("inst-00000001".into(), action(110, 111)));
    let broken = broken_rules(vec![attempt()], &[record()], &ordered);
    assert_eq!(broken, [Rule::NoStartWithoutPermit]);
}

#[test]
fn a_permit_for_a_called_off_attempt_is_found_even_in_a_later_window() {
    let mut cancelled = usual_log();
    cancelled.cancellations.push(("inst-00000001".into(), action(95, 96)));
    let broken = broken_rules(vec![attempt()], &[record()], &cancelled);
    assert_eq!(broken, [Rule::NoStartWithoutPermit]);
}

#[test]
fn a_repeated_schedule_permits_a_start_in_its_minutes() {
    let mut again = usual_log();
    again.windows.clear();
    let each = |minutes| ScheduleRecord {
        scope: "site-00000001".into(),
        schedule: RepeatedWindows::parse([minutes, "*", "*", "*", "*"], 80).expect("a cron"),
        validity: Validity::since(action(10, 11)),
    };
    again.repeated_schedules = vec![each("2")];
    assert_eq!(broken_rules(vec![attempt()], &[record()], &again), []);
    again.repeated_schedules = vec![each("3")];
    let broken = broken_rules(vec![attempt()], &[record()], &again);
    assert_eq!(broken, [Rule::NoStartWithoutPermit]);
}

#[test]
fn two_open_runs_are_found() {
    let second = Attempt {
        id: Uuid::from_u128(2),
        permit: None,
        events: vec![AttemptEvent { name: "downloading", at: moment(125) }],
        acknowledged: 1,
        ..attempt()
    };
    let open = run(2, Some(2), &[("downloading", "downloading", Some(1), 125)]);
    let broken = broken_rules(vec![attempt(), second], &[record(), open], &usual_log());
    assert_eq!(broken, [Rule::NoTwoOpenRuns]);
}

#[test]
fn a_forgotten_attempt_may_time_out() {
    let forgotten = Attempt {
        events: attempt().events[..3].to_vec(),
        acknowledged: 3,
        forgotten: true,
        ..attempt()
    };
    let mut given_up = record();
    given_up.events[3] = RunEntry {
        event: "timed_out".into(),
        state: "abandoned".into(),
        sequence: None,
        at: at(200),
    };
    given_up.state = "abandoned".into();
    assert_eq!(broken_rules(vec![forgotten], &[given_up.clone()], &usual_log()), []);
    let untold = Attempt { acknowledged: 3, forgotten: true, ..attempt() };
    assert_eq!(broken_rules(vec![untold.clone()], &[given_up.clone()], &usual_log()), []);
    let remembered = Attempt { forgotten: false, ..untold };
    let broken = broken_rules(vec![remembered], &[given_up], &usual_log());
    assert_eq!(broken, [Rule::EndsMatch], "the node reported its end later");
}
