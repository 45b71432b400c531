//! Changes as a number and a range of times.

use std::fmt;

use chrono::SecondsFormat;

use super::RecordedChange;
use crate::Time;

/// A number of changes and the times of the first and the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeSpan {
    pub count: u64,
    pub first_at: Time,
    pub last_at: Time,
}

impl ChangeSpan {
    /// The span of some changes; none if there are none.
    #[must_use]
    pub fn from_changes(changes: &[RecordedChange]) -> Option<Self> {
        let one =
            |change: &RecordedChange| Self { count: 1, first_at: change.at, last_at: change.at };
        changes.iter().map(one).reduce(Self::join)
    }

    /// Both spans together.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            first_at: self.first_at.min(other.first_at),
            last_at: self.last_at.max(other.last_at),
        }
    }
}

impl fmt::Display for ChangeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, last] =
            [self.first_at, self.last_at].map(|at| at.to_rfc3339_opts(SecondsFormat::Micros, true));
        let noun = if self.count == 1 { "change" } else { "changes" };
        write!(f, "{} {noun} from {first} to {last}", self.count)
    }
}
