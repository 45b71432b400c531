//! Nodes of the ancestor's agent: they say nothing of attempts, so each entry of a run is held against the sample that
//! was on its way at that instant, and against the update that the sample was about.
//!
//! Some things cannot be told apart on that wire, by nobody: an end that looks exactly like the one shown before it, a
//! failure without a word of its own that was shown only a few times (the agent says the same when it cannot read its
//! state file), and the first sample of all, which is a baseline. Nothing is asked of a server there, except that it
//! invents nothing.

use std::collections::BTreeSet;

use evenkeel_simulator::clock::Time;
use evenkeel_simulator::truth::{Change, EimTruth, End, Said};

use super::delivery::windows;
use super::{Findings, GRAIN, Rule};
use crate::history::book::Book;
use crate::history::record::{Entry, Run};

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
    /// Whether the server gave up what was only fetched, because it was not wanted any more.
    is_called_off: bool,
}

/// Checks the runs of one node.
pub(super) fn eim(findings: &mut Findings<'_>, truth: &EimTruth, runs: &[&Run], book: &Book) {
    let stories: Vec<_> = runs
        .iter()
        .map(|run| story(findings, truth, run, book))
        .collect();
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
        // What was called off before it began may be begun later all the same.
        let is_less = |story: &&&Story<'_>| story.is_misled || story.is_called_off;
        let less = of.iter().filter(is_less).count();
        if of.len() > 1 + less {
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
    targets(findings, truth, runs, book);
}

/// What the node was to be brought to was wished for, and stayed the same while it was brought there.
fn targets(findings: &mut Findings<'_>, truth: &EimTruth, runs: &[&Run], book: &Book) {
    let open_through = |from, to| {
        runs.iter().find(|run| {
            let is_open = run.opened().is_some_and(|opened| opened <= from);
            is_open && run.over().is_none_or(|over| to < over)
        })
    };
    for told in &truth.targets {
        let change = Change {
            from: told.running.clone(),
            to: told.image.clone(),
        };
        let (asked, answered) = told.first;
        // What was frozen into a run is told again, whatever is wished for meanwhile.
        let is_frozen = runs.iter().any(|run| {
            let is_over = run.over().is_some_and(|over| over < asked);
            let opened = run.opened().filter(|opened| *opened <= answered);
            opened.is_some_and(|opened| !is_over && frozen(truth, &change, opened, book))
        });
        if !is_frozen && !book.may_change(None, &change, (asked, answered)) {
            let found = format!("{change:?} was told at {answered}");
            findings.add(Rule::NoImageUnwished, found);
        }
    }
    for pair in truth.targets.windows(2) {
        let (one, other) = (&pair[0], &pair[1]);
        if let Some(run) = open_through(one.last.0, other.first.1) {
            let found = format!(
                "{} was told {} at {} after {} was told at {}",
                run.id, other.image, other.first.1, one.image, one.last.0
            );
            findings.add(Rule::TargetIsFrozen, found);
        }
    }
}

/// Whether an image may have been frozen into a run that was opened at an instant: the node had been told it last, or it
/// may have been wished for since then, in an answer that was lost on its way.
fn frozen(truth: &EimTruth, change: &Change, opened: Time, book: &Book) -> bool {
    let mut before = truth.targets.iter().rev();
    let last = before.find(|told| told.first.1 <= opened);
    let is_last = last.is_some_and(|last| last.image == change.to);
    let since = last.map_or(Time::MIN_UTC, |last| last.last.0.min(opened));
    is_last || book.may_change(None, change, (since, opened))
}

/// Reads a run by the samples that were on their way when its entries were made.
fn story<'a>(
    findings: &mut Findings<'_>,
    truth: &EimTruth,
    run: &'a Run,
    book: &Book,
) -> Story<'a> {
    let mut story = Story {
        run,
        about: BTreeSet::new(),
        end: None,
        is_misled: false,
        is_called_off: false,
    };
    for entry in &run.events {
        // What was said is in order, and one thing after the other.
        let first = truth
            .said
            .partition_point(|said| said.between.1 + GRAIN < entry.at);
        let mut around = truth.said[first..]
            .iter()
            .take_while(|said| said.between.0 - GRAIN <= entry.at);
        let said = around.find(|said| explains(said, entry));
        let Some(said) = said else {
            let has_begun = run.events.iter().any(|one| one.event == "began");
            if entry.event == "cancelled" && !has_begun && book.may_be_called_off(entry.at) {
                story.is_called_off = true;
            } else if entry.event != "timed_out" {
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
