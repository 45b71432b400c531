//! Reasons of decisions, and their texts.

use std::fmt;

use super::UnreadableObject;
use crate::Time;
use crate::assignment::{Level, Scope};
use crate::condition::ConditionKind;
use crate::id::{PolicyId, RunId};
use crate::pause::PauseScope;
use crate::window::{Opener, Window};

/// Name of the agent module that sets a kernel command line.
pub(super) const KERNEL_MODULE: &str = "kernel";

/// Reason of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The host was invalidated or is to be removed.
    NotTrusted,
    /// The node has not reported since its instance was created.
    NotProvisioned,
    /// An object that applies to the node was written by a newer release and cannot be read.
    Unreadable {
        object: UnreadableObject,
    },
    /// No policy is assigned.
    NoPolicy,
    /// None of the assigned policies fits.
    PolicyDoesNotFit {
        /// The nearest one.
        policy: PolicyId,
        /// Distance of its assignment.
        level: Level,
        /// Why it does not fit.
        why: &'static str,
    },
    /// The agent lacks a module.
    AgentLacks {
        /// The missing module.
        module: &'static str,
    },
    /// The policy names no image, and the catalogue has no image of the profile.
    NoImage {
        profile: String,
    },
    /// The node runs the desired image.
    RunsAlready {
        image_id: String,
    },
    /// The desired image is not known to be newer than the running one.
    NotNewer {
        /// Version of the desired image.
        image_id: String,
        /// Version of the running image.
        running: String,
    },
    /// The desired image failed on this node before. Its run has the details.
    Quarantined {
        image_id: String,
    },
    /// Updates are paused.
    Paused {
        scope: PauseScope,
        /// The user who paused them.
        by: String,
        /// Text of that user; may be empty.
        reason: String,
    },
    /// As many nodes are being updated as the assignment allows.
    NoFreeSlot {
        /// What the policy is assigned to.
        scope: Scope,
        /// Maximum number of concurrent updates.
        limit: u32,
    },
    /// The node did not use its last window while others waited, so they go first.
    YieldsSlot {
        /// What the policy is assigned to.
        scope: Scope,
        until: Time,
    },
    /// The assignment stopped after too many failures.
    Stopped {
        /// What the policy is assigned to.
        scope: Scope,
        /// Number of failures.
        failures: u32,
    },
    /// No window is open, and none is known to come.
    NoWindow,
    /// The window is not open yet.
    WindowClosed {
        /// When the next window opens.
        opens: Time,
    },
    WindowOpen {
        /// When it closes.
        until: Time,
        /// Whether an order of a user opened it.
        is_ordered: bool,
    },
    RunOpen {
        run: RunId,
        /// Name of its state.
        state: &'static str,
    },
    /// The target of the open run was withdrawn or replaced.
    Withdrawn {
        run: RunId,
    },
    /// A user cancelled the open run.
    Requested {
        run: RunId,
    },
    /// A run brought the node to the desired state in this window.
    UpToDate {
        run: RunId,
        at: Time,
    },
    FailedInWindow {
        run: RunId,
        at: Time,
    },
}

impl Reason {
    /// The reason of a start in an open window.
    pub(super) const fn window_open(window: &Window) -> Self {
        let is_ordered = matches!(window.opener, Opener::Order);
        Self::WindowOpen { until: window.end, is_ordered }
    }

    /// When the reason ends by time alone, for reasons that hold back a start.
    pub(super) const fn ends_at(&self) -> Option<Time> {
        match self {
            Self::YieldsSlot { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// The condition that this reason raises, if only a user can resolve it.
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
            Self::Unreadable { .. } => "unreadable",
            Self::NoPolicy => "no_policy",
            Self::PolicyDoesNotFit { .. } => "policy_does_not_fit",
            Self::AgentLacks { .. } => "agent_lacks",
            Self::NoImage { .. } => "no_image",
            Self::RunsAlready { .. } => "runs_already",
            Self::NotNewer { .. } => "not_newer",
            Self::Quarantined { .. } => "quarantined",
            Self::Paused { .. } => "paused",
            Self::NoFreeSlot { .. } => "no_free_slot",
            Self::YieldsSlot { .. } => "yields_slot",
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
            Self::NotProvisioned => f.write_str("the node has not connected yet"),
            Self::Unreadable { object } => write_unreadable(f, object),
            Self::NoPolicy => f.write_str("no update policy is assigned to the instance"),
            Self::PolicyDoesNotFit { policy, level, why } => {
                write!(f, "{policy}, assigned to the {level}, does not fit: {why}")
            }
            Self::AgentLacks { module } => write_agent_lacks(f, module),
            Self::NoImage { profile } => {
                write!(f, "the catalogue has no image of the profile {profile}")
            }
            Self::RunsAlready { image_id } => {
                write!(f, "the node already runs the desired image {image_id}")
            }
            Self::NotNewer { image_id, running } => {
                write!(
                    f,
                    "the desired image {image_id} is not newer than the running image {running}"
                )
            }
            Self::Quarantined { image_id } => {
                write!(
                    f,
                    "the image {image_id} failed on this node before and is not retried automatically; \
                     `evenkeel update now` orders a retry"
                )
            }
            Self::Paused { scope, by, reason } => write_paused(f, *scope, by, reason),
            Self::NoFreeSlot { scope, limit } => {
                let nodes = if *limit == 1 { "node is" } else { "nodes are" };
                write!(f, "{limit} {nodes} being updated, as many as {scope} allows at once")
            }
            Self::YieldsSlot { scope, until } => {
                write!(
                    f,
                    "the node did not use its last window, so the other nodes of {scope} go first until {}",
                    format_instant(*until)
                )
            }
            Self::Stopped { scope, failures } => {
                let updates = if *failures == 1 { "update" } else { "updates" };
                write!(
                    f,
                    "{failures} {updates} of {scope} failed; no more start until \
                     `evenkeel assignment resume {scope}`"
                )
            }
            Self::NoWindow => f.write_str("no schedule opens a window for updates"),
            Self::WindowClosed { opens } => {
                write!(f, "the next window opens at {}", format_instant(*opens))
            }
            Self::WindowOpen { until, is_ordered } => {
                let what =
                    if *is_ordered { "an order opened a window" } else { "a window is open" };
                write!(f, "{what} until {}", format_instant(*until))
            }
            Self::RunOpen { run, state } => write!(f, "{run} is {state}"),
            Self::Withdrawn { run } => write!(f, "the update of {run} is no longer desired"),
            Self::Requested { run } => write!(f, "{run} was cancelled"),
            Self::UpToDate { run, at } => {
                write!(f, "{run} brought the node to the desired state at {}", format_instant(*at))
            }
            Self::FailedInWindow { run, at } => write!(
                f,
                "{run} failed at {}; the next attempt is made in the next window",
                format_instant(*at)
            ),
        }
    }
}

fn write_agent_lacks(f: &mut fmt::Formatter<'_>, module: &str) -> fmt::Result {
    write!(f, "the node's agent has no module `{module}`")?;
    // No release of Evenkeel's agent has this module, so an upgrade does not help.
    if module == KERNEL_MODULE {
        f.write_str(": only agents of EIM set a kernel command line")?;
    }
    Ok(())
}

fn write_unreadable(f: &mut fmt::Formatter<'_>, object: &UnreadableObject) -> fmt::Result {
    let UnreadableObject { kind, id } = object;
    write!(
        f,
        "a newer release wrote the {kind} {id}, and this server cannot read it; upgrade the server"
    )
}

fn write_paused(
    f: &mut fmt::Formatter<'_>,
    scope: PauseScope,
    by: &str,
    reason: &str,
) -> fmt::Result {
    write!(f, "{by} paused updates of {scope}")?;
    if reason.is_empty() { Ok(()) } else { write!(f, ": {reason}") }
}

fn format_instant(time: Time) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}
