//! The agent's own model of targets, plans, events and reports. The journal is written in these types; [`crate::link`]
//! converts them to protocol messages and back.

mod failure;
pub mod image;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::grants::OfflineGrant;

pub use self::failure::{Failure, FailureKind, tail};
pub use self::image::{ImageChange, ImageRules, ImageSpec, Sha256};

/// The update that the server wants, with its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateTarget {
    /// Opaque digest of the spec: equal specs have equal digests.
    pub digest: String,
    /// The update itself.
    pub spec: UpdateSpec,
}

/// What an update must achieve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateSpec {
    /// Bring packages to a state.
    Packages(PackageSpec),
    /// Boot an image of the operating system.
    Image(ImageSpec),
    /// A kind of update that this agent does not support.
    Unknown,
}

/// Brings packages to a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageSpec {
    /// The state.
    pub mode: PackageMode,
    /// Additional sources for this update only, one DEB822 stanza an element.
    pub sources: Vec<String>,
    /// Rules of the update.
    #[serde(default)]
    pub rules: PackageRules,
    /// With [`PackageRules::min_age_days`]: the versions that are old enough. No other version is newly installed.
    #[serde(default)]
    pub settled: Vec<PackageVersion>,
}

impl PackageSpec {
    /// A spec without additional sources and with the default rules.
    pub fn new(mode: PackageMode) -> Self {
        Self { mode, sources: Vec::new(), rules: PackageRules::default(), settled: Vec::new() }
    }
}

/// Rules for an update of packages. The limits of the machine's owner apply in addition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PackageRules {
    /// Suites or codenames that packages may come from; empty allows any.
    pub suites: Vec<String>,
    /// Patterns (`*` and `?`) of packages that are not changed.
    pub exclude: Vec<String>,
    /// Whether packages may be removed.
    pub allow_removals: bool,
    /// Whether an older version may replace a newer one.
    pub allow_downgrades: bool,
    /// Whether the node reboots afterwards.
    pub reboot: RebootRule,
    /// What happens to services that use replaced files.
    pub services: ServiceRule,
    /// Limit of downloads; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// Minimum age of a version, counted in days since the server first saw it; 0 for any.
    pub min_age_days: u32,
}

/// Whether the node reboots after an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootRule {
    /// If the update needs it, and while the window is open.
    #[default]
    IfRequired,
    /// The agent does not reboot the node.
    Never,
}

/// What happens to services that use replaced files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceRule {
    /// They keep running.
    #[default]
    KeepRunning,
    /// They are restarted, except those that would take the machine's users or the agent with them.
    Restart,
}

/// A version of a package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageVersion {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Debian's version.
    pub version: String,
}

/// Which packages, and in which versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageMode {
    /// The newest available version of every installed package.
    Latest,
    /// These packages and their dependencies.
    Exactly(Vec<PackageRequirement>),
}

/// A required package; the newest version if none is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageRequirement {
    /// Debian's name.
    pub name: String,
    /// Debian's version.
    pub version: Option<String>,
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
        /// The update.
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

/// The whole change, known before anything is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdatePlan {
    /// Sorted by name, then architecture.
    pub changes: Vec<PackageChange>,
    /// Bytes to download.
    pub download_bytes: u64,
    /// Growth of the installed size in bytes; negative if it shrinks.
    #[serde(default)]
    pub disk_bytes: i64,
    /// Whether the change probably needs a reboot.
    #[serde(default)]
    pub reboot_expected: bool,
    /// Packages whose newer version is not installed, sorted by name, then architecture.
    #[serde(default)]
    pub held_back: Vec<HeldBackPackage>,
    /// The image before and after, if one is to be booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageChange>,
}

/// The change of one package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PackageChange {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The installed version; `None` if the package is not installed.
    pub before: Option<String>,
    /// The planned version; `None` if the package is to be removed.
    pub after: Option<String>,
    /// The suite that the version comes from; empty if there is none.
    #[serde(default)]
    pub suite: String,
    /// Bytes to download for this package.
    #[serde(default)]
    pub download_bytes: u64,
}

/// A package whose newer version is not installed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeldBackPackage {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The installed version.
    pub installed: String,
    /// The available version.
    pub available: String,
    /// Why it is not installed.
    pub cause: HeldBackCause,
}

/// Why the newer version of a package is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBackCause {
    /// A person put the package on hold.
    Hold,
    /// Its dependencies need more than an upgrade; apt calls it "kept back".
    Dependencies,
    /// Its publisher rolls it out in phases.
    Phased,
    /// The node's preferences pin another version.
    Pinned,
    /// The machine's owner does not allow it.
    Limits,
    /// The policy excludes it: by name, by suite or by age.
    Policy,
}

/// The state of a package after the update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageResult {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Empty if it is not installed.
    pub version: String,
    /// dpkg's state; empty if dpkg does not know the package.
    pub state: String,
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
}

/// Details of a run, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunReport {
    /// In the order of the phases.
    pub phases: Vec<PhaseSpan>,
    /// Problems that did not change the outcome.
    pub remarks: Vec<String>,
    /// Configuration files with local changes that were not replaced; the package's version lies next to each.
    pub retained_conffiles: Vec<String>,
    /// Units that were restarted because they used replaced files.
    pub restarted_services: Vec<String>,
    /// Whether the node still needs a reboot.
    pub reboot_required: bool,
}

/// Duration and downloads of a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSpan {
    /// `plan`, `download`, `apply`, `reboot` or `verify`.
    pub phase: String,
    /// Duration by the node's clock; 0 if the clock was turned back meanwhile.
    pub millis: u64,
    /// Downloaded bytes.
    pub bytes: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The files of the plan are being downloaded; nothing is changed.
    Downloading(UpdatePlan),
    /// All files are downloaded and verified.
    Downloaded,
    /// The node is being changed from now on.
    Began,
    /// The node reboots, because the change needs it.
    RebootBegun,
    /// The result is being verified.
    VerifyBegun,
    /// The node is as desired.
    Finished {
        /// State of each package of the plan.
        results: Vec<PackageResult>,
        /// The version of the image that then ran, if the attempt was for an image and it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booted: Option<String>,
    },
    /// The attempt ended and the node is not as desired.
    Failed {
        /// Why.
        failure: Failure,
        /// State of each package of the plan.
        results: Vec<PackageResult>,
        /// The version of the image that then ran, if the attempt was for an image and it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booted: Option<String>,
    },
    /// The change was reverted.
    Reverted {
        /// Why the change was reverted.
        failure: Failure,
        /// The version of the image that then ran, if the attempt was for an image and it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booted: Option<String>,
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
            Self::Downloading(_)
            | Self::Downloaded
            | Self::Began
            | Self::RebootBegun
            | Self::VerifyBegun => false,
            Self::Finished { .. }
            | Self::Failed { .. }
            | Self::Reverted { .. }
            | Self::NothingToDo
            | Self::Cancelled { .. } => true,
        }
    }

    /// Name for the log and for `status`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Downloading(_) => "downloading",
            Self::Downloaded => "downloaded",
            Self::Began => "began",
            Self::RebootBegun => "reboot begun",
            Self::VerifyBegun => "verify begun",
            Self::Finished { .. } => "finished",
            Self::Failed { .. } => "failed",
            Self::Reverted { .. } => "reverted",
            Self::NothingToDo => "nothing to do",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// Why the attempt failed; `None` if it succeeded or has not ended.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure, .. } | Self::Reverted { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// The version of the image that ran when an attempt for an image ended; `None` if the attempt was not for an image or
    /// the version is not known.
    pub fn booted(&self) -> Option<&str> {
        match self {
            Self::Finished { booted, .. }
            | Self::Failed { booted, .. }
            | Self::Reverted { booted, .. } => booted.as_deref(),
            _ => None,
        }
    }

    /// The failure of an attempt that changed nothing.
    pub fn failed_unchanged(failure: Failure, booted: Option<String>) -> Self {
        Self::Failed { failure, results: Vec::new(), booted }
    }
}
