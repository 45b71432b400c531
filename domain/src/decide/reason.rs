//! Why a node should do what it should do. The texts are made here and nowhere else.

use std::fmt;

use crate::Time;
use crate::assignment::{Level, Scope};
use crate::condition::ConditionKind;
use crate::id::{PolicyId, RunId};
use crate::pause::PauseScope;

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
    /// The policy names no image, and the catalogue has none of the profile.
    NoImage {
        /// The profile.
        profile: String,
    },
    /// The image that is wished for is what runs.
    RunsAlready {
        /// Its version.
        image_id: String,
    },
    /// The image that is wished for is not known to be newer than what runs.
    NotNewer {
        /// The version that is wished for.
        image_id: String,
        /// The version that runs.
        running: String,
    },
    /// The image that is wished for failed on this node before. What was wrong with it is told by its run.
    Quarantined {
        /// Its version.
        image_id: String,
    },
    /// Nothing new is started for now.
    Paused {
        /// Where.
        scope: PauseScope,
        /// Who said so.
        by: String,
        /// Why.
        reason: String,
    },
    /// As many nodes are being changed as the assignment allows.
    NoFreeSlot {
        /// What the policy is assigned to.
        scope: Scope,
        /// How many that is.
        limit: u32,
    },
    /// It let its last window pass for nothing while others waited, so they go first.
    GivesWay {
        /// What the policy is assigned to.
        scope: Scope,
        /// Until when.
        until: Time,
    },
    /// The assignment starts nothing any more because too much failed.
    Stopped {
        /// What the policy is assigned to.
        scope: Scope,
        /// How much.
        failures: u32,
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
    /// A person called the open attempt off.
    Requested {
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
    /// When it is over by time alone, of those that keep back what could begin.
    pub(super) const fn over_at(&self) -> Option<Time> {
        match self {
            Self::GivesWay { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// What people should know about an instance for this reason, if it is a thing that only people can change.
    #[must_use]
    pub fn condition(&self) -> Option<(ConditionKind, String)> {
        let kind = match self {
            Self::PolicyDoesNotFit { .. } => ConditionKind::PolicyDoesNotFit,
            Self::AgentLacks { .. } => ConditionKind::AgentLacks,
            Self::NoImage { .. } => ConditionKind::NoImage,
            Self::NotNewer { .. } => ConditionKind::NotNewer,
            Self::Quarantined { .. } => ConditionKind::Quarantined,
            _ => return None,
        };
        Some((kind, self.to_string()))
    }

    /// The stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotTrusted => "not_trusted",
            Self::NotProvisioned => "not_provisioned",
            Self::NoPolicy => "no_policy",
            Self::PolicyDoesNotFit { .. } => "policy_does_not_fit",
            Self::AgentLacks { .. } => "agent_lacks",
            Self::NoImage { .. } => "no_image",
            Self::RunsAlready { .. } => "runs_already",
            Self::NotNewer { .. } => "not_newer",
            Self::Quarantined { .. } => "quarantined",
            Self::Paused { .. } => "paused",
            Self::NoFreeSlot { .. } => "no_free_slot",
            Self::GivesWay { .. } => "gives_way",
            Self::Stopped { .. } => "stopped",
            Self::NoWindow => "no_window",
            Self::WindowClosed { .. } => "window_closed",
            Self::WindowOpen { .. } => "window_open",
            Self::RunOpen { .. } => "run_open",
            Self::Withdrawn { .. } => "withdrawn",
            Self::Requested { .. } => "requested",
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
            Self::NoImage { profile } => {
                write!(f, "the catalogue has no image of the profile {profile}")
            }
            Self::RunsAlready { image_id } => write!(f, "it runs the wanted image {image_id}"),
            Self::NotNewer { image_id, running } => {
                write!(
                    f,
                    "the wanted image {image_id} is not newer than {running}, which runs"
                )
            }
            Self::Quarantined { image_id } => {
                write!(
                    f,
                    "the image {image_id} failed on this node before and is not tried again by itself; \
                     `evenkeel update now` orders it"
                )
            }
            Self::Paused { scope, by, reason } => paused(f, *scope, by, reason),
            Self::NoFreeSlot { scope, limit } => {
                write!(
                    f,
                    "{limit} nodes are being updated, as many as {scope} allows at once"
                )
            }
            Self::GivesWay { scope, until } => {
                write!(
                    f,
                    "it did nothing in its last window, so the other nodes of {scope} go first until {}",
                    instant(*until)
                )
            }
            Self::Stopped { scope, failures } => {
                write!(
                    f,
                    "{failures} updates of {scope} failed; it starts no more until `evenkeel assignment resume {scope}`"
                )
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
            Self::Requested { run } => write!(f, "{run} was called off"),
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

fn paused(f: &mut fmt::Formatter<'_>, scope: PauseScope, by: &str, reason: &str) -> fmt::Result {
    write!(f, "{by} paused updates of {scope}")?;
    if reason.is_empty() {
        Ok(())
    } else {
        write!(f, ": {reason}")
    }
}

fn instant(time: Time) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}
