//! Nodes of our own agent.

use evenkeel_simulator::truth::{Attempt, Leave, OwnTruth, Told};

use super::*;
use evenkeel_simulator::eim::cron::Repeats;

use crate::history::book::{Paused, Repeated};

/// An attempt that fetched, asked at 120, began at 122 and finished.
pub(super) fn attempt() -> Attempt {
    let told = [
        ("downloading", 90),
        ("downloaded", 91),
        ("began", 122),
        ("finished", 130),
    ];
    Attempt {
        id: Uuid::from_u128(1),
        digest: POLICY.into(),
        events: told
            .map(|(news, time)| Told {
                news,
                at: moment(time),
            })
            .to_vec(),
        acknowledged: 4,
        leave: Some(Leave::Asked {
            asked: at(120),
            granted: at(121),
            before: at(200),
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

/// The rules that are broken.
fn broken(attempts: Vec<Attempt>, runs: &[Run], book: &Book) -> Vec<Rule> {
    let truth = OwnTruth {
        attempts,
        facts_digest: Vec::new(),
    };
    own_broken(&member(), &truth, runs, book)
}

#[test]
fn what_was_recorded_as_it_happened_is_fine() {
    assert_eq!(broken(vec![attempt()], &[record()], &book()), []);
}

#[test]
fn an_acknowledged_attempt_without_a_run_is_lost() {
    assert_eq!(
        broken(vec![attempt()], &[], &book()),
        [Rule::NoReportIsLost]
    );
    let silent = Attempt {
        acknowledged: 0,
        ..attempt()
    };
    assert_eq!(
        broken(vec![silent], &[], &book()),
        [],
        "it was not acknowledged"
    );
}

#[test]
fn an_acknowledged_event_that_is_not_recorded_is_lost() {
    let mut short = record();
    short.events.pop();
    short.state = "applying".into();
    let found = broken(vec![attempt()], &[short], &book());
    assert_eq!(found, [Rule::NoReportIsLost, Rule::EndsMatch]);
}

#[test]
fn an_attempt_that_is_two_runs_is_found() {
    let mut again = record();
    again.id = "osupdaterun-00000002".into();
    for entry in &mut again.events {
        entry.at += TimeDelta::seconds(100);
    }
    assert_eq!(
        broken(vec![attempt()], &[record(), again], &book()),
        [Rule::NoRunTwice]
    );
}

#[test]
fn an_event_that_is_recorded_twice_is_found() {
    let mut twice = record();
    let copy = twice.events[1].clone();
    twice.events.insert(2, copy);
    assert_eq!(
        broken(vec![attempt()], &[twice], &book()),
        [Rule::NoRunTwice]
    );
}

#[test]
fn what_nobody_did_is_found() {
    let stranger = Run {
        attempt: Some(Uuid::from_u128(9)),
        ..record()
    };
    let found = broken(vec![], &[stranger], &book());
    assert_eq!(found, [Rule::NothingIsInvented]);
    let mut other = record();
    other.events[1].event = "nothing_to_do".into();
    assert_eq!(
        broken(vec![attempt()], &[other], &book()),
        [Rule::NothingIsInvented]
    );
    let mut cancelled = record();
    let by_server = Entry {
        event: "cancelled".into(),
        sequence: None,
        ..cancelled.events[2].clone()
    };
    cancelled.events.insert(2, by_server);
    assert_eq!(
        broken(vec![attempt()], &[cancelled], &book()),
        [Rule::NothingIsInvented]
    );
}

#[test]
fn another_end_than_the_nodes_is_found() {
    let mut other = record();
    other.state = "cancelled".into();
    assert_eq!(
        broken(vec![attempt()], &[other], &book()),
        [Rule::EndsMatch]
    );
}

#[test]
fn a_begin_outside_its_leave_is_found() {
    let late = Attempt {
        leave: Some(Leave::Asked {
            asked: at(100),
            granted: at(101),
            before: at(122),
        }),
        ..attempt()
    };
    let without = Attempt {
        leave: None,
        ..attempt()
    };
    for attempt in [late, without] {
        assert_eq!(
            broken(vec![attempt], &[record()], &book()),
            [Rule::NoBeginWithoutLeave]
        );
    }
}

#[test]
fn leave_where_there_was_no_window_no_wish_or_a_pause_is_found() {
    let mut shorter = book();
    shorter.windows[0].window.1 = at(199);
    let mut closed = book();
    closed.windows[0].held.gone = Some(step(110, 111));
    let mut unwished = book();
    unwished.wishes[0].held.gone = Some(step(110, 111));
    let mut paused = book();
    let held = Held::since(step(110, 111));
    paused.pauses.push(Paused {
        scope: POLICY.into(),
        held,
    });
    let mut cancelled = book();
    cancelled
        .cancelled
        .push(("inst-00000001".into(), step(110, 111)));
    for book in [shorter, closed, unwished, paused, cancelled] {
        assert_eq!(
            broken(vec![attempt()], &[record()], &book),
            [Rule::NoBeginWithoutLeave]
        );
    }
    let mut just_then = book();
    just_then.windows[0].held.gone = Some(step(120, 122));
    assert_eq!(
        broken(vec![attempt()], &[record()], &just_then),
        [],
        "it may have come first"
    );
}

#[test]
fn leave_from_before_is_judged_by_the_nodes_clock() {
    let ahead = |given: i64, windows: (i64, i64), expires: i64| Attempt {
        leave: Some(Leave::Ahead {
            asked: at(given),
            given: at(given),
            windows: vec![(at(windows.0), at(windows.1))],
            expires: at(expires),
        }),
        ..attempt()
    };
    let judged = |attempt| broken(vec![attempt], &[record()], &book());
    assert_eq!(judged(ahead(50, (100, 200), 300)), []);
    assert_eq!(
        judged(ahead(50, (100, 122), 300)),
        [Rule::NoBeginWithoutLeave]
    );
    assert_eq!(
        judged(ahead(50, (100, 200), 122)),
        [Rule::NoBeginWithoutLeave]
    );
    assert_eq!(
        judged(ahead(4, (100, 200), 300)),
        [Rule::NoBeginWithoutLeave],
        "no wish yet"
    );
    let mut wrong_clock = ahead(50, (100, 200), 300);
    wrong_clock.events[2].at.node = at(222);
    assert_eq!(judged(wrong_clock), [Rule::NoBeginWithoutLeave]);
}

/// An instance's order to update now, made and replaced in these seconds.
fn order(made: i64, gone: Option<i64>) -> Opened {
    Opened {
        scope: "inst-00000001".into(),
        window: (at(made), at(200)),
        is_order: true,
        held: Held {
            made: step(made, made + 1),
            gone: gone.map(|gone| step(gone, gone + 1)),
        },
    }
}

#[test]
fn leave_from_before_that_was_given_after_a_cancellation_is_found() {
    let ahead = |given: i64| Attempt {
        leave: Some(Leave::Ahead {
            asked: at(given),
            given: at(given),
            windows: vec![(at(100), at(200))],
            expires: at(300),
        }),
        ..attempt()
    };
    let cancelled = |asked: i64| {
        let mut book = book();
        let cancel = ("inst-00000001".into(), step(asked, asked + 1));
        book.cancelled.push(cancel);
        book
    };
    let judged = |attempt, book: &Book| broken(vec![attempt], &[record()], book);
    assert_eq!(
        judged(ahead(115), &cancelled(110)),
        [Rule::NoBeginWithoutLeave],
        "the window was cancelled while it was open"
    );
    assert_eq!(
        judged(ahead(98), &cancelled(95)),
        [Rule::NoBeginWithoutLeave],
        "the attempt was called off"
    );
    assert_eq!(
        judged(ahead(80), &cancelled(85)),
        [],
        "nobody had heard of it yet"
    );
    assert_eq!(judged(ahead(93), &cancelled(95)), [], "it was given before");
    let mut ordered = cancelled(95);
    ordered.windows.push(order(97, None));
    assert_eq!(judged(ahead(99), &ordered), [], "it was ordered anew");
    let mut unmade = ahead(50);
    if let Some(Leave::Ahead { windows, .. }) = &mut unmade.leave {
        windows.push((at(220), at(230)));
    }
    assert_eq!(
        judged(unmade, &book()),
        [Rule::NoBeginWithoutLeave],
        "one of its windows was never made"
    );
}

#[test]
fn an_order_that_was_granted_ahead_is_found() {
    let mut ordered = book();
    ordered.windows = vec![order(60, None)];
    let ahead = Attempt {
        leave: Some(Leave::Ahead {
            asked: at(70),
            given: at(70),
            windows: vec![(at(60), at(200))],
            expires: at(300),
        }),
        ..attempt()
    };
    let judged = |book: &Book| broken(vec![ahead.clone()], &[record()], book);
    assert_eq!(judged(&ordered), [Rule::NoBeginWithoutLeave]);
    ordered.windows[0].is_order = false;
    assert_eq!(judged(&ordered), [], "a schedule is");
}

#[test]
fn leave_by_an_order_that_was_replaced_is_found() {
    let mut ordered = book();
    ordered.windows = vec![order(60, None)];
    assert_eq!(broken(vec![attempt()], &[record()], &ordered), []);
    ordered.windows = vec![order(60, Some(110))];
    ordered
        .cancelled
        .push(("inst-00000001".into(), step(110, 111)));
    let found = broken(vec![attempt()], &[record()], &ordered);
    assert_eq!(found, [Rule::NoBeginWithoutLeave]);
}

#[test]
fn leave_for_an_attempt_that_was_called_off_is_found_also_in_a_window_that_opened_later() {
    let mut cancelled = book();
    cancelled
        .cancelled
        .push(("inst-00000001".into(), step(95, 96)));
    let found = broken(vec![attempt()], &[record()], &cancelled);
    assert_eq!(found, [Rule::NoBeginWithoutLeave]);
}

#[test]
fn a_window_that_repeats_itself_gives_leave_in_its_minutes() {
    let mut again = book();
    again.windows.clear();
    let each = |minutes| Repeated {
        scope: "site-00000001".into(),
        schedule: Repeats::read([minutes, "*", "*", "*", "*"], 80).expect("a cron"),
        held: Held::since(step(10, 11)),
    };
    again.repeated = vec![each("2")];
    assert_eq!(broken(vec![attempt()], &[record()], &again), []);
    again.repeated = vec![each("3")];
    let found = broken(vec![attempt()], &[record()], &again);
    assert_eq!(found, [Rule::NoBeginWithoutLeave]);
}

#[test]
fn two_open_runs_are_found() {
    let second = Attempt {
        id: Uuid::from_u128(2),
        leave: None,
        events: vec![Told {
            news: "downloading",
            at: moment(125),
        }],
        acknowledged: 1,
        ..attempt()
    };
    let open = run(2, Some(2), &[("downloading", "downloading", Some(1), 125)]);
    let found = broken(vec![attempt(), second], &[record(), open], &book());
    assert_eq!(found, [Rule::NoTwoOpenRuns]);
}

#[test]
fn a_forgotten_attempt_may_be_given_up() {
    let forgotten = Attempt {
        events: attempt().events[..3].to_vec(),
        acknowledged: 3,
        forgotten: true,
        ..attempt()
    };
    let mut given_up = record();
    given_up.events[3] = Entry {
        event: "timed_out".into(),
        state: "abandoned".into(),
        sequence: None,
        at: at(200),
    };
    given_up.state = "abandoned".into();
    assert_eq!(broken(vec![forgotten], &[given_up.clone()], &book()), []);
    let untold = Attempt {
        acknowledged: 3,
        forgotten: true,
        ..attempt()
    };
    assert_eq!(
        broken(vec![untold.clone()], &[given_up.clone()], &book()),
        []
    );
    let remembered = Attempt {
        forgotten: false,
        ..untold
    };
    let found = broken(vec![remembered], &[given_up], &book());
    assert_eq!(found, [Rule::EndsMatch], "the node told its end later");
}
