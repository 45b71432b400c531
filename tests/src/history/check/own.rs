//! Nodes with our own agent: every attempt is one run, and every acknowledged event is one event of it.

use chrono::TimeDelta;
use evenkeel_simulator::clock::{Moment, Time};
use evenkeel_simulator::ground_truth::{Attempt, OwnGroundTruth, Span, StartPermit};

use super::{Findings, Rule};
use crate::history::operator_log::OperatorLog;
use crate::history::run_records::{Run, RunEntry};

/// Precision of stored times; the protocol is finer.
const STORE_PRECISION: TimeDelta = TimeDelta::milliseconds(1);

/// Checks the runs of one node.
pub(super) fn check_own(
    findings: &mut Findings<'_>,
    ground_truth: &OwnGroundTruth,
    runs: &[&Run],
    log: &OperatorLog,
) {
    for run in runs {
        let matching = ground_truth.attempts.iter().find(|attempt| Some(attempt.id) == run.attempt);
        if !matching.is_some_and(Attempt::creates_run) {
            let message = format!("the node did nothing that explains {}", run.id);
            findings.add(Rule::NothingIsInvented, message);
        }
    }
    for attempt in &ground_truth.attempts {
        let of: Vec<_> = runs.iter().filter(|run| run.attempt == Some(attempt.id)).collect();
        if of.len() > 1 {
            let message = format!("attempt {} has {} runs", attempt.id, of.len());
            findings.add(Rule::NoRunTwice, message);
        }
        match of.first() {
            Some(run) => check_recorded_events(findings, attempt, run),
            None if attempt.acknowledged > 0 && attempt.creates_run() => {
                let message = format!("attempt {} was acknowledged but has no run", attempt.id);
                findings.add(Rule::NoReportIsLost, message);
            }
            None => {}
        }
        check_start(findings, attempt, of.first().copied(), log);
    }
}

/// Checks that reported events are recorded once and in order, and that acknowledged events are there.
fn check_recorded_events(findings: &mut Findings<'_>, attempt: &Attempt, run: &Run) {
    let recorded: Vec<&RunEntry> =
        run.events.iter().filter(|entry| entry.sequence.is_some()).collect();
    let numbers: Vec<_> = recorded.iter().filter_map(|entry| entry.sequence).collect();
    let counted: Vec<_> = (1..).take(recorded.len()).collect();
    if numbers != counted {
        let message = format!("{} has events with the numbers {numbers:?}", run.id);
        findings.add(Rule::NoRunTwice, message);
        return;
    }
    let real: Vec<_> = attempt.events.iter().map(|event| event.name).collect();
    let names: Vec<_> = recorded.iter().map(|entry| entry.event.as_str()).collect();
    if !real.starts_with(&names) {
        let message = format!("{} records {names:?}, but the node did {real:?}", run.id);
        findings.add(Rule::NothingIsInvented, message);
    }
    if names.len() < usize::try_from(attempt.acknowledged).unwrap_or(usize::MAX) {
        let message = format!("{} has {} of {} events", run.id, names.len(), attempt.acknowledged);
        findings.add(Rule::NoReportIsLost, message);
    }
    for entry in run.events.iter().filter(|entry| entry.sequence.is_none()) {
        let is_begun = attempt.began().is_some();
        let may_be = match entry.event.as_str() {
            // Later reports of the node replace it; then the states must match below.
            "timed_out" => true,
            "cancelled" => !is_begun,
            "superseded" => attempt.forgotten,
            _ => false,
        };
        if !may_be {
            let message = format!("the server added {} to {}", entry.event, run.id);
            findings.add(Rule::NothingIsInvented, message);
        }
    }
    check_end(findings, attempt, run);
}

/// Checks that the run ended as the attempt did.
fn check_end(findings: &mut Findings<'_>, attempt: &Attempt, run: &Run) {
    let last = attempt.events.last().map(|event| event.name);
    let should = match last {
        Some("finished" | "nothing_to_do") => "succeeded",
        Some("failed") => "failed",
        Some("reverted") => "reverted",
        Some("cancelled") => "cancelled",
        _ if attempt.forgotten => return,
        _ => "open",
    };
    // An attempt that was forgotten before it was fully reported can only time out.
    let reported = run.events.iter().filter(|entry| entry.sequence.is_some());
    let is_unreported = attempt.forgotten && reported.count() < attempt.events.len();
    if is_unreported && (!run.has_ended() || run.state == "abandoned") {
        return;
    }
    let is_so = if should == "open" { !run.has_ended() } else { run.state == should };
    if !is_so {
        let message =
            format!("{} is {}, but the last event of the node was {last:?}", run.id, run.state);
        findings.add(Rule::EndsMatch, message);
    }
}

/// Checks that a started attempt had a permit, by the clock of the side that gave it.
fn check_start(
    findings: &mut Findings<'_>,
    attempt: &Attempt,
    run: Option<&&Run>,
    log: &OperatorLog,
) {
    let Some(began) = attempt.began() else {
        return;
    };
    let check = StartCheck {
        opened: run.and_then(|run| run.opened_at()),
        policy: attempt.digest.split('/').next(),
        began,
        log,
    };
    let wrong = match &attempt.permit {
        None => Some("it had no permit".to_owned()),
        Some(StartPermit::Online { requested_at, granted_at: granted, start_before: before }) => {
            check.find_online_fault((*requested_at, *granted), *before)
        }
        Some(StartPermit::Offline { requested_at, granted_at, windows, expires }) => {
            check.find_offline_fault((*requested_at, *granted_at), windows, *expires)
        }
    };
    if let Some(wrong) = wrong {
        let message = format!(
            "attempt {} started at {} (its own clock {}): {wrong}",
            attempt.id, began.true_time, began.node_time
        );
        findings.add(Rule::NoStartWithoutPermit, message);
    }
}

/// A start, and what operators wanted at that time.
struct StartCheck<'a> {
    /// When the server first received something about the attempt.
    opened: Option<Time>,
    policy: Option<&'a str>,
    began: Moment,
    log: &'a OperatorLog,
}

impl StartCheck<'_> {
    /// What is wrong with an online permit. The server decided at one instant; a change at that instant may or may not
    /// be visible.
    fn find_online_fault(&self, (requested_at, granted): Span, before: Time) -> Option<String> {
        let (log, between) = (self.log, (requested_at, granted));
        let at = (granted, granted);
        let windows = || log.windows_closing_at(granted, before);
        let is_ordered = log.has_ordered_window(at, (granted, before));
        if self.began.true_time + STORE_PRECISION < granted || before <= self.began.true_time {
            Some(format!("the permit of {granted} was valid before {before}"))
        } else if !is_ordered && windows().next().is_none() {
            Some(format!("granted at {granted} before {before}, but there was no window"))
        } else if !is_ordered && windows().all(|window| log.is_cancelled(window, between)) {
            Some(format!("granted at {granted} in a window that was cancelled"))
        } else if self.is_called_off(between) {
            Some(format!("granted at {granted} after it was called off"))
        } else if !log.may_be_assigned(self.policy, at) {
            Some(format!("granted at {granted}, but it was not desired"))
        } else {
            let pause = log.find_pause(self.policy, between);
            pause.map(|pause| format!("granted at {granted} in a pause of {}", pause.scope))
        }
    }

    /// What is wrong with an offline grant, which the node checks by its own clock. A removal after the grant reaches
    /// an unreachable node only when the grant expires, so that is no fault. But nothing may have been removed before
    /// the grant.
    fn find_offline_fault(&self, between: Span, windows: &[Span], expires: Time) -> Option<String> {
        let (log, node, granted_at) = (self.log, self.began.node_time, between.1);
        let is_inside = |(start, end): &&Span| *start <= node && node < *end;
        // The last window ends with the grant. An order is never granted ahead.
        let is_made = |window: &Span| log.has_window(between, *window) || window.1 == expires;
        if expires <= node || !windows.iter().any(|window| is_inside(&window)) {
            Some(format!("offline grant for {windows:?} until {expires}"))
        } else if !windows.iter().all(is_made) {
            Some(format!(
                "offline grant of {granted_at} for {windows:?}, but there was no such window"
            ))
        } else if windows.iter().any(|window| log.is_cancelled(*window, between)) {
            Some(format!(
                "offline grant of {granted_at} for {windows:?}, one of which was cancelled"
            ))
        } else if self.is_called_off(between) {
            Some(format!("offline grant of {granted_at} after it was called off"))
        } else if !log.may_be_assigned(self.policy, between) {
            Some(format!("offline grant of {granted_at}, but it was not desired"))
        } else {
            let pause = log.find_pause(self.policy, between);
            pause
                .map(|pause| format!("offline grant of {granted_at} in a pause of {}", pause.scope))
        }
    }

    /// Whether the attempt had been called off before the permit was requested.
    fn is_called_off(&self, between: Span) -> bool {
        let log = self.log;
        self.opened.is_some_and(|opened| log.is_called_off(opened, between))
    }
}
