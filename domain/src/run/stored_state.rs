//! The state of a stored run as users see it. Decisions use only runs whose state this release knows.

use super::state::RunState;
use crate::Time;
use crate::status::Indication;

/// State of a stored run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredState {
    Known(RunState),
    /// A newer release wrote a state, or a cause of the end, that this release does not know.
    Unknown {
        /// Name of the state, as stored.
        name: String,
        since: Time,
        ended_at: Option<Time>,
        /// Cause of the end, as stored; empty if there is none.
        cause: String,
    },
}

impl StoredState {
    /// The name, as stored in the database.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Known(state) => state.name(),
            Self::Unknown { name, .. } => name,
        }
    }

    /// When the run entered this state.
    #[must_use]
    pub const fn since(&self) -> Time {
        match self {
            Self::Known(state) => state.since(),
            Self::Unknown { since, .. } => *since,
        }
    }

    /// When the run ended; `None` if it is open.
    #[must_use]
    pub fn ended_at(&self) -> Option<Time> {
        match self {
            Self::Known(state) => state.ended_at(),
            Self::Unknown { ended_at, .. } => *ended_at,
        }
    }

    /// EIM's status text, and how to interpret it. An unknown state has its name as the text.
    #[must_use]
    pub fn status(&self) -> (&str, Indication) {
        match self {
            Self::Known(state) => state.status(),
            Self::Unknown { name, .. } => match name.as_str() {
                // Only the cause is unknown.
                "cancelled" => ("Update cancelled", Indication::Idle),
                "abandoned" => ("Update failed", Indication::Error),
                name => (name, Indication::Unspecified),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::run::{AbandonCause, CancelCause};

    fn unknown(name: &str, cause: &str) -> StoredState {
        let since = DateTime::UNIX_EPOCH;
        StoredState::Unknown {
            name: name.to_owned(),
            since,
            ended_at: None,
            cause: cause.to_owned(),
        }
    }

    #[test]
    fn an_unknown_state_is_shown_by_its_name() {
        let state = unknown("held", "");
        assert_eq!(state.name(), "held");
        assert_eq!(state.status(), ("held", Indication::Unspecified));
    }

    #[test]
    fn an_unknown_cause_does_not_change_the_status() {
        let at = DateTime::UNIX_EPOCH;
        let cancelled = RunState::Cancelled { at, cause: CancelCause::Requested };
        let abandoned = RunState::Abandoned { at, cause: AbandonCause::Removed };
        for known in [cancelled, abandoned] {
            assert_eq!(unknown(known.name(), "moved").status(), known.status());
        }
    }
}
