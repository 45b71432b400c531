//! Histories: what servers recorded, held against what simulated nodes really did.
//!
//! [`Replicas`] are real servers on one Postgres that are killed all the time, [`Crowd`] the nodes of both protocols,
//! [`Operator`] whoever makes windows and changes wishes meanwhile and keeps a [`Book`] of it. [`check`] compares.

mod book;
pub mod check;
mod crowd;
mod desk;
mod door;
mod gallery;
mod operator;
mod racer;
mod record;
mod repetition;
mod replicas;
mod story;

pub use book::{Aim, Book, Held, Member, Opened, Paused, Published, Repeated, Scope, Step, Wished};
pub use crowd::{Crowd, Crowded, Truth};
pub use desk::{Desk, Trouble};
pub use door::Door;
pub use gallery::Gallery;
pub use operator::Operator;
pub use racer::Racer;
pub use record::{Entry, Run, read_runs};
pub use replicas::{Replicas, machine_time};
pub use story::story;

use std::io::Write as _;

use chrono::TimeDelta;

/// How old may be what the servers of a history remember: their `maintenance_manager.view.max_staleness`.
pub const OLDEST: TimeDelta = TimeDelta::seconds(2);

/// Says something to whoever watches a long test.
///
/// # Panics
/// Nobody can listen.
pub fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on standard error");
}

/// A number of the environment, for the switches of these tests.
///
/// # Panics
/// It is none.
#[expect(clippy::disallowed_methods, reason = "the switches of these tests")]
pub fn number(name: &str, otherwise: u64) -> u64 {
    let given = std::env::var(name);
    given.map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}: not a number"))
    })
}
