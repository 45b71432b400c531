//! Runs that time out.

use evenkeel_simulator::ground_truth::OwnGroundTruth;

use super::eim;
use super::own::{attempt, record};
use super::*;

#[test]
fn a_run_that_timed_out_too_early_is_found() {
    let mut forgotten = attempt();
    forgotten.events.truncate(3);
    forgotten.acknowledged = 3;
    forgotten.forgotten = true;
    let ground_truth = OwnGroundTruth { attempts: vec![forgotten], facts_digest: Vec::new() };
    let given_up = |at_second: i64| {
        let mut run = record();
        run.events[3] = RunEntry {
            event: "timed_out".into(),
            state: "abandoned".into(),
            sequence: None,
            at: at(at_second),
        };
        run.state = "abandoned".into();
        broken_own_rules(&member(), &ground_truth, &[run], &usual_log())
    };
    // The run was applying since 123.
    assert_eq!(given_up(173), []);
    assert_eq!(given_up(172), [Rule::NoEarlyTimeout]);
}

#[test]
fn an_event_without_a_change_of_state_does_not_restart_the_timeout() {
    let events = [
        ("began", "applying", None, 103),
        ("began", "applying", None, 140),
        ("timed_out", "abandoned", None, 154),
        ("finished", "succeeded", None, 155),
    ];
    let mut ground_truth = eim::ground_truth();
    ground_truth.reports[1].between.1 = at(154);
    ground_truth.reports[2].between = (at(155), at(156));
    ground_truth.reports[3].between = (at(157), at(158));
    let member = SimulatedMember { is_eim: true, ..member() };
    let check = |events: &[_]| {
        broken_eim_rules(&member, &ground_truth, &[run(1, None, events)], &usual_log())
    };
    assert_eq!(check(&events), []);
    let mut early = events;
    early[2].3 = 150;
    assert_eq!(check(&early), [Rule::NoEarlyTimeout]);
}
