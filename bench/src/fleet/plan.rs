//! What the processes that drive nodes are told, and what they tell: JSON, one line each.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;

/// What a driver is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Where the server is.
    pub address: SocketAddr,
    /// The authority that vouches for it, in PEM.
    pub authority: String,
    /// Its nodes, one a line ([`super::roster`]).
    pub nodes: PathBuf,
    /// Which of the drivers it is, from 0.
    pub part: u32,
    /// How often each node calls, in milliseconds.
    pub interval_millis: u64,
    /// Connections that are shared by nodes.
    pub multiplexed: u32,
    /// Connections that a node has for itself: those of the first so many nodes.
    pub kept: u32,
    /// How many connections the drivers before it have.
    pub connections_before: u32,
    /// In how many of a thousand calls a node has news.
    pub news_per_mille: u16,
    /// Whether nodes call again when the server says, and not when it was planned.
    pub obey: bool,
}

/// What a driver is told to do from now on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Let the nodes call, from an instant on.
    Begin {
        /// That instant, in milliseconds since 1970. Seconds are counted from there.
        at: i64,
    },
    /// Open the connections that a node has for itself, and let it use its own.
    Keep,
    /// Let nodes of ours be held.
    Hold {
        /// For how long at most, in milliseconds.
        millis: u32,
    },
    /// No news any more, and nobody is held.
    Quiet,
    /// Note when each node of ours has another decision than it had at an instant.
    Watch {
        /// That instant, in milliseconds since 1970.
        since: i64,
    },
    /// Let nodes of ours tell of an attempt that they began and finished, all within a second.
    Storm {
        /// When that second begins, in milliseconds since 1970.
        at: i64,
        /// How many nodes: the first ones.
        count: u32,
        /// What the attempts were for.
        target: String,
    },
}

/// What a driver tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The connections that it was to open are open.
    Opened,
    /// What happened in a second.
    Second {
        /// Which, from 0.
        number: u32,
        /// How many calls let themselves be held at its end.
        held: u32,
        /// What happened.
        of: Box<Second>,
    },
}

/// What happened in a second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Second {
    /// Calls that were answered.
    pub ok: u64,
    /// Calls that were refused with a word when to come back.
    pub refused: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Answered calls that brought news.
    pub news: u64,
    /// How long answered calls took from when they were planned; those that might be held do not count.
    pub latencies: Histogram,
    /// The sum of the times after which nodes were told to call again, in milliseconds.
    pub told_millis: u64,
    /// How many were told.
    pub told: u64,
    /// How long after a change nodes had their new decision.
    pub changed: Histogram,
    /// How long reports took from when they were planned until all of them was acknowledged.
    pub reports: Histogram,
}

impl Second {
    /// Adds what happened elsewhere, or in another second.
    pub fn merge(&mut self, other: &Self) {
        self.ok += other.ok;
        self.refused += other.refused;
        self.failed += other.failed;
        self.news += other.news;
        self.latencies.merge(&other.latencies);
        self.told_millis += other.told_millis;
        self.told += other.told;
        self.changed.merge(&other.changed);
        self.reports.merge(&other.reports);
    }
}
