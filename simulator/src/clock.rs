//! The clock of a simulated node: the true clock with an error.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Clock;

/// An instant.
pub type Time = DateTime<Utc>;

/// An instant by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By the node's own clock.
    pub node_time: Time,
    /// By the clock of the servers.
    pub true_time: Time,
}

/// A clock that is ahead or behind by a fixed duration.
#[derive(Clone, Debug)]
pub struct NodeClock {
    true_clock: Arc<dyn Clock>,
    skew: TimeDelta,
}

impl NodeClock {
    /// A clock that is ahead of `true_clock` by `skew`, or behind it if `skew` is negative.
    #[must_use]
    pub fn new(true_clock: Arc<dyn Clock>, skew: TimeDelta) -> Self {
        Self { true_clock, skew }
    }

    /// How far the clock is ahead.
    #[must_use]
    pub const fn skew(&self) -> TimeDelta {
        self.skew
    }

    /// The current instant by both clocks.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.at_true_time(self.true_clock.now())
    }

    /// An instant of the true clock, by both clocks.
    #[must_use]
    pub fn at_true_time(&self, true_time: Time) -> Moment {
        Moment { node_time: true_time + self.skew, true_time }
    }

    /// An instant of the node's clock, by both clocks.
    #[must_use]
    pub fn at_node_time(&self, node_time: Time) -> Moment {
        Moment { node_time, true_time: node_time - self.skew }
    }
}
