//! Each rule, broken on purpose.

mod delivery;
mod eim;
mod images;
mod own;
mod restored;
mod run_timeouts;
mod times;

use chrono::{DateTime, TimeDelta};
use evenkeel_simulator::clock::{Moment, Time};
use evenkeel_simulator::ground_truth::{EimGroundTruth, OwnGroundTruth};
use uuid::Uuid;

use super::{Rule, check_eim_node, check_own_node};
use crate::history::operator_log::{
    Action, AssignmentRecord, OperatorLog, SimulatedMember, Validity, WindowRecord,
};
use crate::history::run_records::{Run, RunEntry};

const POLICY: &str = "osupdatepolicy-00000001";

fn at(seconds: i64) -> Time {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
}

fn moment(seconds: i64) -> Moment {
    Moment { node_time: at(seconds), true_time: at(seconds) }
}

fn member() -> SimulatedMember {
    SimulatedMember {
        host: "host-00000001".into(),
        instance: "inst-00000001".into(),
        site: "site-00000001".into(),
        is_eim: false,
        is_image: false,
    }
}

fn action(requested_at: i64, done: i64) -> Action {
    Action { requested_at: at(requested_at), done_at: Some(at(done)) }
}

/// A window from 100 to 200, created at 10, an assignment to the project since 5, and a run timeout of 50 seconds. The
/// history lasts until 1,000.
fn usual_log() -> OperatorLog {
    OperatorLog {
        windows: vec![WindowRecord {
            scope: "site-00000001".into(),
            window: (at(100), at(200)),
            is_order: false,
            validity: Validity::since(action(10, 11)),
        }],
        assignments: vec![AssignmentRecord {
            scope: "project".into(),
            policy: POLICY.into(),
            validity: Validity::since(action(5, 6)),
        }],
        run_timeout: TimeDelta::seconds(50),
        period: (at(0), at(1_000)),
        ..OperatorLog::default()
    }
}

fn run(number: u32, attempt: Option<u128>, events: &[(&str, &str, Option<u32>, i64)]) -> Run {
    let entry = |(event, state, sequence, time): &(&str, &str, Option<u32>, i64)| RunEntry {
        event: (*event).to_owned(),
        state: (*state).to_owned(),
        sequence: *sequence,
        at: at(*time),
    };
    Run {
        id: format!("osupdaterun-{number:08x}"),
        instance: "inst-00000001".into(),
        attempt: attempt.map(Uuid::from_u128),
        state: events.last().map(|last| last.1.to_owned()).unwrap_or_default(),
        image: None,
        events: events.iter().map(entry).collect(),
    }
}

/// Rules that the records of a node with our own agent break.
fn broken_own_rules(
    member: &SimulatedMember,
    ground_truth: &OwnGroundTruth,
    runs: &[Run],
    log: &OperatorLog,
) -> Vec<Rule> {
    let runs: Vec<_> = runs.iter().collect();
    let violations = check_own_node(member, ground_truth, &runs, log);
    violations.into_iter().map(|violation| violation.rule).collect()
}

/// Rules that the records of a node with EIM's agent break.
fn broken_eim_rules(
    member: &SimulatedMember,
    ground_truth: &EimGroundTruth,
    runs: &[Run],
    log: &OperatorLog,
) -> Vec<Rule> {
    let runs: Vec<_> = runs.iter().collect();
    let violations = check_eim_node(member, ground_truth, &runs, log);
    violations.into_iter().map(|violation| violation.rule).collect()
}
