//! What the agent knows and does, in its own words. The journal is written in these types; [`crate::link`] turns them
//! into messages and back.

mod failure;
pub mod image;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::grants::Grant;

pub use self::failure::{Failure, FailureKind, tail};
pub use self::image::{ImageChange, ImageRules, ImageWish, Sha256};

/// What is wanted of the node, and the name of that wish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The same wish has the same digest. Opaque.
    pub digest: String,
    /// The wish itself.
    pub wish: Wish,
}

/// A wish of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// Bring packages to a state.
    Packages(PackageWish),
    /// Run an image of the operating system.
    Image(ImageWish),
    /// Something that this agent does not know.
    Unknown,
}

/// Bring packages to a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageWish {
    /// Which state.
    pub mode: PackageMode,
    /// Further sources for this update only, one DEB822 stanza an element.
    pub sources: Vec<String>,
    /// How it may be done.
    #[serde(default)]
    pub rules: PackageRules,
    /// With [`PackageRules::min_age_days`]: the versions that are old enough. No other is newly installed.
    #[serde(default)]
    pub settled: Vec<KnownVersion>,
}

impl PackageWish {
    /// A wish without sources of its own and with the usual rules.
    pub fn new(mode: PackageMode) -> Self {
        Self {
            mode,
            sources: Vec::new(),
            rules: PackageRules::default(),
            settled: Vec::new(),
        }
    }
}

/// How packages may be brought to a state. The limits that the machine's owner set hold besides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PackageRules {
    /// Only what comes from these suites or codenames; from any if there are none.
    pub suites: Vec<String>,
    /// Patterns (`*` and `?`) of names that are left as they are.
    pub exclude: Vec<String>,
    /// Whether packages may be removed for it.
    pub allow_removals: bool,
    /// Whether an older version may replace a newer one.
    pub allow_downgrades: bool,
    /// Whether the node reboots afterwards.
    pub reboot: RebootRule,
    /// What becomes of services that run what was replaced.
    pub services: ServiceRule,
    /// While fetching; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// Only versions that the server first heard of so many days ago; 0 for any.
    pub min_age_days: u32,
}

/// Whether the node reboots after an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RebootRule {
    /// If the update asks for it, and while the window is open.
    #[default]
    IfRequired,
    /// Not by itself.
    Never,
}

/// What becomes of services that still run what was replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceRule {
    /// They run on.
    #[default]
    Leave,
    /// They are restarted, but for those that take the machine's users or the agent along.
    Restart,
}

/// A version of a package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownVersion {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Debian's version.
    pub version: String,
}

/// Which packages, in which versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageMode {
    /// Every installed package in the newest version that the sources offer.
    Latest,
    /// These packages, and what they need.
    Exactly(Vec<WantedPackage>),
}

/// A package by name; without a version the newest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantedPackage {
    /// Debian's name.
    pub name: String,
    /// Debian's version.
    pub version: Option<String>,
}

/// What the server wants done now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub act: Act,
    /// For a person.
    pub reason: String,
    /// When the answer may change by time alone.
    pub next: Option<DateTime<Utc>>,
    /// Leave for the time when the server cannot be asked; without it an earlier one is withdrawn.
    pub grant: Option<Grant>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Idle,
    /// Prepare: refresh, plan, download. Change nothing.
    Fetch(Target),
    /// Prepare what is missing, then ask to begin.
    Apply {
        /// What is wanted.
        target: Target,
        /// The end of the window.
        before: Option<DateTime<Utc>>,
    },
    /// Go on with the open attempt.
    Continue,
    /// Give up the open attempt, which has changed nothing yet.
    Cancel {
        /// Why.
        cause: String,
    },
}

/// The whole change, known before anything changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// By name, then architecture.
    pub changes: Vec<Change>,
    /// Bytes to fetch.
    pub download_bytes: u64,
    /// By how many bytes what is installed grows; negative if it shrinks.
    #[serde(default)]
    pub disk_bytes: i64,
    /// Whether it will probably ask for a reboot.
    #[serde(default)]
    pub reboot_expected: bool,
    /// Packages that have a newer version and do not get it, by name, then architecture.
    #[serde(default)]
    pub withheld: Vec<Withheld>,
    /// The image before and after, if one is to be booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageChange>,
}

/// One package before and after.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Change {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version that is there; none if it is not installed.
    pub before: Option<String>,
    /// The version that will be there; none if it is to be removed.
    pub after: Option<String>,
    /// The suite that it comes from; empty if it comes from none.
    #[serde(default)]
    pub suite: String,
    /// Bytes to fetch for it.
    #[serde(default)]
    pub download_bytes: u64,
}

/// A package that has a newer version and does not get it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Withheld {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version that is there.
    pub installed: String,
    /// The version that could be there.
    pub available: String,
    /// Why it is not.
    pub cause: WithheldCause,
}

/// Why a package does not get its newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithheldCause {
    /// A person marked it to stay.
    Hold,
    /// Its dependencies cannot be met without more than an upgrade.
    KeptBack,
    /// Its publisher lets it out to some machines first.
    Phased,
    /// The node's preferences pin another version.
    Pinned,
    /// The machine's owner does not allow it.
    Limits,
    /// The policy leaves it out: by name, by suite or by age.
    Policy,
}

/// A package as it was found.
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

/// Something that happened in an attempt. Numbered once, when it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// 1 for the first.
    pub sequence: u32,
    /// By the node's own clock.
    pub at: DateTime<Utc>,
    /// The boot in which it happened.
    pub boot_id: String,
    /// What happened.
    pub news: News,
    /// How it went, with the last event of an attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

/// How an attempt went, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// In the order in which they were passed.
    pub phases: Vec<PhaseSpan>,
    /// What went wrong on the way and did not change the end.
    pub remarks: Vec<String>,
    /// Configuration files that a person had changed and that stayed; the package's own lies beside each.
    pub kept_conffiles: Vec<String>,
    /// Units that were restarted because they ran what was replaced.
    pub restarted_services: Vec<String>,
    /// Whether the node still waits for a reboot.
    pub reboot_required: bool,
}

/// How long a phase took, and what it fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSpan {
    /// `plan`, `download`, `apply`, `reboot` or `verify`.
    pub phase: String,
    /// How long it took, by the node's clock; 0 if that was turned back meanwhile.
    pub millis: u64,
    /// How much was fetched.
    pub bytes: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// Fetching what the plan needs; nothing is changed.
    Downloading(Plan),
    /// All is there and verified.
    Downloaded,
    /// The node is being changed from now on.
    Began,
    /// The node reboots, because the change asks for it.
    RebootBegun,
    /// Looking at what really runs.
    VerifyBegun,
    /// What runs is what was wanted.
    Finished {
        /// Each package of the plan as it is now.
        results: Vec<PackageResult>,
        /// The version of the image that the node then ran, if its image was to be changed and that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booted: Option<String>,
    },
    /// Ended; the node is not as wanted.
    Failed {
        /// Why.
        failure: Failure,
        /// Each package of the plan as it is now.
        results: Vec<PackageResult>,
        /// The version of the image that the node then ran, if its image was to be changed and that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booted: Option<String>,
    },
    /// Going back succeeded.
    Reverted {
        /// Why the node went back.
        failure: Failure,
        /// The version of the image that the node then ran, if its image was to be changed and that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        booted: Option<String>,
    },
    /// The node already is as wanted.
    NothingToDo,
    /// Ended before anything was changed.
    Cancelled {
        /// Why.
        cause: String,
    },
}

impl News {
    /// Whether an attempt is over with it.
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

    /// Its name, for the log and for `status`.
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

    /// Why it did not end well; `None` if it did or has not ended.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure, .. } | Self::Reverted { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// The version of the image that the node ran when an attempt for another one was over; `None` if it was for none or
    /// that is not known.
    pub fn booted(&self) -> Option<&str> {
        match self {
            Self::Finished { booted, .. }
            | Self::Failed { booted, .. }
            | Self::Reverted { booted, .. } => booted.as_deref(),
            _ => None,
        }
    }

    /// The end of an attempt that changed nothing.
    pub fn failed(failure: Failure, booted: Option<String>) -> Self {
        Self::Failed {
            failure,
            results: Vec::new(),
            booted,
        }
    }
}
