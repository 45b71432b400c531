//! Windows that nodes with EIM's agent received. They start updates on their own, so an answer with a window is a
//! permit.

use chrono::TimeDelta;
use evenkeel_simulator::ground_truth::{DeliveredSchedule, EimGroundTruth, EimSchedule, Span};

use super::{Findings, Rule};
use crate::history::MAX_CACHE_AGE;
use crate::history::operator_log::OperatorLog;

/// Checks that every answer with a window was correct, and that every update started in one, by the node's own clock.
pub(super) fn check_delivered_windows(
    findings: &mut Findings<'_>,
    ground_truth: &EimGroundTruth,
    log: &OperatorLog,
) {
    for delivery in &ground_truth.delivered {
        let mut wrong = delivery
            .answers
            .iter()
            .filter_map(|answer| Some((*answer, find_fault(delivery, *answer, log)?)));
        if let Some((answer, wrong)) = wrong.next() {
            let message = format!("{:?} was delivered in {answer:?}: {wrong}", delivery.schedule);
            findings.add(Rule::NoStartWithoutPermit, message);
        }
        if delivery.is_empty && findings.member.is_image {
            let message = format!("{:?} was delivered without an image", delivery.schedule);
            findings.add(Rule::NoUndesiredImage, message);
        }
    }
    for (number, update) in ground_truth.updates.iter().enumerate() {
        let Some((began, (start, end))) = update.began.zip(update.window) else {
            continue;
        };
        let was_delivered = ground_truth.delivered.iter().any(|delivery| {
            let is_it = match &delivery.schedule {
                EimSchedule::Single(window) => *window == (start, end),
                EimSchedule::Repeated(schedule) => schedule.contains_window((start, end)),
            };
            is_it && delivery.since().is_some_and(|since| since <= began.true_time)
        });
        if !was_delivered || began.node_time < start || end <= began.node_time {
            let message =
                format!("update {number} started at {} outside {start}..{end}", began.node_time);
            findings.add(Rule::NoStartWithoutPermit, message);
        }
    }
}

/// From this time before a window opens, answers with it are current. Before that, they may come from the answer cache
/// (docs/adr/0015).
const FRESH_LEAD_TIME: TimeDelta = TimeDelta::minutes(10);

/// The time span whose state an answer with a window may reflect.
fn answered_span(window: &EimSchedule, (requested_at, answered): Span) -> Span {
    let is_near = match window {
        EimSchedule::Single((start, _)) => *start <= requested_at + FRESH_LEAD_TIME,
        EimSchedule::Repeated(schedule) => {
            let begun = schedule.last_window_between(
                requested_at - schedule.length(),
                requested_at + FRESH_LEAD_TIME,
            );
            begun.is_some()
        }
    };
    let age = if is_near { TimeDelta::zero() } else { MAX_CACHE_AGE };
    (requested_at - age, answered)
}

/// Finds what is wrong with an answer that carried a window. It must not carry anything that was removed before the
/// time span that it may reflect.
fn find_fault(delivery: &DeliveredSchedule, answer: Span, log: &OperatorLog) -> Option<String> {
    let answer = answered_span(&delivery.schedule, answer);
    let (is_there, is_cancelled) = match &delivery.schedule {
        EimSchedule::Single(window) => {
            let is_ordered = log.has_ordered_window(answer, *window);
            let is_cancelled = !is_ordered && log.is_cancelled(*window, answer);
            (is_ordered || log.has_window(answer, *window), is_cancelled)
        }
        EimSchedule::Repeated(schedule) => {
            // Only a window that is open can have been cancelled.
            let open = schedule.last_window_between(answer.1 - schedule.length(), answer.0);
            let is_cancelled = open.is_some_and(|window| log.is_cancelled(window, answer));
            (log.has_schedule(answer, schedule), is_cancelled)
        }
    };
    if !is_there {
        Some("the window does not exist, or it was removed".to_owned())
    } else if is_cancelled {
        Some("it was cancelled".to_owned())
    } else if !log.may_be_assigned(None, answer) {
        Some("no update was desired".to_owned())
    } else {
        let pause = log.find_pause(None, answer);
        let pause = pause.or_else(|| log.find_pause_of_all_policies(answer));
        pause.map(|pause| format!("{} was paused", pause.scope))
    }
}
