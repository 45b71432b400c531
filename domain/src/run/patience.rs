//! How long a run may stay where it is.

use chrono::TimeDelta;

use super::UpdateRun;
use super::state::RunState;
use crate::Time;

/// How long a run may stay in each of its open states before it is given up as timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Fetching.
    pub downloading: TimeDelta,
    /// Waiting for its gate.
    pub staged: TimeDelta,
    /// Being changed.
    pub applying: TimeDelta,
    /// Down on purpose.
    pub rebooting: TimeDelta,
    /// Looking at what runs.
    pub verifying: TimeDelta,
    /// Going back.
    pub reverting: TimeDelta,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            downloading: TimeDelta::days(2),
            staged: TimeDelta::days(30),
            applying: TimeDelta::hours(24),
            rebooting: TimeDelta::hours(6),
            verifying: TimeDelta::hours(6),
            reverting: TimeDelta::hours(24),
        }
    }
}

impl Patience {
    /// The patience with one run. One that was given leave may have begun without our having heard of it, so it is given
    /// up at the latest when one that is being changed would be.
    #[must_use]
    pub fn with(self, run: &UpdateRun) -> Self {
        let Some(granted_at) = run.granted_at else {
            return self;
        };
        let rest = granted_at - run.state.since() + self.applying;
        Self {
            downloading: self.downloading.min(rest),
            staged: self.staged.min(rest),
            ..self
        }
    }

    /// When a run in this state is given up; never for one that is over.
    #[must_use]
    pub fn ends(&self, state: &RunState) -> Option<Time> {
        let limit = match state {
            RunState::Downloading { .. } => self.downloading,
            RunState::Staged { .. } => self.staged,
            RunState::Applying { .. } => self.applying,
            RunState::Rebooting { .. } => self.rebooting,
            RunState::Verifying { .. } => self.verifying,
            RunState::Reverting { .. } => self.reverting,
            _ => return None,
        };
        state.since().checked_add_signed(limit)
    }

    /// Whether a run in this state is to be given up now.
    #[must_use]
    pub fn is_over(&self, state: &RunState, now: Time) -> bool {
        self.ends(state).is_some_and(|end| end <= now)
    }
}
