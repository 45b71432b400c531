//! Nodes of the ancestor's agent: they say nothing of attempts, so each entry of a run is held against the sample that
//! was on its way at that instant, and against the update that the sample was about.
//!
//! Some things cannot be told apart on that wire, by nobody: an end that looks exactly like the one shown before it, a
//! failure without a word of its own that was shown only a few times (the agent says the same when it cannot read its
//! state file), and the first sample of all, which is a baseline. Nothing is asked of a server there, except that it
//! invents nothing.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use evenkeel_simulator::truth::{EimTruth, End, Said};

use super::{Findings, Rule};
use crate::history::book::Book;
use crate::history::record::{Entry, Run};

/// How much finer the node's notes are than the store.
const GRAIN: TimeDelta = TimeDelta::milliseconds(1);

/// So often a failure without a word of its own must have been shown to count.
const BELIEVED: u64 = 8;

/// What a run says of updates.
#[derive(Debug)]
struct Story<'a> {
    run: &'a Run,
    /// The updates that its entries are about.
    about: BTreeSet<usize>,
    /// The update whose end it has, and how that ended.
    end: Option<(usize, &'static str)>,
    /// Whether a sample that is not true has a part in it.
    is_misled: bool,
}

/// Checks the runs of one node.
pub(super) fn eim(findings: &mut Findings<'_>, truth: &EimTruth, runs: &[&Run], book: &Book) {
    let stories: Vec<_> = runs.iter().map(|run| story(findings, truth, run)).collect();
    for story in &stories {
        let seen: Vec<_> = story
            .about
            .iter()
            .filter(|update| is_seen(truth, **update))
            .collect();
        let last = story.about.last();
        if seen.iter().any(|update| Some(*update) != last) {
            let found = format!("{} is about the updates {:?}", story.run.id, story.about);
            findings.add(Rule::NoRunTwice, found);
        }
    }
    for (number, update) in truth.updates.iter().enumerate() {
        let of: Vec<_> = stories
            .iter()
            .filter(|story| story.about.contains(&number))
            .collect();
        let names: Vec<_> = of.iter().map(|story| story.run.id.as_str()).collect();
        let misled = of.iter().filter(|story| story.is_misled).count();
        if of.len() > 1 + misled {
            findings.add(
                Rule::NoRunTwice,
                format!("update {number} is the runs {names:?}"),
            );
        }
        let Some((_, end)) = update.ended.filter(|_| is_seen(truth, number)) else {
            continue;
        };
        let is_end = |story: &&&Story<'_>| story.end.is_some_and(|(of, _)| of == number);
        let Some(story) = of.iter().find(is_end) else {
            let found =
                format!("the end of update {number} ({end:?}) was acknowledged and is no run's");
            findings.add(Rule::NoReportIsLost, found);
            continue;
        };
        let should = if end == End::Failed {
            "failed"
        } else {
            "succeeded"
        };
        if story.run.state != should {
            let found = format!(
                "{} is {}, update {number} ended {end:?}",
                story.run.id, story.run.state
            );
            findings.add(Rule::EndsMatch, found);
        }
    }
    windows(findings, truth, book);
}

/// Reads a run by the samples that were on their way when its entries were made.
fn story<'a>(findings: &mut Findings<'_>, truth: &EimTruth, run: &'a Run) -> Story<'a> {
    let mut story = Story {
        run,
        about: BTreeSet::new(),
        end: None,
        is_misled: false,
    };
    for entry in &run.events {
        let said = truth.said.iter().find(|said| {
            let (from, to) = said.between;
            from - GRAIN <= entry.at && entry.at <= to + GRAIN && explains(said, entry)
        });
        let Some(said) = said else {
            if entry.event != "timed_out" {
                let found = format!(
                    "nothing that was said at {} makes {} {}",
                    entry.at, run.id, entry.event
                );
                findings.add(Rule::NothingIsInvented, found);
            }
            continue;
        };
        story.is_misled |= said.spurious;
        // Only what the sample says outright is about its update; what it implies is about the one before.
        let Some(update) = said
            .update
            .filter(|_| !said.spurious && outright(said) == entry.event)
        else {
            continue;
        };
        story.about.insert(update);
        match said.kind {
            "updated" => story.end = Some((update, "succeeded")),
            "failed" => story.end = Some((update, "failed")),
            _ => {}
        }
    }
    story
}

/// The event that a sample says outright.
fn outright(said: &Said) -> &'static str {
    match said.kind {
        "downloading" => "downloading",
        "downloaded" => "downloaded",
        "started" => "began",
        "updated" => "finished",
        "failed" => "failed",
        "up_to_date" => "nothing_to_do",
        _ => "",
    }
}

/// Whether an entry can follow from a sample.
fn explains(said: &Said, entry: &Entry) -> bool {
    let event = entry.event.as_str();
    event == outright(said)
        || match said.kind {
            // The next update ends the one before, and shows that a failure that was doubted was one.
            "started" | "downloading" | "downloaded" => matches!(event, "superseded" | "failed"),
            "up_to_date" => matches!(event, "cancelled" | "failed"),
            "updated" | "failed" => event == "superseded",
            _ => false,
        }
}

/// Whether the end of an update was acknowledged and could be told from what was said before it.
fn is_seen(truth: &EimTruth, update: usize) -> bool {
    let is_end = |said: &Said| {
        said.update == Some(update) && !said.spurious && matches!(said.kind, "updated" | "failed")
    };
    let Some(at) = truth
        .said
        .iter()
        .position(|said| is_end(said) && said.acknowledged > 0)
    else {
        return false;
    };
    let said = &truth.said[at];
    let mut before = truth.said[..at]
        .iter()
        .rev()
        .filter(|said| said.acknowledged > 0);
    let Some(last) = before.clone().next() else {
        return false;
    };
    let words = before.find(|said| !said.detail.is_empty());
    let speaks = !said.detail.is_empty() && words.is_none_or(|last| last.detail != said.detail);
    match said.kind {
        "failed" => speaks || (last.kind != said.kind && said.acknowledged >= BELIEVED),
        _ => speaks || last.kind != said.kind,
    }
}

/// Every window that the node was told was one, and every update began in one, by the node's own clock.
fn windows(findings: &mut Findings<'_>, truth: &EimTruth, book: &Book) {
    let member = findings.member;
    for told in &truth.delivered {
        let is_made = book
            .windows_of(member, told.between)
            .any(|window| window == told.window);
        let is_ordered = book.ordered(member, told.between, told.window);
        let wrong = if !is_made && !is_ordered {
            Some("nobody made it".to_owned())
        } else if !book.may_wish(member, None, told.between) {
            Some("nobody wished for anything".to_owned())
        } else {
            let held = book.pause(member, None, told.between);
            held.map(|pause| format!("in a pause of {}", pause.scope))
        };
        if let Some(wrong) = wrong {
            let found = format!(
                "the window {:?} was told in {:?}: {wrong}",
                told.window, told.between
            );
            findings.add(Rule::NoBeginWithoutLeave, found);
        }
    }
    for (number, update) in truth.updates.iter().enumerate() {
        let Some((began, (start, end))) = update.began.zip(update.window) else {
            continue;
        };
        let is_told = truth
            .delivered
            .iter()
            .any(|told| told.window == (start, end) && told.between.0 <= began.truth);
        if !is_told || began.node < start || end <= began.node {
            let found = format!(
                "update {number} began at {} outside {start}..{end}",
                began.node
            );
            findings.add(Rule::NoBeginWithoutLeave, found);
        }
    }
}
