//! The agent's own model of targets, plans, events and reports. The journal is written in these types; [`crate::link`]
//! converts them to protocol messages and back, and modules convert their specs and reports.

mod failure;
pub mod image;
pub mod packages;
mod parts;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::grants::OfflineGrant;

pub use self::failure::{Failure, FailureKind, tail};
pub use self::image::{ImageChange, ImageRules, ImageSpec, Sha256};
pub use self::packages::{
    HeldBackCause, HeldBackPackage, PackageChange, PackageMode, PackageRequirement, PackageResult,
    PackageRules, PackageSpec, PackageVersion, ServiceRule, UnusedPackagesRule,
};
pub use self::parts::{ModuleParts, encode_part};

/// The update that the server wants, with its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateTarget {
    /// Opaque digest of the spec: equal specs have equal digests.
    pub digest: String,
    /// The update itself, one part per module; empty if this agent does not understand it.
    pub spec: ModuleParts,
}

/// Whether the node reboots after an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootRule {
    /// If the update needs it, and while the window is open.
    #[default]
    IfRequired,
    /// The agent does not reboot the node.
    Never,
}

/// The server's decision for this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What the node must do now.
    pub action: Action,
    /// Reason, for a person.
    pub reason: String,
    /// When the decision may change by time alone.
    pub next_change: Option<DateTime<Utc>>,
    /// Permission to start while the server cannot be reached. Without it, an earlier grant is withdrawn.
    pub offline_grant: Option<OfflineGrant>,
}

/// What the node must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Idle,
    /// Prepare: refresh, plan, download. Change nothing.
    Fetch(UpdateTarget),
    /// Prepare what is missing, then request the start.
    Apply {
        target: UpdateTarget,
        /// End of the window.
        start_deadline: Option<DateTime<Utc>>,
    },
    /// Resume the open attempt.
    Continue,
    /// Cancel the open attempt, which has changed nothing yet.
    Cancel {
        /// Why.
        cause: String,
    },
}

/// Totals of the whole change, known before anything is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatePlan {
    pub download_bytes: u64,
    /// Growth of the installed size in bytes; negative if it shrinks.
    #[serde(default)]
    pub disk_bytes: i64,
    /// Whether the change probably needs a reboot.
    #[serde(default)]
    pub reboot_expected: bool,
    /// Whether the node reboots afterwards.
    #[serde(default)]
    pub reboot: RebootRule,
    /// Space that the change needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub space: Vec<SpaceNeed>,
}

impl UpdatePlan {
    /// Adds another part of the same change. The node reboots only if each part allows it.
    pub fn add(&mut self, other: Self) {
        self.download_bytes = self.download_bytes.saturating_add(other.download_bytes);
        self.disk_bytes = self.disk_bytes.saturating_add(other.disk_bytes);
        self.reboot_expected |= other.reboot_expected;
        self.reboot = self.reboot.max(other.reboot);
        self.space.extend(other.space);
    }
}

/// Space that a part of a change needs on one file system. In addition, the configured minimum must
/// stay free there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SpaceNeed {
    /// A path on it in the managed root; empty for the agent's state directory.
    pub path: String,
    /// Bytes that the change adds.
    pub bytes: u64,
    /// If set, no more than this must stay free.
    pub max_free: Option<u64>,
}

impl SpaceNeed {
    /// Bytes that must stay free, if the configured minimum is `min_free`.
    pub fn reserved_bytes(&self, min_free: u64) -> u64 {
        self.max_free.map_or(min_free, |max_free| max_free.min(min_free))
    }
}

/// An event of an attempt. It is numbered once, when it is written to the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptEvent {
    /// 1 for the first.
    pub sequence: u32,
    /// By the node's own clock.
    pub at: DateTime<Utc>,
    /// The boot in which the event happened.
    pub boot_id: String,
    /// The event itself.
    pub kind: EventKind,
    /// Report of the run, with the last event of an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<RunReport>,
    /// Interruptions between this event and the next one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interruptions: Vec<Interruption>,
}

/// The end of an agent process while the attempt was changing the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interruption {
    pub cause: InterruptionCause,
    /// The interrupted phase: `apply` or `verify`.
    pub phase: String,
    /// When the next agent process resumed the attempt, by the node's own clock.
    pub resumed_at: DateTime<Utc>,
    /// The boot in which the attempt was resumed.
    pub boot_id: String,
}

/// Why an attempt was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptionCause {
    /// The agent was killed or stopped; the machine kept running.
    AgentStopped,
    /// The machine restarted, for example after a power cut.
    MachineRestarted,
}

impl InterruptionCause {
    /// What happened, for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::AgentStopped => "the agent stopped",
            Self::MachineRestarted => "the machine restarted",
        }
    }
}

/// Details of a run, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunReport {
    /// In the order of the phases.
    pub phases: Vec<PhaseSpan>,
    /// Problems that did not change the outcome.
    pub remarks: Vec<String>,
    /// Whether the node still needs a reboot.
    pub reboot_required: bool,
    /// Why the change needed a reboot.
    pub reboot_reasons: Vec<String>,
    /// Release of the running kernel before the change; empty if it is unknown.
    pub kernel_before: String,
    /// Release of the running kernel at the end.
    pub kernel_after: String,
    /// In the order in which they happened.
    pub interruptions: Vec<Interruption>,
    pub modules: ModuleParts,
}

/// Duration and downloads of a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSpan {
    /// `plan`, `download`, `apply`, `reboot` or `verify`.
    pub phase: String,
    /// Duration by the node's clock, with the time without an agent; 0 if the clock was turned back meanwhile.
    pub millis: u64,
    /// Downloaded bytes.
    pub bytes: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The files of the plan are being downloaded; nothing is changed.
    Downloading,
    /// All files are downloaded and verified.
    Downloaded,
    /// The node is being changed from now on.
    Began,
    /// The node reboots, because the change needs it.
    RebootBegun,
    /// The result is being verified.
    VerifyBegun,
    /// The node is as desired.
    Finished,
    /// The attempt ended and the node is not as desired.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// The change was reverted.
    Reverted {
        /// Why the change was reverted.
        failure: Failure,
    },
    /// The node already was as desired.
    NothingToDo,
    /// The attempt ended before anything was changed.
    Cancelled {
        /// Why.
        cause: String,
    },
}

impl EventKind {
    /// Whether the event ends an attempt.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Downloading
            | Self::Downloaded
            | Self::Began
            | Self::RebootBegun
            | Self::VerifyBegun => false,
            Self::Finished
            | Self::Failed { .. }
            | Self::Reverted { .. }
            | Self::NothingToDo
            | Self::Cancelled { .. } => true,
        }
    }

    /// Name for the log and for `status`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Downloaded => "downloaded",
            Self::Began => "began",
            Self::RebootBegun => "reboot begun",
            Self::VerifyBegun => "verify begun",
            Self::Finished => "finished",
            Self::Failed { .. } => "failed",
            Self::Reverted { .. } => "reverted",
            Self::NothingToDo => "nothing to do",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// Why the attempt failed; `None` if it succeeded or has not ended.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure } | Self::Reverted { failure } => Some(failure),
            _ => None,
        }
    }
}
