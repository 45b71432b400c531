//! Compares what servers recorded with what the nodes did.

mod delivery;
mod eim;
mod images;
mod own;
pub mod restored;
#[cfg(test)]
mod tests;
mod times;

use std::fmt;

use chrono::TimeDelta;
use evenkeel_simulator::ground_truth::{EimGroundTruth, OwnGroundTruth};

use super::operator_log::{OperatorLog, SimulatedMember};
use super::run_records::Run;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// ID of the instance.
    pub instance: String,
    /// What is wrong.
    pub message: String,
}

/// A rule that every history must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// What the server acknowledged is stored.
    NoReportIsLost,
    /// An event is recorded once.
    NoRunTwice,
    /// Every recorded event happened.
    NothingIsInvented,
    /// A run belongs to the machine that did it, also if IDs were given to another machine after a restore.
    NoMachineIsMistaken,
    /// An ID belongs to one machine, also if the database that gave it was replaced by an older one.
    NoIdentityTwice,
    /// A machine installs a version once.
    NothingTwice,
    /// In the end each machine has the desired version, and the servers know it.
    FleetConverges,
    /// An update starts only in a window and with a permit, by the clock of the side that decides.
    NoStartWithoutPermit,
    /// An instance has at most one open run.
    NoTwoOpenRuns,
    /// A run ends in the state that the node reached.
    EndsMatch,
    /// A run times out only after it stayed in one state for the configured time.
    NoEarlyTimeout,
    /// An event is recorded with a time of the history, whatever the clock of a server shows.
    TimesAreTrue,
    /// Nothing is recorded while the database cannot be written.
    NoWriteWhileReadOnly,
    /// A node gets only a desired image, and an older image only if the policy allows it.
    NoUndesiredImage,
    /// The target of a node does not change while an update to it runs.
    TargetIsFrozen,
    /// A node retries an image that it reverted only after an order that was given later, and never with an older
    /// offline grant.
    NoRetryWithoutOrder,
    /// A run records the image before, the target image and the image that was booted in the end.
    BootedIsTrue,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}: {}", self.rule, self.instance, self.message)
    }
}

/// Collects the violations of one node.
#[derive(Debug)]
struct Findings<'a> {
    member: &'a SimulatedMember,
    violations: Vec<Violation>,
}

impl Findings<'_> {
    fn add(&mut self, rule: Rule, message: String) {
        self.violations.push(Violation { rule, instance: self.member.instance.clone(), message });
    }
}

/// Checks the records of a node with our own agent.
pub fn check_own_node(
    member: &SimulatedMember,
    ground_truth: &OwnGroundTruth,
    runs: &[&Run],
    log: &OperatorLog,
) -> Vec<Violation> {
    let mut findings = Findings { member, violations: Vec::new() };
    let log = &log.for_node(member);
    check_open_runs(&mut findings, runs);
    check_timeouts(&mut findings, runs, log);
    times::check_times(&mut findings, runs, log);
    own::check_own(&mut findings, ground_truth, runs, log);
    images::check_images(&mut findings, ground_truth, runs, log);
    findings.violations
}

/// Checks the records of a node with EIM's agent.
pub fn check_eim_node(
    member: &SimulatedMember,
    ground_truth: &EimGroundTruth,
    runs: &[&Run],
    log: &OperatorLog,
) -> Vec<Violation> {
    let mut findings = Findings { member, violations: Vec::new() };
    let log = &log.for_node(member);
    check_open_runs(&mut findings, runs);
    check_timeouts(&mut findings, runs, log);
    times::check_times(&mut findings, runs, log);
    eim::check_eim(&mut findings, ground_truth, runs, log);
    findings.violations
}

/// Precision of stored times; clocks are finer.
const STORE_PRECISION: TimeDelta = TimeDelta::milliseconds(1);

/// Checks that runs time out only after they stayed in one state for long enough.
fn check_timeouts(findings: &mut Findings<'_>, runs: &[&Run], log: &OperatorLog) {
    for run in runs {
        let Some(at) = run.events.iter().position(|one| one.event == "timed_out") else {
            continue;
        };
        let (before, rest) = run.events.split_at(at);
        let state = before.last().map(|last| last.state.as_str());
        // An event that does not change the state does not restart the timeout.
        let since = before.iter().rev().take_while(|one| Some(one.state.as_str()) == state).last();
        let given_up = rest[0].at;
        if since.is_none_or(|since| given_up + STORE_PRECISION < since.at + log.run_timeout) {
            let since = since.map(|since| since.at);
            let message = format!(
                "{} timed out at {given_up}, its state had not changed since {since:?}",
                run.id
            );
            findings.add(Rule::NoEarlyTimeout, message);
        }
    }
}

/// Checks that an instance has one open run at a time, and that the events of each run are in order.
fn check_open_runs(findings: &mut Findings<'_>, runs: &[&Run]) {
    let mut spans: Vec<_> = runs.iter().filter_map(|run| Some((run.opened_at()?, *run))).collect();
    spans.sort_by_key(|(opened, run)| (*opened, run.ended_at()));
    for pair in spans.windows(2) {
        let ((_, first), (opened, second)) = (pair[0], pair[1]);
        if first.ended_at().is_none_or(|ended| opened < ended) {
            let message =
                format!("{} was opened at {opened} while {} was open", second.id, first.id);
            findings.add(Rule::NoTwoOpenRuns, message);
        }
    }
    for run in runs {
        let is_in_order = run.events.is_sorted_by_key(|entry| entry.at);
        if run.events.is_empty() || !is_in_order {
            let message = format!("{} has no events, or they are out of order", run.id);
            findings.add(Rule::NothingIsInvented, message);
        }
    }
}
