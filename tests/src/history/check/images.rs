//! Nodes of our own agent that are updated by images: what they boot was wished for, comes back after it failed only if
//! somebody ordered it, and is recorded.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use evenkeel_simulator::truth::{Attempt, Leave, OwnTruth, Span};

use super::{Findings, Rule};
use crate::history::book::Book;
use crate::history::record::Run;

/// The longest that an answer may be on its way.
const ON_ITS_WAY: TimeDelta = TimeDelta::seconds(20);

/// Checks what one node booted, and what was recorded of it.
pub(super) fn images(findings: &mut Findings<'_>, truth: &OwnTruth, runs: &[&Run], book: &Book) {
    for attempt in &truth.attempts {
        wished(findings, attempt, book);
        let mut of = runs.iter().filter(|run| run.attempt == Some(attempt.id));
        if let Some(run) = of.next() {
            recorded(findings, attempt, run);
        }
    }
    again(findings, truth, book);
}

/// What was to be booted was wished for.
fn wished(findings: &mut Findings<'_>, attempt: &Attempt, book: &Book) {
    let (Some(change), Some(first)) = (&attempt.image, attempt.events.first()) else {
        return;
    };
    let policy = attempt.digest.split('/').next();
    let between = (first.at.truth - ON_ITS_WAY, first.at.truth);
    // What runs already is not booted once more.
    if change.from != change.to && !book.may_change(policy, change, between) {
        let found = format!("attempt {} is for {change:?}", attempt.id);
        findings.add(Rule::NoImageUnwished, found);
    }
}

/// A run has the versions of its plan once that is stored, and the one that ran in the end with the end.
fn recorded(findings: &mut Findings<'_>, attempt: &Attempt, run: &Run) {
    let is_stored = |number| {
        let mut events = run.events.iter();
        events.any(|entry| entry.sequence == u32::try_from(number).ok())
    };
    let first = attempt.events.first().map(|told| told.news);
    let is_planned = first == Some("downloading") && is_stored(1);
    let booted = attempt.booted.clone();
    let booted = booted.filter(|_| is_stored(attempt.events.len()));
    let planned = attempt.image.as_ref().filter(|_| is_planned);
    let should = planned.map(|change| {
        let booted = booted.unwrap_or_default();
        (change.from.clone(), change.to.clone(), booted)
    });
    if run.image != should {
        let found = format!("{} says {:?}, it was {should:?}", run.id, run.image);
        findings.add(Rule::BootedIsTrue, found);
    }
}

/// What a node fell back from, and has not kept since, was tried only if that was ordered.
fn again(findings: &mut Findings<'_>, truth: &OwnTruth, book: &Book) {
    let mut failed = BTreeMap::new();
    for attempt in &truth.attempts {
        let ends = attempt.events.first().zip(attempt.events.last());
        let Some((change, (first, last))) = attempt.image.as_ref().zip(ends) else {
            continue;
        };
        let since = failed.get(change.to.as_str()).copied();
        let wrong = since.and_then(|since| unordered(attempt, (since, first.at.truth), book));
        if let Some(wrong) = wrong {
            let found = format!("attempt {} is for {change:?}: {wrong}", attempt.id);
            findings.add(Rule::NoBadImageUnordered, found);
        }
        match last.news {
            "reverted" => {
                failed.insert(change.to.as_str(), last.at.truth);
            }
            "finished" => {
                failed.remove(change.to.as_str());
            }
            _ => {}
        }
    }
}

/// What is wrong with an attempt at an image that failed, from then on until the attempt. That a server did not know of
/// it yet is no excuse: what a node is told follows from facts that the server has.
fn unordered(attempt: &Attempt, between: Span, book: &Book) -> Option<String> {
    let since = between.0;
    if !attempt.again {
        Some(format!("it failed at {since}, and was told as any other"))
    } else if !book.has_order(between) {
        Some(format!("it failed at {since}, and nobody ordered it since"))
    } else if matches!(attempt.leave, Some(Leave::Ahead { .. })) {
        Some(format!("it failed at {since}, and had leave from before"))
    } else {
        None
    }
}
