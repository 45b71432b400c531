//! The clock of a simulated node: that of the machine, put wrong.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Clock;

/// An instant.
pub type Time = DateTime<Utc>;

/// One instant by two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By the node's own clock.
    pub node: Time,
    /// By the clock that the servers have as well.
    pub truth: Time,
}

/// A clock that is wrong by a fixed length of time.
#[derive(Clone, Debug)]
pub struct NodeClock {
    truth: Arc<dyn Clock>,
    skew: TimeDelta,
}

impl NodeClock {
    /// A clock that is ahead of `truth` by `skew`, or behind it if that is negative.
    #[must_use]
    pub fn new(truth: Arc<dyn Clock>, skew: TimeDelta) -> Self {
        Self { truth, skew }
    }

    /// By how much it is wrong.
    #[must_use]
    pub const fn skew(&self) -> TimeDelta {
        self.skew
    }

    /// This instant by both clocks.
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.at(self.truth.now())
    }

    /// An instant of the true clock, by both.
    #[must_use]
    pub fn at(&self, truth: Time) -> Moment {
        Moment {
            node: truth + self.skew,
            truth,
        }
    }

    /// An instant of the node's clock, by both.
    #[must_use]
    pub fn by_node(&self, node: Time) -> Moment {
        Moment {
            node,
            truth: node - self.skew,
        }
    }
}
