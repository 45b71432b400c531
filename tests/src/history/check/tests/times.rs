//! Servers with wrong clocks, and a database that cannot be written.

use evenkeel_simulator::ground_truth::OwnGroundTruth;

use super::own::{attempt, record};
use super::*;

/// Rules that are broken if the last event was recorded at this second.
fn check_last_event(at_second: i64, log: &OperatorLog) -> Vec<Rule> {
    let ground_truth = OwnGroundTruth { attempts: vec![attempt()], facts_digest: Vec::new() };
    let mut run = record();
    run.events[3].at = at(at_second);
    broken_own_rules(&member(), &ground_truth, &[run], log)
}

#[test]
fn an_event_that_was_recorded_with_a_shifted_clock_is_found() {
    let year = 365 * 24 * 3_600;
    assert_eq!(check_last_event(1_000, &usual_log()), []);
    assert_eq!(check_last_event(131 + year, &usual_log()), [Rule::TimesAreTrue]);
    let mut early = usual_log();
    early.period.0 = at(92);
    assert_eq!(check_last_event(131, &early), [Rule::TimesAreTrue], "the first event was earlier");
}

#[test]
fn an_event_that_was_recorded_while_the_database_was_read_only_is_found() {
    let mut log = usual_log();
    log.read_only = vec![(at(300), at(310)), (at(400), at(410))];
    for (second, broken) in [(300, false), (301, true), (309, true), (310, false), (405, true)] {
        let expected: &[Rule] = if broken { &[Rule::NoWriteWhileReadOnly] } else { &[] };
        assert_eq!(check_last_event(second, &log), expected, "{second}");
    }
}
