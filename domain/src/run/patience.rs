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

/// For how long the news of a run may be on its way when its node, which tells everything before it asks, does not know
/// of it: longer than any call takes.
const UNKNOWN: TimeDelta = TimeDelta::minutes(5);

/// How long an agent may be silent that another one has replaced, before nothing more is expected of it: an update goes
/// on over a restart of the machine.
const REPLACED: TimeDelta = TimeDelta::hours(1);

impl UpdateRun {
    /// When a run that keeps others waiting is over for its node, if that asks what to do and holds no attempt. None if
    /// the run keeps nobody waiting, or is none of an agent that holds attempts: the next one replaces it.
    #[must_use]
    pub fn forgotten_at(&self) -> Option<Time> {
        let has_leave = self.granted_at.is_some() || !self.state.is_untouched();
        let told = self.granted_at.max(Some(self.state.since()))?;
        (self.attempt.is_some() && has_leave && !self.state.is_final()).then_some(told + UNKNOWN)
    }

    /// When nothing more is expected of a run whose agent was replaced by another and had its last word then.
    #[must_use]
    pub fn outlived_at(&self, last_word: Time) -> Option<Time> {
        let told = last_word.max(self.state.since());
        (self.attempt.is_none() && !self.state.is_final()).then_some(told + REPLACED)
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

    /// The patience with a run of which nothing more is expected after an instant.
    #[must_use]
    pub fn until(self, run: &UpdateRun, limit: Time) -> Self {
        let rest = limit - run.state.since();
        Self {
            downloading: self.downloading.min(rest),
            staged: self.staged.min(rest),
            applying: self.applying.min(rest),
            rebooting: self.rebooting.min(rest),
            verifying: self.verifying.min(rest),
            reverting: self.reverting.min(rest),
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
