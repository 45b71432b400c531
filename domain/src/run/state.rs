//! The states of a run and the transitions between them.

use super::event::{CancelCause, Failure, RunEvent};
use super::timeouts::RunTimeouts;
use crate::Time;
use crate::decide::Verdict;
use crate::status::Indication;

named! {
    /// Why the outcome of a run is unknown.
    AbandonCause {
        /// No report arrived for too long.
        TimedOut = "timed_out",
        /// Another run began.
        Superseded = "superseded",
        /// The instance was removed.
        Removed = "removed",
    }
}

/// State of a run. Each state carries only the data that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Downloading; nothing is changed yet.
    Downloading { since: Time },
    /// Downloaded and waiting for its window; nothing is changed yet.
    Staged { since: Time },
    /// The node is being changed.
    Applying { since: Time },
    /// Changed; the node is rebooting.
    Rebooting { since: Time },
    /// Changed; the node verifies the result.
    Verifying { since: Time },
    /// The node is rolling back.
    Reverting { since: Time },
    /// The node runs the desired state.
    Succeeded {
        at: Time,
        /// Whether anything had to be changed.
        changed: bool,
    },
    /// The node is not in the desired state and not known to be in its previous state.
    Failed { at: Time, failure: Failure },
    /// The node is verified to be in its previous state.
    Reverted { at: Time, failure: Failure },
    /// Cancelled before anything was changed.
    Cancelled { at: Time, cause: CancelCause },
    /// The outcome is unknown.
    Abandoned { at: Time, cause: AbandonCause },
}

/// The state does not accept the event. This is not a bug: nodes repeat reports and users click twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a run in state {state} does not accept the event {event}")]
pub struct InvalidTransition {
    /// Name of the state; `none` before the run was opened.
    pub state: &'static str,
    /// Name of the event.
    pub event: &'static str,
}

impl RunState {
    /// Applies an event: the complete state machine. `from` is `None` before the run is opened.
    ///
    /// Events may skip states, because reports may be lost. Repeated or outdated events are accepted and change nothing.
    /// A timeout is accepted only when it is due.
    ///
    /// # Errors
    /// The state does not accept the event.
    pub fn apply_event(
        from: Option<&Self>,
        event: &RunEvent,
        now: Time,
        timeouts: &RunTimeouts,
    ) -> Result<Self, InvalidTransition> {
        let Some(state) = from else {
            return Self::open(event, now);
        };
        let next = state
            .advance(event, now)
            .or_else(|| state.end(event, now, timeouts))
            .or_else(|| state.end_late(event, now))
            .or_else(|| state.includes(event).then(|| state.clone()));
        next.ok_or_else(|| invalid_transition(from, event))
    }

    /// Transitions between open states. Events may skip steps.
    fn advance(&self, event: &RunEvent, now: Time) -> Option<Self> {
        use RunEvent as E;
        use RunState as S;
        let since = now;
        Some(match (self, event) {
            (S::Downloading { .. }, E::Downloaded) => S::Staged { since },
            (S::Downloading { .. } | S::Staged { .. }, E::Began) => S::Applying { since },
            (S::Downloading { .. } | S::Staged { .. } | S::Applying { .. }, E::RebootBegun) => {
                S::Rebooting { since }
            }
            (
                S::Downloading { .. } | S::Staged { .. } | S::Applying { .. } | S::Rebooting { .. },
                E::VerifyBegun,
            ) => S::Verifying { since },
            // The verification requested another reboot.
            (S::Verifying { .. }, E::RebootBegun) => S::Rebooting { since },
            (S::Applying { .. } | S::Rebooting { .. } | S::Verifying { .. }, E::Reverting) => {
                S::Reverting { since }
            }
            _ => return None,
        })
    }

    /// Transitions from open to final states.
    fn end(&self, event: &RunEvent, now: Time, timeouts: &RunTimeouts) -> Option<Self> {
        use RunEvent as E;
        use RunState as S;
        let at = now;
        if self.is_final() {
            return None;
        }
        let reverting = matches!(self, S::Reverting { .. });
        Some(match event {
            E::Finished if !reverting => S::Succeeded { at, changed: true },
            E::NothingToDo if !reverting => S::Succeeded { at, changed: false },
            E::Failed(failure) => S::Failed { at, failure: failure.clone() },
            E::Reverted(failure) if !self.is_untouched() => {
                S::Reverted { at, failure: failure.clone() }
            }
            // Nothing was changed, so cancelling leaves no trace on the node.
            E::Cancelled(cause) if self.is_untouched() => S::Cancelled { at, cause: *cause },
            E::TimedOut if timeouts.is_expired(self, now) => {
                S::Abandoned { at, cause: AbandonCause::TimedOut }
            }
            E::Superseded => S::Abandoned { at, cause: AbandonCause::Superseded },
            E::Removed => S::Abandoned { at, cause: AbandonCause::Removed },
            _ => return None,
        })
    }

    /// The run timed out, and the report of its end arrives after all.
    fn end_late(&self, event: &RunEvent, now: Time) -> Option<Self> {
        use RunEvent as E;
        use RunState as S;
        let at = now;
        if !matches!(self, S::Abandoned { cause: AbandonCause::TimedOut, .. }) {
            return None;
        }
        Some(match event {
            E::Finished => S::Succeeded { at, changed: true },
            E::NothingToDo => S::Succeeded { at, changed: false },
            E::Failed(failure) => S::Failed { at, failure: failure.clone() },
            E::Reverted(failure) => S::Reverted { at, failure: failure.clone() },
            E::Cancelled(cause) => S::Cancelled { at, cause: *cause },
            _ => return None,
        })
    }

    /// The first event opens the run, and may end it at once. Cancellations and timeouts open no run.
    fn open(event: &RunEvent, now: Time) -> Result<Self, InvalidTransition> {
        use RunEvent as E;
        let (since, at) = (now, now);
        Ok(match event {
            E::Downloading => Self::Downloading { since },
            E::Downloaded => Self::Staged { since },
            E::Began => Self::Applying { since },
            E::RebootBegun => Self::Rebooting { since },
            E::VerifyBegun => Self::Verifying { since },
            E::Reverting => Self::Reverting { since },
            E::Finished => Self::Succeeded { at, changed: true },
            E::NothingToDo => Self::Succeeded { at, changed: false },
            E::Failed(failure) => Self::Failed { at, failure: failure.clone() },
            E::Reverted(failure) => Self::Reverted { at, failure: failure.clone() },
            E::Cancelled(_) | E::TimedOut | E::Superseded | E::Removed => {
                return Err(invalid_transition(None, event));
            }
        })
    }

    /// Whether the state already includes the event.
    fn includes(&self, event: &RunEvent) -> bool {
        use RunEvent as E;
        use RunState as S;
        match (self, event) {
            (S::Succeeded { changed: true, .. }, E::Finished)
            | (S::Succeeded { changed: false, .. }, E::NothingToDo)
            | (S::Failed { .. }, E::Failed(_))
            | (S::Reverted { .. }, E::Reverted(_))
            | (S::Cancelled { .. }, E::Cancelled(_))
            | (S::Abandoned { cause: AbandonCause::TimedOut, .. }, E::TimedOut)
            | (S::Abandoned { cause: AbandonCause::Superseded, .. }, E::Superseded)
            | (S::Abandoned { cause: AbandonCause::Removed, .. }, E::Removed) => true,
            (open, event) => match (open.progress(), progress_of(event)) {
                (Some(current), Some(reported)) => reported <= current,
                _ => false,
            },
        }
    }

    /// Progress of an open run; `None` if it has ended.
    pub(super) const fn progress(&self) -> Option<u8> {
        match self {
            Self::Downloading { .. } => Some(1),
            Self::Staged { .. } => Some(2),
            Self::Applying { .. } => Some(3),
            Self::Rebooting { .. } => Some(4),
            Self::Verifying { .. } => Some(5),
            Self::Reverting { .. } => Some(6),
            _ => None,
        }
    }

    /// The stable name, as stored in the database.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Downloading { .. } => "downloading",
            Self::Staged { .. } => "staged",
            Self::Applying { .. } => "applying",
            Self::Rebooting { .. } => "rebooting",
            Self::Verifying { .. } => "verifying",
            Self::Reverting { .. } => "reverting",
            Self::Succeeded { .. } => "succeeded",
            Self::Failed { .. } => "failed",
            Self::Reverted { .. } => "reverted",
            Self::Cancelled { .. } => "cancelled",
            Self::Abandoned { .. } => "abandoned",
        }
    }

    /// When the run entered this state.
    #[must_use]
    pub const fn since(&self) -> Time {
        match self {
            Self::Downloading { since }
            | Self::Staged { since }
            | Self::Applying { since }
            | Self::Rebooting { since }
            | Self::Verifying { since }
            | Self::Reverting { since } => *since,
            Self::Succeeded { at, .. }
            | Self::Failed { at, .. }
            | Self::Reverted { at, .. }
            | Self::Cancelled { at, .. }
            | Self::Abandoned { at, .. } => *at,
        }
    }

    /// Whether the run has ended.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.progress().is_none()
    }

    /// When the run ended; `None` if it is open.
    #[must_use]
    pub fn ended_at(&self) -> Option<Time> {
        self.is_final().then(|| self.since())
    }

    /// Whether nothing was changed on the node yet, so that the run can be cancelled.
    #[must_use]
    pub const fn is_untouched(&self) -> bool {
        matches!(self, Self::Downloading { .. } | Self::Staged { .. })
    }

    /// What the outcome means for the next run with the same target.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        match self {
            Self::Succeeded { .. } => Verdict::Good,
            Self::Failed { .. } | Self::Reverted { .. } => Verdict::Bad,
            _ => Verdict::Inconclusive,
        }
    }

    /// EIM's status text, and how to interpret it.
    #[must_use]
    pub const fn status(&self) -> (&'static str, Indication) {
        match self {
            Self::Downloading { .. } => ("Downloading artifacts", Indication::Idle),
            Self::Staged { .. } => ("Download complete", Indication::Idle),
            Self::Applying { .. }
            | Self::Rebooting { .. }
            | Self::Verifying { .. }
            | Self::Reverting { .. } => ("Updating", Indication::InProgress),
            Self::Succeeded { .. } => ("Update completed", Indication::Idle),
            Self::Failed { .. } | Self::Reverted { .. } | Self::Abandoned { .. } => {
                ("Update failed", Indication::Error)
            }
            Self::Cancelled { .. } => ("Update cancelled", Indication::Idle),
        }
    }
}

/// Progress of a run that reports this event.
const fn progress_of(event: &RunEvent) -> Option<u8> {
    match event {
        RunEvent::Downloading => Some(1),
        RunEvent::Downloaded => Some(2),
        RunEvent::Began => Some(3),
        RunEvent::RebootBegun => Some(4),
        RunEvent::VerifyBegun => Some(5),
        RunEvent::Reverting => Some(6),
        _ => None,
    }
}

fn invalid_transition(from: Option<&RunState>, event: &RunEvent) -> InvalidTransition {
    InvalidTransition { state: from.map_or("none", RunState::name), event: event.name() }
}
