//! Timeouts of runs.

use chrono::TimeDelta;

use super::UpdateRun;
use super::state::RunState;
use crate::Time;

/// How long a run may stay in each of its open states before it times out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTimeouts {
    /// While downloading.
    pub downloading: TimeDelta,
    /// While waiting for its window.
    pub staged: TimeDelta,
    /// While the node is being changed.
    pub applying: TimeDelta,
    /// While the node reboots.
    pub rebooting: TimeDelta,
    /// While the node verifies the result.
    pub verifying: TimeDelta,
    /// While the node rolls back.
    pub reverting: TimeDelta,
}

impl Default for RunTimeouts {
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

/// How long a report about a run may be in transit when its node does not know the run: an Evenkeel agent sends all
/// reports before it polls, so this only has to exceed the duration of any call.
const MAX_REPORT_DELAY: TimeDelta = TimeDelta::minutes(5);

/// How long a replaced agent may be silent before no further report is expected: an update continues across a reboot of
/// the machine.
const REPLACED_AGENT_GRACE_PERIOD: TimeDelta = TimeDelta::hours(1);

impl UpdateRun {
    /// When an open run that its node no longer knows counts as lost: the node polls without an attempt, although it
    /// may have begun this one. `None` if the run blocks no other run, or belongs to an agent without attempt ids: then
    /// the next run replaces it.
    #[must_use]
    pub fn forgotten_at(&self) -> Option<Time> {
        let may_have_begun = self.granted_at.is_some() || !self.state.is_untouched();
        let last_change = self.granted_at.max(Some(self.state.since()))?;
        (self.attempt.is_some() && may_have_begun && !self.state.is_final())
            .then_some(last_change + MAX_REPORT_DELAY)
    }

    /// When no further report is expected of a run whose agent was replaced. `last_report` is the last contact of that
    /// agent.
    #[must_use]
    pub fn orphaned_at(&self, last_report: Time) -> Option<Time> {
        let last_contact = last_report.max(self.state.since());
        (self.attempt.is_none() && !self.state.is_final())
            .then_some(last_contact + REPLACED_AGENT_GRACE_PERIOD)
    }
}

impl RunTimeouts {
    /// The timeouts of one run. A run with a start permit may have begun without a report, so it times out at the latest
    /// when an applying run would.
    #[must_use]
    pub fn for_run(self, run: &UpdateRun) -> Self {
        let Some(granted_at) = run.granted_at else {
            return self;
        };
        let rest = granted_at - run.state.since() + self.applying;
        Self { downloading: self.downloading.min(rest), staged: self.staged.min(rest), ..self }
    }

    /// The timeouts of a run for which no report is expected after an instant.
    #[must_use]
    pub fn capped_at(self, run: &UpdateRun, limit: Time) -> Self {
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

    /// When a run in this state times out; `None` if the state is final.
    #[must_use]
    pub fn expires_at(&self, state: &RunState) -> Option<Time> {
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

    /// Whether a run in this state has timed out.
    #[must_use]
    pub fn is_expired(&self, state: &RunState, now: Time) -> bool {
        self.expires_at(state).is_some_and(|end| end <= now)
    }
}
