//! Nodes with EIM's agent. They report no attempts, so each event of a run is compared with the status report that was
//! in flight at that instant, and with the update that this report is about.
//!
//! EIM's protocol cannot distinguish some cases: an end that looks exactly like the end before it, a failure without
//! detail that was reported only a few times (the agent reports the same if it cannot read its state file), and the
//! first report, which is a baseline. In these cases the check requires only that the server invents nothing.

use std::collections::BTreeSet;

use evenkeel_simulator::clock::Time;
use evenkeel_simulator::ground_truth::{EimGroundTruth, ImageReplacement, StatusReport, UpdateEnd};

use super::delivery::check_delivered_windows;
use super::{Findings, Rule, STORE_PRECISION};
use crate::history::operator_log::OperatorLog;
use crate::history::run_records::{Run, RunEntry};

/// A failure without detail must be recorded if the server acknowledged at least this number of reports.
const MIN_FAILURE_REPORTS: u64 = 8;

/// What a run records about updates.
#[derive(Debug)]
struct RunTrace<'a> {
    run: &'a Run,
    /// The updates that its events are about.
    updates: BTreeSet<usize>,
    /// The update whose end it records, and the resulting state.
    end: Option<(usize, &'static str)>,
    /// Whether a spurious report is part of it.
    has_spurious_report: bool,
    /// Whether the server cancelled an update that was only downloaded, because it was no longer desired.
    is_called_off: bool,
}

/// Checks the runs of one node.
pub(super) fn check_eim(
    findings: &mut Findings<'_>,
    ground_truth: &EimGroundTruth,
    runs: &[&Run],
    log: &OperatorLog,
) {
    let traces: Vec<_> =
        runs.iter().map(|run| trace_run(findings, ground_truth, run, log)).collect();
    for trace in &traces {
        let distinguishable: Vec<_> = trace
            .updates
            .iter()
            .filter(|update| is_distinguishable(ground_truth, **update))
            .collect();
        let last = trace.updates.last();
        if distinguishable.iter().any(|update| Some(*update) != last) {
            let message = format!("{} is about the updates {:?}", trace.run.id, trace.updates);
            findings.add(Rule::NoRunTwice, message);
        }
    }
    for (number, update) in ground_truth.updates.iter().enumerate() {
        let of: Vec<_> = traces.iter().filter(|trace| trace.updates.contains(&number)).collect();
        let names: Vec<_> = of.iter().map(|trace| trace.run.id.as_str()).collect();
        // An update that was called off before it started may start later all the same.
        let is_less = |trace: &&&RunTrace<'_>| trace.has_spurious_report || trace.is_called_off;
        let less = of.iter().filter(is_less).count();
        if of.len() > 1 + less {
            findings.add(Rule::NoRunTwice, format!("update {number} has the runs {names:?}"));
        }
        let Some((_, end)) = update.ended.filter(|_| is_distinguishable(ground_truth, number))
        else {
            continue;
        };
        let is_end = |trace: &&&RunTrace<'_>| trace.end.is_some_and(|(of, _)| of == number);
        let Some(trace) = of.iter().find(is_end) else {
            let message =
                format!("the end of update {number} ({end:?}) was acknowledged but is in no run");
            findings.add(Rule::NoReportIsLost, message);
            continue;
        };
        let should = if end == UpdateEnd::Failed { "failed" } else { "succeeded" };
        if trace.run.state != should {
            let message = format!(
                "{} is {}, but update {number} ended {end:?}",
                trace.run.id, trace.run.state
            );
            findings.add(Rule::EndsMatch, message);
        }
    }
    check_delivered_windows(findings, ground_truth, log);
    check_targets(findings, ground_truth, runs, log);
}

/// Checks that every delivered image was desired, and that the target did not change during a run.
fn check_targets(
    findings: &mut Findings<'_>,
    ground_truth: &EimGroundTruth,
    runs: &[&Run],
    log: &OperatorLog,
) {
    let open_through = |from, to| {
        runs.iter().find(|run| {
            let is_open = run.opened_at().is_some_and(|opened| opened <= from);
            is_open && run.ended_at().is_none_or(|ended| to < ended)
        })
    };
    for delivered in &ground_truth.images {
        let change = ImageReplacement {
            from: delivered.running_version.clone(),
            to: delivered.version.clone(),
        };
        let (requested_at, answered) = delivered.first;
        // A target that is frozen into a run is delivered again, whatever is desired meanwhile.
        let is_frozen = runs.iter().any(|run| {
            let is_over = run.ended_at().is_some_and(|ended| ended < requested_at);
            let opened = run.opened_at().filter(|opened| *opened <= answered);
            opened
                .is_some_and(|opened| !is_over && may_be_frozen(ground_truth, &change, opened, log))
        });
        if !is_frozen && !log.may_desire_image(None, &change, (requested_at, answered)) {
            let message = format!("{change:?} was delivered at {answered}");
            findings.add(Rule::NoUndesiredImage, message);
        }
    }
    for pair in ground_truth.images.windows(2) {
        let (one, other) = (&pair[0], &pair[1]);
        if let Some(run) = open_through(one.last.0, other.first.1) {
            let message = format!(
                "{} got {} at {} after it got {} at {}",
                run.id, other.version, other.first.1, one.version, one.last.0
            );
            findings.add(Rule::TargetIsFrozen, message);
        }
    }
}

/// Whether an image may be frozen into a run that was opened at an instant: it was delivered to the node last, or it
/// was desired since then and the answer was lost.
fn may_be_frozen(
    ground_truth: &EimGroundTruth,
    change: &ImageReplacement,
    opened: Time,
    log: &OperatorLog,
) -> bool {
    let mut before = ground_truth.images.iter().rev();
    let last = before.find(|delivered| delivered.first.1 <= opened);
    let is_last = last.is_some_and(|last| last.version == change.to);
    let since = last.map_or(Time::MIN_UTC, |last| last.last.0.min(opened));
    is_last || log.may_desire_image(None, change, (since, opened))
}

/// Reads a run by the reports that were in flight when its events were recorded.
fn trace_run<'a>(
    findings: &mut Findings<'_>,
    ground_truth: &EimGroundTruth,
    run: &'a Run,
    log: &OperatorLog,
) -> RunTrace<'a> {
    let mut trace = RunTrace {
        run,
        updates: BTreeSet::new(),
        end: None,
        has_spurious_report: false,
        is_called_off: false,
    };
    for entry in &run.events {
        // Reports are in order and do not overlap.
        let first = ground_truth
            .reports
            .partition_point(|report| report.between.1 + STORE_PRECISION < entry.at);
        let mut around = ground_truth.reports[first..]
            .iter()
            .take_while(|report| report.between.0 - STORE_PRECISION <= entry.at);
        let report = around.find(|report| explains(report, entry));
        let Some(report) = report else {
            let has_begun = run.events.iter().any(|one| one.event == "began");
            if entry.event == "cancelled" && !has_begun && log.may_be_called_off(entry.at) {
                trace.is_called_off = true;
            } else if entry.event != "timed_out" {
                let message =
                    format!("no report at {} explains {} {}", entry.at, run.id, entry.event);
                findings.add(Rule::NothingIsInvented, message);
            }
            continue;
        };
        trace.has_spurious_report |= report.spurious;
        // An event that a report states directly is about its update; an implied event is about the previous one.
        let Some(update) =
            report.update.filter(|_| !report.spurious && direct_event(report) == entry.event)
        else {
            continue;
        };
        trace.updates.insert(update);
        match report.kind {
            "updated" => trace.end = Some((update, "succeeded")),
            "failed" => trace.end = Some((update, "failed")),
            _ => {}
        }
    }
    trace
}

/// The event that a report states directly.
fn direct_event(report: &StatusReport) -> &'static str {
    match report.kind {
        "downloading" => "downloading",
        "downloaded" => "downloaded",
        "started" => "began",
        "updated" => "finished",
        "failed" => "failed",
        "up_to_date" => "nothing_to_do",
        _ => "",
    }
}

/// Whether a report can cause an event.
fn explains(report: &StatusReport, entry: &RunEntry) -> bool {
    let event = entry.event.as_str();
    event == direct_event(report)
        || match report.kind {
            // The next update ends the previous one, and confirms a failure that was not certain.
            "started" | "downloading" | "downloaded" => matches!(event, "superseded" | "failed"),
            "up_to_date" => matches!(event, "cancelled" | "failed"),
            "updated" | "failed" => event == "superseded",
            _ => false,
        }
}

/// Whether the end of an update was acknowledged and is distinguishable from the reports before it.
fn is_distinguishable(ground_truth: &EimGroundTruth, update: usize) -> bool {
    let is_end = |report: &StatusReport| {
        report.update == Some(update)
            && !report.spurious
            && matches!(report.kind, "updated" | "failed")
    };
    let Some(at) =
        ground_truth.reports.iter().position(|report| is_end(report) && report.acknowledged > 0)
    else {
        return false;
    };
    let report = &ground_truth.reports[at];
    let mut before =
        ground_truth.reports[..at].iter().rev().filter(|report| report.acknowledged > 0);
    let Some(last) = before.clone().next() else {
        return false;
    };
    let last_detailed = before.find(|report| !report.detail.is_empty());
    let speaks =
        !report.detail.is_empty() && last_detailed.is_none_or(|last| last.detail != report.detail);
    match report.kind {
        "failed" => {
            speaks || (last.kind != report.kind && report.acknowledged >= MIN_FAILURE_REPORTS)
        }
        _ => speaks || last.kind != report.kind,
    }
}
