//! Each rule, broken by hand.

mod delivery;
mod eim;
mod images;
mod own;
mod patience;

use chrono::{DateTime, TimeDelta};
use evenkeel_simulator::clock::{Moment, Time};
use evenkeel_simulator::truth::{EimTruth, OwnTruth};
use uuid::Uuid;

use super::{Rule, eim_node, own_node};
use crate::history::book::{Book, Held, Member, Opened, Step, Wished};
use crate::history::record::{Entry, Run};

const POLICY: &str = "osupdatepolicy-00000001";

fn at(seconds: i64) -> Time {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
}

fn moment(seconds: i64) -> Moment {
    Moment {
        node: at(seconds),
        truth: at(seconds),
    }
}

fn member() -> Member {
    Member {
        host: "host-00000001".into(),
        instance: "inst-00000001".into(),
        site: "site-00000001".into(),
        is_eim: false,
        is_image: false,
    }
}

fn step(asked: i64, done: i64) -> Step {
    Step {
        asked: at(asked),
        done: Some(at(done)),
    }
}

/// A window from 100 to 200, made at 10, a wish of the project since 5, and a patience of 50 seconds.
fn book() -> Book {
    Book {
        windows: vec![Opened {
            scope: "site-00000001".into(),
            window: (at(100), at(200)),
            is_order: false,
            held: Held::since(step(10, 11)),
        }],
        wishes: vec![Wished {
            scope: "project".into(),
            policy: POLICY.into(),
            held: Held::since(step(5, 6)),
        }],
        patience: TimeDelta::seconds(50),
        ..Book::default()
    }
}

fn run(number: u32, attempt: Option<u128>, events: &[(&str, &str, Option<u32>, i64)]) -> Run {
    let entry = |(event, state, sequence, time): &(&str, &str, Option<u32>, i64)| Entry {
        event: (*event).to_owned(),
        state: (*state).to_owned(),
        sequence: *sequence,
        at: at(*time),
    };
    Run {
        id: format!("osupdaterun-{number:08x}"),
        instance: "inst-00000001".into(),
        attempt: attempt.map(Uuid::from_u128),
        state: events
            .last()
            .map(|last| last.1.to_owned())
            .unwrap_or_default(),
        image: None,
        events: events.iter().map(entry).collect(),
    }
}

/// The rules that the records of a node of our own agent break.
fn own_broken(member: &Member, truth: &OwnTruth, runs: &[Run], book: &Book) -> Vec<Rule> {
    let runs: Vec<_> = runs.iter().collect();
    let found = own_node(member, truth, &runs, book);
    found.into_iter().map(|violation| violation.rule).collect()
}

/// The rules that the records of a node of the ancestor's agent break.
fn eim_broken(member: &Member, truth: &EimTruth, runs: &[Run], book: &Book) -> Vec<Rule> {
    let runs: Vec<_> = runs.iter().collect();
    let found = eim_node(member, truth, &runs, book);
    found.into_iter().map(|violation| violation.rule).collect()
}
