//! Image nodes with our own agent: a booted image was desired, a failed image returns only by an order, and the record
//! is complete.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use evenkeel_simulator::ground_truth::{Attempt, OwnGroundTruth, Span, StartPermit};

use super::{Findings, Rule};
use crate::history::operator_log::OperatorLog;
use crate::history::run_records::Run;

/// Maximum time between an answer and its arrival.
const MAX_ANSWER_DELAY: TimeDelta = TimeDelta::seconds(20);

/// Checks what one node booted and what was recorded of it.
pub(super) fn check_images(
    findings: &mut Findings<'_>,
    ground_truth: &OwnGroundTruth,
    runs: &[&Run],
    log: &OperatorLog,
) {
    for attempt in &ground_truth.attempts {
        check_desired(findings, attempt, log);
        let mut of = runs.iter().filter(|run| run.attempt == Some(attempt.id));
        if let Some(run) = of.next() {
            check_recorded_image(findings, attempt, run);
        }
    }
    check_retries(findings, ground_truth, log);
}

fn check_desired(findings: &mut Findings<'_>, attempt: &Attempt, log: &OperatorLog) {
    let (Some(change), Some(first)) = (&attempt.image, attempt.events.first()) else {
        return;
    };
    let policy = attempt.digest.split('/').next();
    let between = (first.at.true_time - MAX_ANSWER_DELAY, first.at.true_time);
    // The current image is not booted again.
    if change.from != change.to && !log.may_desire_image(policy, change, between) {
        let message = format!("attempt {} is for {change:?}", attempt.id);
        findings.add(Rule::NoUndesiredImage, message);
    }
}

/// Checks that a run has the versions of its plan once the plan is stored, and the booted version once the end is stored.
fn check_recorded_image(findings: &mut Findings<'_>, attempt: &Attempt, run: &Run) {
    let is_stored = |number| {
        let mut events = run.events.iter();
        events.any(|entry| entry.sequence == u32::try_from(number).ok())
    };
    let first = attempt.events.first().map(|event| event.name);
    let is_planned = first == Some("downloading") && is_stored(1);
    let booted = attempt.booted.clone();
    let booted = booted.filter(|_| is_stored(attempt.events.len()));
    let planned = attempt.image.as_ref().filter(|_| is_planned);
    let should = planned.map(|change| {
        let booted = booted.unwrap_or_default();
        (change.from.clone(), change.to.clone(), booted)
    });
    if run.image != should {
        let message = format!("{} records {:?} instead of {should:?}", run.id, run.image);
        findings.add(Rule::BootedIsTrue, message);
    }
}

/// Checks that an image that the node reverted, and has not booted successfully since, was retried only by an order.
fn check_retries(findings: &mut Findings<'_>, ground_truth: &OwnGroundTruth, log: &OperatorLog) {
    let mut failed = BTreeMap::new();
    for attempt in &ground_truth.attempts {
        let ends = attempt.events.first().zip(attempt.events.last());
        let Some((change, (first, last))) = attempt.image.as_ref().zip(ends) else {
            continue;
        };
        let since = failed.get(change.to.as_str()).copied();
        let wrong =
            since.and_then(|since| find_missing_order(attempt, (since, first.at.true_time), log));
        if let Some(wrong) = wrong {
            let message = format!("attempt {} is for {change:?}: {wrong}", attempt.id);
            findings.add(Rule::NoRetryWithoutOrder, message);
        }
        match last.name {
            "reverted" => {
                failed.insert(change.to.as_str(), last.at.true_time);
            }
            "finished" => {
                failed.remove(change.to.as_str());
            }
            _ => {}
        }
    }
}

/// What is wrong with an attempt at an image that failed before. `between` is the time from the failure to the
/// attempt. It is no excuse that the server did not know of the failure: its decision follows from facts that it has.
fn find_missing_order(attempt: &Attempt, between: Span, log: &OperatorLog) -> Option<String> {
    let since = between.0;
    if !attempt.again {
        Some(format!("it failed at {since}, but it was not marked as a retry"))
    } else if !log.has_order(between) {
        Some(format!("it failed at {since}, and there was no order since"))
    } else if matches!(attempt.permit, Some(StartPermit::Offline { .. })) {
        Some(format!("it failed at {since}, and it used an older offline grant"))
    } else {
        None
    }
}
