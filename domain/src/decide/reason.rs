//! Why a node should do what it should do. The texts are made here and nowhere else.

use std::fmt;

use crate::Time;
use crate::assignment::Level;
use crate::id::{PolicyId, RunId};

/// Why a decision is as it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The host was invalidated or is to be removed.
    NotTrusted,
    /// The node has not spoken since its instance was made.
    NotProvisioned,
    /// Nothing is assigned to it.
    NoPolicy,
    /// What is assigned to it cannot be meant for it.
    PolicyDoesNotFit {
        /// The nearest one.
        policy: PolicyId,
        /// How near.
        level: Level,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Its agent does not know how.
    AgentLacks {
        /// What would be needed.
        module: &'static str,
    },
    /// No window is open, and none is known to come.
    NoWindow,
    /// No window is open yet.
    WindowClosed {
        /// When the next one opens.
        opens: Time,
    },
    /// A window is open.
    WindowOpen {
        /// When it closes.
        until: Time,
    },
    /// An attempt is going on.
    RunOpen {
        /// Which.
        run: RunId,
        /// The name of its state.
        state: &'static str,
    },
    /// The wish of the open attempt was taken back or replaced.
    Withdrawn {
        /// Which attempt.
        run: RunId,
    },
    /// It was brought to the wanted state in this window.
    UpToDate {
        /// By which attempt.
        run: RunId,
        /// When.
        at: Time,
    },
    /// It could not be brought to the wanted state in this window.
    FailedInWindow {
        /// By which attempt.
        run: RunId,
        /// When.
        at: Time,
    },
}

impl Reason {
    /// The stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotTrusted => "not_trusted",
            Self::NotProvisioned => "not_provisioned",
            Self::NoPolicy => "no_policy",
            Self::PolicyDoesNotFit { .. } => "policy_does_not_fit",
            Self::AgentLacks { .. } => "agent_lacks",
            Self::NoWindow => "no_window",
            Self::WindowClosed { .. } => "window_closed",
            Self::WindowOpen { .. } => "window_open",
            Self::RunOpen { .. } => "run_open",
            Self::Withdrawn { .. } => "withdrawn",
            Self::UpToDate { .. } => "up_to_date",
            Self::FailedInWindow { .. } => "failed_in_window",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTrusted => f.write_str("the host was invalidated or is to be removed"),
            Self::NotProvisioned => f.write_str("the node has not spoken yet"),
            Self::NoPolicy => f.write_str("no update policy is assigned to the instance"),
            Self::PolicyDoesNotFit { policy, level, why } => {
                write!(f, "{policy}, assigned to the {level}, does not fit: {why}")
            }
            Self::AgentLacks { module } => {
                write!(f, "the node's agent has no module `{module}`")
            }
            Self::NoWindow => f.write_str("no schedule opens a window for updates"),
            Self::WindowClosed { opens } => {
                write!(f, "the next window opens at {}", instant(*opens))
            }
            Self::WindowOpen { until } => write!(f, "a window is open until {}", instant(*until)),
            Self::RunOpen { run, state } => write!(f, "{run} is {state}"),
            Self::Withdrawn { run } => {
                write!(f, "what {run} was for is not wanted any more")
            }
            Self::UpToDate { run, at } => {
                write!(
                    f,
                    "{run} brought it to the wanted state at {}",
                    instant(*at)
                )
            }
            Self::FailedInWindow { run, at } => write!(
                f,
                "{run} failed at {}; the next attempt is made in the next window",
                instant(*at)
            ),
        }
    }
}

fn instant(time: Time) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}
