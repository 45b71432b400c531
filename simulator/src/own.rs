//! A simulated node with our own agent.
//!
//! It keeps a journal, so that it continues after a crash. It reports events at least once and in
//! order, and requests permission before it begins. It begins without a request only if it has an
//! offline grant and cannot reach any server. While it has nothing else to do, it may use long
//! polls.

mod journal;
mod session;
mod turn;
pub(crate) mod wire;

use std::time::Duration;

use evenkeel_proto::agent::{BootedImage, Facts};

use crate::clock::NodeClock;
use crate::connection::NodeConnection;
use crate::ground_truth::{Attempt, OwnGroundTruth};
pub use crate::own::journal::JournalEntry;
use crate::own::journal::OfflineGrant;
pub(crate) use crate::own::session::PollSession;
pub use crate::own::wire::{enroll_request, report_request};
use crate::rng::Rng;

/// Random behaviour of such nodes.
#[derive(Clone, Copy, Debug)]
pub struct OwnHabits {
    /// The interval between two turns, at least and at most.
    pub turn_interval: (Duration, Duration),
    /// How long a download takes.
    pub download_time: (Duration, Duration),
    /// How long each step of an update takes.
    pub step_time: (Duration, Duration),
    /// How often in a thousand turns the node crashes.
    pub crash_per_mille: u16,
    /// How long the node is down after a crash.
    pub crash_downtime: (Duration, Duration),
    /// How often in a thousand turns it loses the connection to all servers.
    pub outage_per_mille: u16,
    /// How long such an outage lasts.
    pub outage_time: (Duration, Duration),
    /// How often in a thousand outages the outage is a long one.
    pub long_outage_per_mille: u16,
    /// How long a long outage lasts.
    pub long_outage_time: (Duration, Duration),
    /// How often in a thousand crashes the journal is lost, too.
    pub journal_loss_per_mille: u16,
    /// How often in a thousand attempts there is nothing to do.
    pub no_op_per_mille: u16,
    /// How often in a thousand attempts the update fails.
    pub failure_per_mille: u16,
    /// How often in a thousand turns its facts change.
    pub fact_change_per_mille: u16,
    /// Whether an idle node uses long polls.
    pub uses_long_polls: bool,
    /// The duration of a long poll: short, because the node does nothing else meanwhile.
    pub long_poll_time: (Duration, Duration),
}

impl Default for OwnHabits {
    fn default() -> Self {
        let millis = |from, to| (Duration::from_millis(from), Duration::from_millis(to));
        Self {
            turn_interval: millis(50, 250),
            download_time: millis(0, 1_500),
            step_time: millis(0, 800),
            crash_per_mille: 4,
            crash_downtime: millis(100, 1_500),
            outage_per_mille: 9,
            outage_time: millis(1_000, 9_000),
            long_outage_per_mille: 10,
            long_outage_time: millis(60_000, 140_000),
            journal_loss_per_mille: 60,
            no_op_per_mille: 80,
            failure_per_mille: 220,
            fact_change_per_mille: 8,
            uses_long_polls: false,
            long_poll_time: millis(200, 1_000),
        }
    }
}

/// A simulated node with our own agent.
#[derive(Debug)]
pub struct OwnNode {
    clock: NodeClock,
    rng: Rng,
    connection: NodeConnection,
    habits: OwnHabits,
    /// Survives a crash.
    journal: Journal,
    /// Lost in a crash.
    memory: Memory,
    facts: Facts,
    /// Until when no server can be reached, by the true clock.
    outage_until: Option<crate::clock::Time>,
    /// The node finishes its open attempt and begins nothing more.
    is_finishing: bool,
    /// The ended attempts, and at the end also the open one.
    done: Vec<Attempt>,
}

/// Survives a crash.
#[derive(Debug, Default)]
struct Journal {
    entry: Option<JournalEntry>,
    offline_grant: Option<OfflineGrant>,
    /// The target digest that ended last, and when, by the true clock.
    last_ended: Option<(String, crate::clock::Time)>,
}

#[derive(Debug, Default)]
struct Memory {
    /// The digest of the facts that a server has.
    reported_facts: Option<[u8; 32]>,
    session: PollSession,
    /// Whether the last decision gave the node nothing to do.
    is_resting: bool,
    /// Since when the servers are overloaded, and until when none is called, by the true clock.
    overloaded: Option<(crate::clock::Time, crate::clock::Time)>,
}

impl OwnNode {
    /// A node that has enrolled.
    #[must_use]
    pub fn new(
        clock: NodeClock,
        mut rng: Rng,
        connection: NodeConnection,
        habits: OwnHabits,
    ) -> Self {
        let facts = wire::facts(&mut rng);
        Self {
            clock,
            rng,
            connection,
            habits,
            journal: Journal::default(),
            memory: Memory::default(),
            facts,
            outage_until: None,
            is_finishing: false,
            done: Vec::new(),
        }
    }

    /// The same node on a system that is updated by images and runs this version.
    #[must_use]
    pub fn with_image(mut self, profile: &str, image: &str) -> Self {
        self.facts.modules = vec!["image".to_owned()];
        self.facts.booted_image =
            Some(BootedImage { profile_name: profile.to_owned(), image_id: image.to_owned() });
        self
    }

    /// From now on the node finishes its attempt, reports everything, and begins nothing more.
    pub fn finish(&mut self) {
        self.is_finishing = true;
        self.outage_until = None;
    }

    /// Whether no attempt is open and everything is reported.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.journal.entry.is_none()
            && self.memory.reported_facts.as_ref() == Some(&wire::digest(&self.facts))
    }

    #[must_use]
    pub fn into_ground_truth(mut self) -> OwnGroundTruth {
        if let Some(entry) = self.journal.entry.take() {
            self.done.push(entry.into_ground_truth(false));
        }
        OwnGroundTruth { attempts: self.done, facts_digest: wire::digest(&self.facts).into() }
    }
}
