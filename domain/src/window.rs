//! Windows: spans of time in which a node may be changed.

use std::fmt;

use crate::Time;
use crate::id::{RepeatedScheduleId, SingleScheduleId};

/// What opens a window. Printed as the id, or as `order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Opener {
    /// A schedule that opens once.
    Single(SingleScheduleId),
    /// A schedule that opens repeatedly.
    Repeated(RepeatedScheduleId),
    /// An order of a user.
    Order,
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(id) => id.fmt(f),
            Self::Repeated(id) => id.fmt(f),
            Self::Order => f.write_str("order"),
        }
    }
}

/// A span of time: the start is included, the end excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    pub start: Time,
    pub end: Time,
    pub opener: Opener,
}

impl Window {
    /// Whether the window is open at an instant.
    #[must_use]
    pub fn is_open(&self, now: Time) -> bool {
        self.start <= now && now < self.end
    }
}

/// The windows of a node that are open or still to come. Windows may overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(Vec<Window>);

impl Windows {
    /// Drops windows that have ended and sorts the others by their start.
    #[must_use]
    pub fn from_now_on(windows: impl IntoIterator<Item = Window>, now: Time) -> Self {
        let mut windows: Vec<_> = windows.into_iter().filter(|w| now < w.end).collect();
        windows.sort_unstable();
        Self(windows)
    }

    /// The open window that ends last.
    #[must_use]
    pub fn open(&self, now: Time) -> Option<Window> {
        let open = self.0.iter().filter(|window| window.is_open(now));
        open.max_by_key(|window| window.end).copied()
    }

    /// The next window that opens.
    #[must_use]
    pub fn next(&self, now: Time) -> Option<Window> {
        self.0.iter().find(|window| now < window.start).copied()
    }

    /// When a window opens next, or the open window that ends last closes; `None` if nothing is to come.
    #[must_use]
    pub fn next_change(&self, now: Time) -> Option<Time> {
        let closes = self.open(now).map(|window| window.end);
        let opens = self.next(now).map(|window| window.start);
        closes.into_iter().chain(opens).min()
    }

    /// All windows, earliest first.
    #[must_use]
    pub fn as_slice(&self) -> &[Window] {
        &self.0
    }
}
