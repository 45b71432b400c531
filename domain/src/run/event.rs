//! Events of a run.

use serde::{Deserialize, Serialize};

named! {
    FailureKind {
        /// Not reported.
        Unspecified = "unspecified",
        /// The package lists could not be refreshed.
        Refresh = "refresh",
        /// No plan leads to the desired state.
        Plan = "plan",
        /// A download failed.
        Download = "download",
        /// A signature or digest was wrong.
        Signature = "signature",
        /// The disk is full.
        Storage = "storage",
        /// A package script or the installing tool failed.
        Apply = "apply",
        /// Applied, but the result is not the desired state.
        Verify = "verify",
        /// The machine did not come back as expected.
        Reboot = "reboot",
        /// The agent was killed and could not finish.
        Interrupted = "interrupted",
        /// The agent does not support the update.
        Unsupported = "unsupported",
        /// Limits of the machine's owner forbid the update.
        Limits = "limits",
    }
}

impl FailureKind {
    /// A stored kind; one that this release does not know is unspecified.
    #[must_use]
    pub fn from_stored(name: &str) -> Self {
        Self::from_name(name).unwrap_or(Self::Unspecified)
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub kind: FailureKind,
    /// For users.
    pub reason: String,
}

named! {
    /// Why a run was cancelled before anything was changed.
    CancelCause {
        /// The target was withdrawn or replaced.
        Withdrawn = "withdrawn",
        /// No window was left to begin in.
        WindowMissed = "window_missed",
        /// The node or its owner refused.
        Refused = "refused",
        /// A user cancelled it.
        Requested = "requested",
    }
}

/// Events of a run. Nothing else changes its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// The node is downloading.
    Downloading,
    /// The download is complete.
    Downloaded,
    /// The node is being changed from now on.
    Began,
    /// The node reboots for the update.
    RebootBegun,
    /// The node verifies what it runs.
    VerifyBegun,
    /// The node rolls back.
    Reverting,
    /// The node runs the desired state.
    Finished,
    /// The node does not run the desired state.
    Failed(Failure),
    /// The node is verified to be in its previous state.
    Reverted(Failure),
    /// The node was in the desired state already.
    NothingToDo,
    /// Cancelled before anything was changed.
    Cancelled(CancelCause),
    /// No report arrived for too long.
    TimedOut,
    /// Another run began.
    Superseded,
    /// The instance was removed.
    Removed,
}

impl RunEvent {
    /// The stable name, as the history stores it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Downloaded => "downloaded",
            Self::Began => "began",
            Self::RebootBegun => "reboot_begun",
            Self::VerifyBegun => "verify_begun",
            Self::Reverting => "reverting",
            Self::Finished => "finished",
            Self::Failed(_) => "failed",
            Self::Reverted(_) => "reverted",
            Self::NothingToDo => "nothing_to_do",
            Self::Cancelled(_) => "cancelled",
            Self::TimedOut => "timed_out",
            Self::Superseded => "superseded",
            Self::Removed => "removed",
        }
    }

    /// Cause or reason; empty if there is none.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::Failed(failure) | Self::Reverted(failure) => {
                format!("{}: {}", failure.kind, failure.reason)
            }
            Self::Cancelled(cause) => cause.to_string(),
            _ => String::new(),
        }
    }
}
