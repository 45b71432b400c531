//! Holds what servers recorded against what the nodes did.

mod delivery;
mod eim;
mod images;
mod own;
#[cfg(test)]
mod tests;

use std::fmt;

use chrono::TimeDelta;
use evenkeel_simulator::truth::{EimTruth, OwnTruth};

use super::book::{Book, Member};
use super::record::Run;

/// What must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// On which instance.
    pub instance: String,
    /// What was found.
    pub found: String,
}

/// A rule of histories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// What was acknowledged is stored.
    NoReportIsLost,
    /// What happened once is recorded once.
    NoRunTwice,
    /// What is recorded happened.
    NothingIsInvented,
    /// Nothing begins outside a window or without leave, by the clock of whoever decided.
    NoBeginWithoutLeave,
    /// An instance has one open run at a time.
    NoTwoOpenRuns,
    /// A run ended as the node did.
    EndsMatch,
    /// A run is given up for lack of news only after it stood still for as long as the settings say.
    NotGivenUpEarly,
    /// A node is brought only to an image that somebody wished for, and to an older one only if the policy says so.
    NoImageUnwished,
    /// A node is not told another image while it is brought to one.
    TargetIsFrozen,
    /// An image that a node fell back from is tried there again only by an order that was given after that, and never
    /// with leave from before.
    NoBadImageUnordered,
    /// A run says which image ran before, which was wanted and which ran in the end.
    BootedIsTrue,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}: {}", self.rule, self.instance, self.found)
    }
}

/// Collects what is found on one node.
#[derive(Debug)]
struct Findings<'a> {
    member: &'a Member,
    found: Vec<Violation>,
}

impl Findings<'_> {
    fn add(&mut self, rule: Rule, found: String) {
        self.found.push(Violation {
            rule,
            instance: self.member.instance.clone(),
            found,
        });
    }
}

/// Everything that is wrong with the records of a node of our own agent.
pub fn own_node(member: &Member, truth: &OwnTruth, runs: &[&Run], book: &Book) -> Vec<Violation> {
    let mut findings = Findings {
        member,
        found: Vec::new(),
    };
    let book = &book.of(member);
    one_at_a_time(&mut findings, runs);
    given_up(&mut findings, runs, book);
    own::own(&mut findings, truth, runs, book);
    images::images(&mut findings, truth, runs, book);
    findings.found
}

/// Everything that is wrong with the records of a node of the ancestor's agent.
pub fn eim_node(member: &Member, truth: &EimTruth, runs: &[&Run], book: &Book) -> Vec<Violation> {
    let mut findings = Findings {
        member,
        found: Vec::new(),
    };
    let book = &book.of(member);
    one_at_a_time(&mut findings, runs);
    given_up(&mut findings, runs, book);
    eim::eim(&mut findings, truth, runs, book);
    findings.found
}

/// How much finer clocks are than the store.
const GRAIN: TimeDelta = TimeDelta::milliseconds(1);

/// What was given up for lack of news stood still for long enough.
fn given_up(findings: &mut Findings<'_>, runs: &[&Run], book: &Book) {
    for run in runs {
        let Some(at) = run.events.iter().position(|one| one.event == "timed_out") else {
            continue;
        };
        let (before, rest) = run.events.split_at(at);
        let state = before.last().map(|last| last.state.as_str());
        // What changed nothing did not start the time anew.
        let since = before
            .iter()
            .rev()
            .take_while(|one| Some(one.state.as_str()) == state)
            .last();
        let given_up = rest[0].at;
        if since.is_none_or(|since| given_up + GRAIN < since.at + book.patience) {
            let since = since.map(|since| since.at);
            let found = format!(
                "{} was given up at {given_up}, it stood so since {since:?}",
                run.id
            );
            findings.add(Rule::NotGivenUpEarly, found);
        }
    }
}

/// No two runs of an instance are open at the same instant, and none ends before it was opened.
fn one_at_a_time(findings: &mut Findings<'_>, runs: &[&Run]) {
    let mut spans: Vec<_> = runs
        .iter()
        .filter_map(|run| Some((run.opened()?, *run)))
        .collect();
    spans.sort_by_key(|(opened, run)| (*opened, run.over()));
    for pair in spans.windows(2) {
        let ((_, first), (opened, second)) = (pair[0], pair[1]);
        if first.over().is_none_or(|over| opened < over) {
            let found = format!(
                "{} was opened at {opened} while {} was open",
                second.id, first.id
            );
            findings.add(Rule::NoTwoOpenRuns, found);
        }
    }
    for run in runs {
        let is_in_order = run.events.is_sorted_by_key(|entry| entry.at);
        if run.events.is_empty() || !is_in_order {
            let found = format!("the events of {} are none or out of order", run.id);
            findings.add(Rule::NothingIsInvented, found);
        }
    }
}
