//! The spec of a package update, and the packages before and after.

use serde::{Deserialize, Serialize};

use super::RebootRule;

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
    /// With [`PackageRules::min_age_days`]: the versions that are old enough. No other version is
    /// newly installed.
    #[serde(default)]
    pub aged_versions: Vec<PackageVersion>,
}

impl PackageSpec {
    /// A spec without additional sources and with the default rules.
    pub fn new(mode: PackageMode) -> Self {
        Self {
            mode,
            sources: Vec::new(),
            rules: PackageRules::default(),
            aged_versions: Vec::new(),
        }
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
    /// What happens to packages that were installed automatically and that no package needs.
    pub unused_packages: UnusedPackagesRule,
    /// Whether groups of packages that do not depend on each other are installed one after another.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub minimal_steps: bool,
}

/// What happens to packages that were installed automatically and that no package needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusedPackagesRule {
    /// They stay installed.
    #[default]
    Keep,
    /// Kernels are removed, except the running one, the newest one and the one that ran before.
    RemoveKernels,
    /// All are removed, with the same exceptions.
    RemoveAll,
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

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    #[serde(default)]
    pub download_bytes: u64,
    /// The suites and codenames that contain the planned version; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suites: Vec<String>,
    /// The labels of the repositories that contain the planned version; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<String>,
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
    /// The policy excludes the package by its name.
    Excluded,
    /// The policy does not allow the suites that offer the version.
    Suite,
    /// The policy requires a minimum age, and the version is younger.
    TooYoung,
    /// The policy excludes the version for another reason, for example because a dependency is excluded.
    Policy,
    /// `/boot` or a file system below it has too little space or is read-only.
    Space,
    /// The disk to which the package writes the boot loader does not exist.
    BootLoader,
}

impl HeldBackCause {
    /// Short name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Hold => "on hold",
            Self::Dependencies => "dependencies",
            Self::Phased => "phased",
            Self::Pinned => "pinned",
            Self::Limits => "limits of the owner",
            Self::Excluded => "excluded by name",
            Self::Suite => "excluded suite",
            Self::TooYoung => "too young",
            Self::Policy => "policy",
            Self::Space => "too little space",
            Self::BootLoader => "boot loader without its disk",
        }
    }
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
