//! What can happen to a run.

use serde::{Deserialize, Serialize};

named! {
    /// Why an attempt failed.
    FailureKind {
        /// Nobody said.
        Unspecified = "unspecified",
        /// The lists of packages could not be made current.
        Refresh = "refresh",
        /// There is no way to the wanted state.
        Plan = "plan",
        /// Something could not be fetched.
        Download = "download",
        /// A signature or digest was wrong.
        Signature = "signature",
        /// The disk is full.
        Storage = "storage",
        /// A package's script or the tool that applies failed.
        Apply = "apply",
        /// Applied, but not found as wanted.
        Verify = "verify",
        /// The machine did not come back as it should.
        Reboot = "reboot",
        /// The agent was killed and could not finish.
        Interrupted = "interrupted",
        /// The agent does not know how.
        Unsupported = "unsupported",
        /// The machine's owner does not allow it.
        Limits = "limits",
    }
}

/// Why and how an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What went wrong, for machines.
    pub kind: FailureKind,
    /// What went wrong, for people.
    pub reason: String,
}

named! {
    /// Why an attempt was given up before anything was changed.
    CancelCause {
        /// The wish was taken back or replaced.
        Withdrawn = "withdrawn",
        /// There was no window left to begin in.
        WindowMissed = "window_missed",
        /// The node or its owner refused.
        Refused = "refused",
        /// A person called it off.
        Requested = "requested",
    }
}

/// What can happen to a run. Nothing else moves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// The node fetches what it needs.
    Downloading,
    /// All is there.
    Downloaded,
    /// The node is being changed from now on.
    Began,
    /// The node goes down on purpose.
    RebootBegun,
    /// The node looks at what really runs.
    VerifyBegun,
    /// The node goes back.
    Reverting,
    /// What runs is what was wanted.
    Finished,
    /// It is not what was wanted.
    Failed(Failure),
    /// The node is verified to be as before.
    Reverted(Failure),
    /// The node already was as wanted.
    NothingToDo,
    /// Given up before anything was changed.
    Cancelled(CancelCause),
    /// Nothing was heard for too long.
    TimedOut,
    /// Another attempt began.
    Superseded,
    /// The instance is gone.
    Removed,
}

impl RunEvent {
    /// The stable name, as the history keeps it.
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

    /// The cause or reason that it carries; empty if none.
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
