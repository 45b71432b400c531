//! Runs that are given up for lack of news.

use evenkeel_simulator::truth::OwnTruth;

use super::eim;
use super::own::{attempt, record};
use super::*;

#[test]
fn a_run_that_was_given_up_too_early_is_found() {
    let mut forgotten = attempt();
    forgotten.events.truncate(3);
    forgotten.acknowledged = 3;
    forgotten.forgotten = true;
    let truth = OwnTruth {
        attempts: vec![forgotten],
        facts_digest: Vec::new(),
    };
    let given_up = |at_second: i64| {
        let mut run = record();
        run.events[3] = Entry {
            event: "timed_out".into(),
            state: "abandoned".into(),
            sequence: None,
            at: at(at_second),
        };
        run.state = "abandoned".into();
        own_broken(&member(), &truth, &[run], &book())
    };
    // It was applying since 123.
    assert_eq!(given_up(173), []);
    assert_eq!(given_up(172), [Rule::NotGivenUpEarly]);
}

#[test]
fn what_changed_nothing_does_not_start_the_time_anew() {
    let events = [
        ("began", "applying", None, 103),
        ("began", "applying", None, 140),
        ("timed_out", "abandoned", None, 154),
        ("finished", "succeeded", None, 155),
    ];
    let mut truth = eim::truth();
    truth.said[1].between.1 = at(154);
    truth.said[2].between = (at(155), at(156));
    truth.said[3].between = (at(157), at(158));
    let member = Member {
        is_eim: true,
        ..member()
    };
    let judged = |events: &[_]| eim_broken(&member, &truth, &[run(1, None, events)], &book());
    assert_eq!(judged(&events), []);
    let mut early = events;
    early[2].3 = 150;
    assert_eq!(judged(&early), [Rule::NotGivenUpEarly]);
}
