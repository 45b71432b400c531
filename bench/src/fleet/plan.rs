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
        /// Over what time they have their first calls, in milliseconds.
        within: u64,
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
    /// Nobody calls any more.
    Pause,
    /// All go on as if no time had passed since they paused.
    Resume,
    /// Note when each node of ours has another decision than it had at an instant.
    Watch {
        /// That instant, in milliseconds since 1970.
        since: i64,
    },
    /// From now on let calls go astray, in each way so often in a thousand calls. Those that are held are spared.
    Astray {
        /// The request does not arrive, or its answer does not.
        lose: u16,
        /// The request arrives twice at the same time.
        duplicate: u16,
        /// The request arrives behind what the node says next.
        late: u16,
    },
    /// Every other node is away from now on, with the connections that they have for themselves.
    Leave,
    /// Those that are away come back, all within a second.
    Return {
        /// When that second begins, in milliseconds since 1970.
        at: i64,
    },
    /// Nothing goes wrong on purpose any more, and those that came back are like all others.
    Calm,
    /// Let nodes of ours tell of an attempt that they began and finished.
    Storm {
        /// When the first one tells, in milliseconds since 1970.
        at: i64,
        /// Within what time all of them do, in milliseconds.
        within_millis: u64,
        /// Whether their clocks are wrong.
        wrong_clocks: bool,
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

/// How calls ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Calls {
    /// Those that were answered.
    pub ok: u64,
    /// Those that were refused with a word when to come back.
    pub refused: u64,
    /// Those that failed.
    pub failed: u64,
    /// How long answered ones took from when they were planned; those that might be held do not count.
    pub latencies: Histogram,
}

impl Calls {
    /// Adds what happened elsewhere, or in another second.
    pub fn merge(&mut self, other: &Self) {
        self.ok += other.ok;
        self.refused += other.refused;
        self.failed += other.failed;
        self.latencies.merge(&other.latencies);
    }

    /// Whether not all of them succeeded.
    pub const fn are_bad(&self) -> bool {
        0 < self.refused + self.failed
    }
}

/// With how many calls something went wrong on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Astray {
    /// The request did not arrive, or its answer did not. Such a call counts nowhere else.
    pub lost: u64,
    /// The request arrived twice. Such a call counts among the others as well, but for how long it took.
    pub duplicated: u64,
    /// The request arrived when the node had given it up. Such a call counts nowhere else, unless it fails.
    pub late: u64,
}

/// What happened in a second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Second {
    /// Calls of nodes with which nothing is wrong.
    pub calls: Calls,
    /// Calls of nodes that were away and came back.
    pub returned: Calls,
    /// Calls that went astray on purpose.
    pub astray: Astray,
    /// Nodes that left.
    pub left: u64,
    /// Nodes that were answered for the first time since they came back.
    pub back: u64,
    /// Answered calls that brought news.
    pub news: u64,
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
        self.calls.merge(&other.calls);
        self.returned.merge(&other.returned);
        self.astray.lost += other.astray.lost;
        self.astray.duplicated += other.astray.duplicated;
        self.astray.late += other.astray.late;
        self.left += other.left;
        self.back += other.back;
        self.news += other.news;
        self.told_millis += other.told_millis;
        self.told += other.told;
        self.changed.merge(&other.changed);
        self.reports.merge(&other.reports);
    }
}
