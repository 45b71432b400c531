//! Nodes of our own agent: every attempt is one run, and every acknowledged event one entry of it.

use chrono::TimeDelta;
use evenkeel_simulator::clock::{Moment, Time};
use evenkeel_simulator::truth::{Attempt, Leave, OwnTruth, Span};

use super::{Findings, Rule};
use crate::history::book::Book;
use crate::history::record::{Entry, Run};

/// How much finer the wire is than the store.
const GRAIN: TimeDelta = TimeDelta::milliseconds(1);

/// Checks the runs of one node.
pub(super) fn own(findings: &mut Findings<'_>, truth: &OwnTruth, runs: &[&Run], book: &Book) {
    for run in runs {
        let made = truth
            .attempts
            .iter()
            .find(|attempt| Some(attempt.id) == run.attempt);
        if !made.is_some_and(Attempt::makes_a_run) {
            let found = format!("the node did nothing that would make {}", run.id);
            findings.add(Rule::NothingIsInvented, found);
        }
    }
    for attempt in &truth.attempts {
        let of: Vec<_> = runs
            .iter()
            .filter(|run| run.attempt == Some(attempt.id))
            .collect();
        if of.len() > 1 {
            let found = format!("attempt {} is {} runs", attempt.id, of.len());
            findings.add(Rule::NoRunTwice, found);
        }
        match of.first() {
            Some(run) => told(findings, attempt, run),
            None if attempt.acknowledged > 0 && attempt.makes_a_run() => {
                let found = format!("attempt {} was acknowledged and is no run", attempt.id);
                findings.add(Rule::NoReportIsLost, found);
            }
            None => {}
        }
        began(findings, attempt, of.first().copied(), book);
    }
}

/// What was told is recorded once and in order, and what was acknowledged is there.
fn told(findings: &mut Findings<'_>, attempt: &Attempt, run: &Run) {
    let recorded: Vec<&Entry> = run
        .events
        .iter()
        .filter(|entry| entry.sequence.is_some())
        .collect();
    let numbers: Vec<_> = recorded.iter().filter_map(|entry| entry.sequence).collect();
    let counted: Vec<_> = (1..).take(recorded.len()).collect();
    if numbers != counted {
        let found = format!("{} has its events {numbers:?}", run.id);
        findings.add(Rule::NoRunTwice, found);
        return;
    }
    let real: Vec<_> = attempt.events.iter().map(|told| told.news).collect();
    let names: Vec<_> = recorded.iter().map(|entry| entry.event.as_str()).collect();
    if !real.starts_with(&names) {
        let found = format!("{} says {names:?}, the node did {real:?}", run.id);
        findings.add(Rule::NothingIsInvented, found);
    }
    if names.len() < usize::try_from(attempt.acknowledged).unwrap_or(usize::MAX) {
        let found = format!(
            "{} has {} of {} events",
            run.id,
            names.len(),
            attempt.acknowledged
        );
        findings.add(Rule::NoReportIsLost, found);
    }
    for entry in run.events.iter().filter(|entry| entry.sequence.is_none()) {
        let is_begun = attempt.began().is_some();
        let may_be = match entry.event.as_str() {
            // What the node itself still tells counts for more; then the states must match below.
            "timed_out" => true,
            "cancelled" => !is_begun,
            "superseded" => attempt.forgotten,
            _ => false,
        };
        if !may_be {
            let found = format!("the server says {} of {}", entry.event, run.id);
            findings.add(Rule::NothingIsInvented, found);
        }
    }
    end(findings, attempt, run);
}

/// The run ended as the attempt did.
fn end(findings: &mut Findings<'_>, attempt: &Attempt, run: &Run) {
    let last = attempt.events.last().map(|told| told.news);
    let should = match last {
        Some("finished" | "nothing_to_do") => "succeeded",
        Some("failed") => "failed",
        Some("reverted") => "reverted",
        Some("cancelled") => "cancelled",
        _ if attempt.forgotten => return,
        _ => "open",
    };
    // What was forgotten before it was told can only be given up.
    let told = run.events.iter().filter(|entry| entry.sequence.is_some());
    let is_untold = attempt.forgotten && told.count() < attempt.events.len();
    if is_untold && (!run.is_over() || run.state == "abandoned") {
        return;
    }
    let is_so = if should == "open" {
        !run.is_over()
    } else {
        run.state == should
    };
    if !is_so {
        let found = format!(
            "{} is {}, the node's last word was {last:?}",
            run.id, run.state
        );
        findings.add(Rule::EndsMatch, found);
    }
}

/// What began had leave, by the clock of whoever gave it.
fn began(findings: &mut Findings<'_>, attempt: &Attempt, run: Option<&&Run>, book: &Book) {
    let Some(began) = attempt.began() else {
        return;
    };
    let case = Case {
        opened: run.and_then(|run| run.opened()),
        policy: attempt.digest.split('/').next(),
        began,
        book,
    };
    let wrong = match &attempt.leave {
        None => Some("it had no leave".to_owned()),
        Some(Leave::Asked {
            asked,
            granted,
            before,
        }) => case.asked((*asked, *granted), *before),
        Some(Leave::Ahead {
            asked,
            given,
            windows,
            expires,
        }) => case.ahead((*asked, *given), windows, *expires),
    };
    if let Some(wrong) = wrong {
        let found = format!(
            "attempt {} began at {} (its own clock {}): {wrong}",
            attempt.id, began.truth, began.node
        );
        findings.add(Rule::NoBeginWithoutLeave, found);
    }
}

/// A beginning, and what was wanted then.
struct Case<'a> {
    /// When the server heard of the attempt first.
    opened: Option<Time>,
    policy: Option<&'a str>,
    began: Moment,
    book: &'a Book,
}

impl Case<'_> {
    /// What is wrong with leave that a node asked for. The server judged at one instant: what was changed in that very
    /// moment may count or not.
    fn asked(&self, (asked, granted): Span, before: Time) -> Option<String> {
        let (book, between) = (self.book, (asked, granted));
        let at = (granted, granted);
        let windows = || book.closing(granted, before);
        let is_ordered = book.ordered(at, (granted, before));
        if self.began.truth + GRAIN < granted || before <= self.began.truth {
            Some(format!("leave of {granted} counted before {before}"))
        } else if !is_ordered && windows().next().is_none() {
            Some(format!(
                "granted at {granted} before {before}, where no window was"
            ))
        } else if !is_ordered && windows().all(|window| book.is_cancelled(window, between)) {
            Some(format!(
                "granted at {granted} in a window that was cancelled"
            ))
        } else if self.is_called_off(between) {
            Some(format!("granted at {granted} after it was called off"))
        } else if !book.may_wish(self.policy, at) {
            Some(format!("granted at {granted}, where nobody wished for it"))
        } else {
            let held = book.pause(self.policy, between);
            held.map(|pause| format!("granted at {granted} in a pause of {}", pause.scope))
        }
    }

    /// What is wrong with leave that a node had from before: it judged by its own clock. What was taken back after it
    /// was given reaches a node that cannot be reached only when the leave expires, so that is no fault; but it must
    /// not have been taken back before.
    fn ahead(&self, between: Span, windows: &[Span], expires: Time) -> Option<String> {
        let (book, node, given) = (self.book, self.began.node, between.1);
        let is_inside = |(start, end): &&Span| *start <= node && node < *end;
        // The last window ends with the leave. What was ordered is never granted ahead.
        let is_made = |window: &Span| book.has_window(between, *window) || window.1 == expires;
        if expires <= node || !windows.iter().any(|window| is_inside(&window)) {
            Some(format!("leave for {windows:?} until {expires}"))
        } else if !windows.iter().all(is_made) {
            Some(format!(
                "leave was given at {given} for {windows:?}, where no window was"
            ))
        } else if windows
            .iter()
            .any(|window| book.is_cancelled(*window, between))
        {
            Some(format!(
                "leave was given at {given} for {windows:?}, of which one was cancelled"
            ))
        } else if self.is_called_off(between) {
            Some(format!(
                "leave was given at {given} after it was called off"
            ))
        } else if !book.may_wish(self.policy, between) {
            Some(format!(
                "leave was given at {given}, where nobody wished for it"
            ))
        } else {
            let held = book.pause(self.policy, between);
            held.map(|pause| format!("leave was given at {given} in a pause of {}", pause.scope))
        }
    }

    /// Whether a person had called the attempt off before leave was asked for.
    fn is_called_off(&self, between: Span) -> bool {
        let book = self.book;
        self.opened
            .is_some_and(|opened| book.is_called_off(opened, between))
    }
}
