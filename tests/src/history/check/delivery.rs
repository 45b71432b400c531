//! What nodes of the ancestor's agent were told of windows: they start by themselves, so an answer with a window is
//! leave.

use chrono::TimeDelta;
use evenkeel_simulator::truth::{Delivered, EimTruth, Opening, Span};

use super::{Findings, Rule};
use crate::history::OLDEST;
use crate::history::book::Book;

/// Every answer with a window was right to have it, and every update began in one, by the node's own clock.
pub(super) fn windows(findings: &mut Findings<'_>, truth: &EimTruth, book: &Book) {
    for told in &truth.delivered {
        let mut wrong = told
            .answers
            .iter()
            .filter_map(|answer| Some((*answer, fault(told, *answer, book)?)));
        if let Some((answer, wrong)) = wrong.next() {
            let found = format!("{:?} was told in {answer:?}: {wrong}", told.window);
            findings.add(Rule::NoBeginWithoutLeave, found);
        }
        if told.is_empty && findings.member.is_image {
            let found = format!("{:?} was told without an image", told.window);
            findings.add(Rule::NoImageUnwished, found);
        }
    }
    for (number, update) in truth.updates.iter().enumerate() {
        let Some((began, (start, end))) = update.began.zip(update.window) else {
            continue;
        };
        let is_told = truth.delivered.iter().any(|told| {
            let is_it = match &told.window {
                Opening::Once(window) => *window == (start, end),
                Opening::Again(schedule) => schedule.opens((start, end)),
            };
            is_it && told.since().is_some_and(|since| since <= began.truth)
        });
        if !is_told || began.node < start || end <= began.node {
            let found = format!(
                "update {number} began at {} outside {start}..{end}",
                began.node
            );
            findings.add(Rule::NoBeginWithoutLeave, found);
        }
    }
}

/// From so long before it opens on, a window is told as it was when the node asked. Before that, what was remembered may be
/// told (docs/adr/0015).
const NEAR: TimeDelta = TimeDelta::minutes(10);

/// The stretch of which an answer with a window may tell.
fn told_of(window: &Opening, (asked, answered): Span) -> Span {
    let is_near = match window {
        Opening::Once((start, _)) => *start <= asked + NEAR,
        Opening::Again(schedule) => {
            let begun = schedule.begun(asked - schedule.length(), asked + NEAR);
            begun.is_some()
        }
    };
    let age = if is_near { TimeDelta::zero() } else { OLDEST };
    (asked - age, answered)
}

/// What is wrong with an answer that carried a window. What was taken back before that of which it may tell must not be in
/// it.
fn fault(told: &Delivered, answer: Span, book: &Book) -> Option<String> {
    let answer = told_of(&told.window, answer);
    let (is_there, is_cancelled) = match &told.window {
        Opening::Once(window) => {
            let is_ordered = book.ordered(answer, *window);
            let is_cancelled = !is_ordered && book.is_cancelled(*window, answer);
            (is_ordered || book.has_window(answer, *window), is_cancelled)
        }
        Opening::Again(schedule) => {
            // Only a window that is open can have been cancelled.
            let open = schedule.begun(answer.1 - schedule.length(), answer.0);
            let is_cancelled = open.is_some_and(|window| book.is_cancelled(window, answer));
            (book.repeats(answer, schedule), is_cancelled)
        }
    };
    if !is_there {
        Some("nobody made it, or it was taken back".to_owned())
    } else if is_cancelled {
        Some("it was cancelled".to_owned())
    } else if !book.may_wish(None, answer) {
        Some("nobody wished for anything".to_owned())
    } else {
        let held = book.pause(None, answer);
        let held = held.or_else(|| book.pause_of_all(answer));
        held.map(|pause| format!("in a pause of {}", pause.scope))
    }
}
