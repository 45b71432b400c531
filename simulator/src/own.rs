//! A node with our own agent.
//!
//! It keeps a journal, so that it goes on after a crash. It tells what happened at least once and in order, asks before
//! it begins, and begins without asking only when it has leave from before and cannot reach any server. While it has
//! nothing else to do it may let the server keep its poll open.

mod journal;
mod turn;
mod wire;

use std::time::Duration;

use evenkeel_proto::agent::{BootedImage, Facts};

use crate::chance::Chance;
use crate::clock::NodeClock;
use crate::line::Line;
use crate::own::journal::{Entry, Given};
use crate::truth::{Attempt, OwnTruth};

/// How such nodes live.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Between two turns, at least and at most.
    pub turn: (Duration, Duration),
    /// How long a node fetches.
    pub fetching: (Duration, Duration),
    /// How long each step of changing the node takes.
    pub step: (Duration, Duration),
    /// How often in a thousand turns the node crashes.
    pub crash: u16,
    /// How long it is down then.
    pub down: (Duration, Duration),
    /// How often in a thousand turns it loses sight of all servers.
    pub cut_off: u16,
    /// How long that lasts.
    pub cut_off_for: (Duration, Duration),
    /// How often in a thousand times it lasts much longer.
    pub long_cut_off: u16,
    /// How long that is.
    pub long_cut_off_for: (Duration, Duration),
    /// How often in a thousand crashes its journal is lost as well.
    pub forget: u16,
    /// How often in a thousand attempts there is nothing to do.
    pub nothing: u16,
    /// How often in a thousand attempts something goes wrong.
    pub fail: u16,
    /// How often in a thousand turns its facts change.
    pub news: u16,
    /// Whether a node that rests lets the server keep its poll open.
    pub holds: bool,
    /// For how long: short, because such a node does nothing else meanwhile.
    pub hold: (Duration, Duration),
}

impl Default for Habits {
    fn default() -> Self {
        let millis = |from, to| (Duration::from_millis(from), Duration::from_millis(to));
        Self {
            turn: millis(50, 250),
            fetching: millis(0, 1_500),
            step: millis(0, 800),
            crash: 4,
            down: millis(100, 1_500),
            cut_off: 9,
            cut_off_for: millis(1_000, 9_000),
            long_cut_off: 10,
            long_cut_off_for: millis(60_000, 140_000),
            forget: 60,
            nothing: 80,
            fail: 220,
            news: 8,
            holds: false,
            hold: millis(200, 1_000),
        }
    }
}

/// A simulated node of our own agent.
#[derive(Debug)]
pub struct OwnNode {
    clock: NodeClock,
    chance: Chance,
    line: Line,
    habits: Habits,
    /// What survives a crash.
    journal: Journal,
    /// What does not.
    memory: Memory,
    facts: Facts,
    /// Until when no server can be reached, by the true clock.
    cut_off_until: Option<crate::clock::Time>,
    /// It finishes what it has and begins nothing more.
    is_finishing: bool,
    /// Attempts that are over, and the one that is open at the end.
    done: Vec<Attempt>,
}

/// What survives a crash.
#[derive(Debug, Default)]
struct Journal {
    entry: Option<Entry>,
    given: Option<Given>,
    /// The wish that was last seen through, and when, by the true clock.
    ended: Option<(String, crate::clock::Time)>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Digest of the facts that a server has.
    told: Option<Vec<u8>>,
    wants_facts: bool,
    wants_packages: bool,
    /// The tag of the decision that the node goes by.
    tag: u64,
    /// The next poll may let itself be held so long.
    offered: Duration,
    /// Whether the last decision left nothing to do.
    rests: bool,
    /// Since when the servers have too much to do to answer, by the true clock, and until when none is asked.
    busy: Option<(crate::clock::Time, crate::clock::Time)>,
}

impl OwnNode {
    /// A node that has joined.
    #[must_use]
    pub fn new(clock: NodeClock, mut chance: Chance, line: Line, habits: Habits) -> Self {
        let facts = wire::facts(&mut chance);
        Self {
            clock,
            chance,
            line,
            habits,
            journal: Journal::default(),
            memory: Memory::default(),
            facts,
            cut_off_until: None,
            is_finishing: false,
            done: Vec::new(),
        }
    }

    /// The same node on a system that is updated by images, which runs this version of one.
    #[must_use]
    pub fn with_image(mut self, profile: &str, image: &str) -> Self {
        self.facts.modules = vec!["image".to_owned()];
        self.facts.booted_image = Some(BootedImage {
            profile_name: profile.to_owned(),
            image_id: image.to_owned(),
        });
        self
    }

    /// From now on it finishes what it has, tells everything, and begins nothing more.
    pub fn finish(&mut self) {
        self.is_finishing = true;
        self.cut_off_until = None;
    }

    /// Whether nothing is open and everything is told.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.journal.entry.is_none()
            && self.memory.told.as_ref() == Some(&wire::digest(&self.facts))
    }

    /// What it really did.
    #[must_use]
    pub fn into_truth(mut self) -> OwnTruth {
        if let Some(entry) = self.journal.entry.take() {
            self.done.push(entry.into_truth(false));
        }
        OwnTruth {
            attempts: self.done,
            facts_digest: wire::digest(&self.facts),
        }
    }
}
