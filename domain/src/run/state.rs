//! The states of a run and the one function that moves it.

use super::event::{CancelCause, Failure, RunEvent};
use super::patience::Patience;
use crate::Time;
use crate::decide::Verdict;
use crate::status::Indication;

named! {
    /// Why nobody knows how an attempt ended.
    AbandonCause {
        /// Nothing was heard for too long.
        TimedOut = "timed_out",
        /// Another attempt began.
        Superseded = "superseded",
        /// The instance is gone.
        Removed = "removed",
    }
}

/// Where a run stands. Each state carries exactly what is true only in that state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Fetching; nothing is changed yet.
    Downloading {
        /// When it began.
        since: Time,
    },
    /// All is there, waiting for its gate; nothing is changed yet.
    Staged {
        /// When it began.
        since: Time,
    },
    /// The node is being changed.
    Applying {
        /// When it began.
        since: Time,
    },
    /// Changed; the machine is down on purpose.
    Rebooting {
        /// When it began.
        since: Time,
    },
    /// Changed, not yet known to be good.
    Verifying {
        /// When it began.
        since: Time,
    },
    /// Going back.
    Reverting {
        /// When it began.
        since: Time,
    },
    /// What runs is what was wanted.
    Succeeded {
        /// When it ended.
        at: Time,
        /// Whether anything had to be changed for it (E27).
        changed: bool,
    },
    /// The node is not as wanted and not known to be as before.
    Failed {
        /// When it ended.
        at: Time,
        /// Why.
        failure: Failure,
    },
    /// The node is verified to be as before.
    Reverted {
        /// When it ended.
        at: Time,
        /// Why.
        failure: Failure,
    },
    /// Given up before anything was changed.
    Cancelled {
        /// When it ended.
        at: Time,
        /// Why.
        cause: CancelCause,
    },
    /// Nobody knows how it ended.
    Abandoned {
        /// When it was given up.
        at: Time,
        /// Why.
        cause: AbandonCause,
    },
}

/// The event does not fit the state. Not a bug: nodes repeat themselves and people click twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a run that is {state} cannot take the event {event}")]
pub struct Refused {
    /// The name of the state; `none` before the run was opened.
    pub state: &'static str,
    /// The name of the event.
    pub event: &'static str,
}

impl RunState {
    /// The whole life of a run in one table. `from` is none before the run was opened.
    ///
    /// News may skip states, because samples and reports may be lost. News that is older than what is known, and a
    /// repeated end, are accepted and change nothing. Time's own event counts only when its time has come.
    ///
    /// # Errors
    /// The event does not fit the state.
    pub fn on(
        from: Option<&Self>,
        event: &RunEvent,
        now: Time,
        patience: &Patience,
    ) -> Result<Self, Refused> {
        let Some(state) = from else {
            return Self::opened(event, now);
        };
        let next = state
            .moved(event, now)
            .or_else(|| state.ended(event, now, patience))
            .or_else(|| state.ended_after_all(event, now))
            .or_else(|| state.includes(event).then(|| state.clone()));
        next.ok_or_else(|| refused(from, event))
    }

    /// The way forward while the attempt is open. News may skip steps.
    fn moved(&self, event: &RunEvent, now: Time) -> Option<Self> {
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
            // What was looked at asked for another reboot.
            (S::Verifying { .. }, E::RebootBegun) => S::Rebooting { since },
            (S::Applying { .. } | S::Rebooting { .. } | S::Verifying { .. }, E::Reverting) => {
                S::Reverting { since }
            }
            _ => return None,
        })
    }

    /// The ends of an open attempt.
    fn ended(&self, event: &RunEvent, now: Time, patience: &Patience) -> Option<Self> {
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
            E::Failed(failure) => S::Failed {
                at,
                failure: failure.clone(),
            },
            E::Reverted(failure) if !self.is_untouched() => S::Reverted {
                at,
                failure: failure.clone(),
            },
            // Nothing was changed, so it may be given up without a trace on the node.
            E::Cancelled(cause) if self.is_untouched() => S::Cancelled { at, cause: *cause },
            E::TimedOut if patience.is_over(self, now) => S::Abandoned {
                at,
                cause: AbandonCause::TimedOut,
            },
            E::Superseded => S::Abandoned {
                at,
                cause: AbandonCause::Superseded,
            },
            E::Removed => S::Abandoned {
                at,
                cause: AbandonCause::Removed,
            },
            _ => return None,
        })
    }

    /// It was given up for lack of news, and now the news of its end is here after all.
    fn ended_after_all(&self, event: &RunEvent, now: Time) -> Option<Self> {
        use RunEvent as E;
        use RunState as S;
        let at = now;
        if !matches!(
            self,
            S::Abandoned {
                cause: AbandonCause::TimedOut,
                ..
            }
        ) {
            return None;
        }
        Some(match event {
            E::Finished => S::Succeeded { at, changed: true },
            E::NothingToDo => S::Succeeded { at, changed: false },
            E::Failed(failure) => S::Failed {
                at,
                failure: failure.clone(),
            },
            E::Reverted(failure) => S::Reverted {
                at,
                failure: failure.clone(),
            },
            E::Cancelled(cause) => S::Cancelled { at, cause: *cause },
            _ => return None,
        })
    }

    /// What the first news of an attempt opens. An end may open and close a run at once (M4); giving up opens none.
    fn opened(event: &RunEvent, now: Time) -> Result<Self, Refused> {
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
            E::Failed(failure) => Self::Failed {
                at,
                failure: failure.clone(),
            },
            E::Reverted(failure) => Self::Reverted {
                at,
                failure: failure.clone(),
            },
            E::Cancelled(_) | E::TimedOut | E::Superseded | E::Removed => {
                return Err(refused(None, event));
            }
        })
    }

    /// Whether the news says only what the state already includes.
    fn includes(&self, news: &RunEvent) -> bool {
        use RunEvent as E;
        use RunState as S;
        match (self, news) {
            (S::Succeeded { changed: true, .. }, E::Finished)
            | (S::Succeeded { changed: false, .. }, E::NothingToDo)
            | (S::Failed { .. }, E::Failed(_))
            | (S::Reverted { .. }, E::Reverted(_))
            | (S::Cancelled { .. }, E::Cancelled(_))
            | (
                S::Abandoned {
                    cause: AbandonCause::TimedOut,
                    ..
                },
                E::TimedOut,
            )
            | (
                S::Abandoned {
                    cause: AbandonCause::Superseded,
                    ..
                },
                E::Superseded,
            )
            | (
                S::Abandoned {
                    cause: AbandonCause::Removed,
                    ..
                },
                E::Removed,
            ) => true,
            (open, news) => match (open.progress(), progress_of(news)) {
                (Some(known), Some(said)) => said <= known,
                _ => false,
            },
        }
    }

    /// How far an open run is.
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

    /// The stable name, as the database keeps it.
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

    /// Since when it holds.
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

    /// Whether the run is over.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.progress().is_none()
    }

    /// When the run ended, if it is over.
    #[must_use]
    pub fn ended_at(&self) -> Option<Time> {
        self.is_final().then(|| self.since())
    }

    /// Whether the node was not touched yet, so that the attempt can be given up.
    #[must_use]
    pub const fn is_untouched(&self) -> bool {
        matches!(self, Self::Downloading { .. } | Self::Staged { .. })
    }

    /// What an end means for the next attempt at the same wish.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        match self {
            Self::Succeeded { .. } => Verdict::Good,
            Self::Failed { .. } | Self::Reverted { .. } => Verdict::Bad,
            _ => Verdict::Open,
        }
    }

    /// The ancestor's words for it and how to take them (southbound section 1.6, engine section 4).
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

/// How far a run is that says this.
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

fn refused(from: Option<&RunState>, event: &RunEvent) -> Refused {
    Refused {
        state: from.map_or("none", RunState::name),
        event: event.name(),
    }
}
