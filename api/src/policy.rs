//! Update policies: which packages or image nodes should run. A policy is immutable once it is
//! created.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::os::OperatingSystemResource;
use crate::{Input, Timestamps};

wire_enum! {
    /// Kind of a policy: the latest versions, or exactly the listed target.
    UpdatePolicyKind {
        Unspecified = "UPDATE_POLICY_UNSPECIFIED",
        Latest = "UPDATE_POLICY_LATEST",
        Target = "UPDATE_POLICY_TARGET",
    }
}

wire_enum! {
    /// Whether a node reboots after an update: only if the update requires it and the window is
    /// open, or never on its own.
    RebootRule {
        IfRequired = "IF_REQUIRED",
        Never = "NEVER",
    }
}

wire_enum! {
    /// What happens to services that still use replaced files: they keep running, or they are
    /// restarted.
    ServiceRule {
        KeepRunning = "KEEP_RUNNING",
        Restart = "RESTART",
    }
}

wire_enum! {
    /// What happens to packages that were installed automatically and that no package needs any
    /// more: unused kernels are removed, all are removed, or all are kept. The running kernel, the
    /// newest kernel and the kernel that ran before are never removed.
    UnusedPackagesRule {
        RemoveKernels = "REMOVE_KERNELS",
        RemoveAll = "REMOVE_ALL",
        Keep = "KEEP",
    }
}

/// Rules for package updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PackageRules {
    /// Suites or codenames from which packages may be installed; empty for all.
    pub suites: Vec<String>,
    /// Patterns of package names that are not updated; `*` matches any text, `?` one character.
    pub exclude: Vec<String>,
    /// Minimum age in days: only versions that the server has known for at least this many days are installed;
    /// 0 for no minimum.
    pub min_age_days: u32,
    /// Whether packages may be removed.
    pub allow_removals: bool,
    /// Whether the node reboots after the update.
    pub reboot: RebootRule,
    /// What happens to services that still use replaced files.
    pub services: ServiceRule,
    /// Maximum download rate per node in bytes per second; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// What happens to packages that were installed automatically and that no package needs any
    /// more.
    pub unused_packages: UnusedPackagesRule,
    /// Whether groups of packages that do not depend on each other are installed one after another.
    pub minimal_steps: bool,
}

/// Rules for package updates. Omitted fields have their default values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PackageRulesInput {
    /// Suites or codenames from which packages may be installed, for example `bookworm-security`;
    /// empty for all. Each has at most 100 letters, digits and `-_./+~:`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub suites: Vec<String>,
    /// Patterns of package names that are not updated; `*` matches any text, `?` one character.
    /// Each has at most 100 lower-case letters, digits and `-.+*?`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub exclude: Vec<String>,
    /// Minimum age in days: only versions that the server has known for at least this many days are
    /// installed; 0 (default) for no minimum. Needs `UPDATE_POLICY_LATEST`.
    #[serde(skip_serializing_if = "is_default")]
    #[schema(maximum = 365)]
    pub min_age_days: u32,
    /// Whether packages may be removed; default false.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_removals: bool,
    /// Whether the node reboots after the update; default `IF_REQUIRED`.
    #[serde(skip_serializing_if = "is_default")]
    pub reboot: RebootRule,
    /// What happens to services that still use replaced files; default `KEEP_RUNNING`.
    #[serde(skip_serializing_if = "is_default")]
    pub services: ServiceRule,
    /// Maximum download rate per node in bytes per second: 1024 to 2^40, or 0 (default) for no
    /// limit.
    #[serde(skip_serializing_if = "is_default")]
    #[schema(maximum = 1_099_511_627_776_u64)]
    pub download_bytes_per_second: u64,
    /// What happens to packages that were installed automatically and that no package needs any
    /// more; default `REMOVE_KERNELS`. Does not need `allowRemovals`.
    #[serde(skip_serializing_if = "is_default")]
    pub unused_packages: UnusedPackagesRule,
    /// Whether groups of packages that do not depend on each other are installed one after another;
    /// default false. Each service is down only while its own group is installed, and the whole
    /// update takes longer.
    #[serde(skip_serializing_if = "is_default")]
    pub minimal_steps: bool,
}

/// Rules for image updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageRules {
    /// Maximum download rate per node in bytes per second; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// Maximum size of the image file in bytes; 0 for no limit.
    pub max_bytes: u64,
    /// Number of consecutive failures after which the download fails; 0 for the default of the
    /// agent.
    pub attempts: u32,
}

/// Rules for image updates. Omitted fields have their default values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImageRulesInput {
    /// Maximum download rate per node in bytes per second: 1024 to 2^40, or 0 (default) for no
    /// limit.
    #[serde(skip_serializing_if = "is_default")]
    #[schema(maximum = 1_099_511_627_776_u64)]
    pub download_bytes_per_second: u64,
    /// Maximum size of the image file in bytes: 2^20 to 2^50, or 0 (default) for no limit.
    #[serde(skip_serializing_if = "is_default")]
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub max_bytes: u64,
    /// Number of consecutive failures after which the download fails; 0 (default) for the default
    /// of the agent.
    #[serde(skip_serializing_if = "is_default")]
    #[schema(maximum = 100)]
    pub attempts: u32,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Update policy: which packages or image the assigned nodes should run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = OSUpdatePolicy)]
pub struct OsUpdatePolicy {
    /// Resource ID.
    pub resource_id: String,
    /// Display name; need not be unique.
    pub name: String,
    /// Description, as free text.
    pub description: String,
    /// Kind of the policy.
    pub update_policy: UpdatePolicyKind,
    /// Packages, one per line: `name` or `name=version`.
    pub update_packages: String,
    /// Additional package sources, one DEB822 stanza per item.
    pub update_sources: Vec<String>,
    /// Kernel command line.
    pub update_kernel_command: String,
    /// Always empty; use `targetOs`.
    pub target_os_id: String,
    /// Operating system whose image should run; null for none.
    pub target_os: Option<OperatingSystemResource>,
    /// Whether an older version may replace a newer one.
    pub allow_downgrade: bool,
    /// Number of days for which a node may start updates offline with a permission that it got in
    /// advance; 0 for never.
    pub offline_days: u32,
    /// Rules for package updates.
    pub package_rules: PackageRules,
    /// Rules for image updates.
    pub image_rules: ImageRules,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of update policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OSUpdatePolicyList)]
pub struct OsUpdatePolicyList {
    /// Policies on this page.
    pub os_update_policies: Vec<OsUpdatePolicy>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
    /// Number of resources on this page that cannot be read, because a newer server wrote them; the
    /// server's log names them. Omitted if all can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_elements: Option<u32>,
}

/// Update policy to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = OSUpdatePolicyInput)]
pub struct OsUpdatePolicyInput {
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; not empty, need not be unique.
    #[schema(min_length = 1, max_length = 50, pattern = "^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// Description: at most 200 letters, digits, spaces and `-_./:;=?@!#,<>*()`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 200)]
    pub description: String,
    /// Kind of the policy; `UPDATE_POLICY_UNSPECIFIED` is refused.
    #[serde(default)]
    pub update_policy: UpdatePolicyKind,
    /// Packages, one per line: `name` or `name=version`; every name at most once, at most 500,000
    /// bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500_000)]
    pub update_packages: String,
    /// Additional package sources, one DEB822 stanza of at most 65,536 bytes per item, with `Types`,
    /// `URIs`, `Suites`, `Components` (except for a suite that is a path) and `Signed-By`. Lines that
    /// begin with `#` are comments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub update_sources: Vec<String>,
    /// Kernel command line: at most 500 letters, digits, spaces and `-_=.,/`; empty to leave it
    /// unchanged.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500)]
    pub update_kernel_command: String,
    /// ID of the operating system whose image should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^os-[0-9a-f]{8}$")]
    pub target_os_id: Option<String>,
    /// Whether an older version may replace a newer one; default false.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// Number of days for which a node may start updates offline with a permission that it got in
    /// advance; 0 for never, default 7.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 365)]
    pub offline_days: Option<u32>,
    /// Rules for package updates. If omitted, the default rules apply. Only the default rules are
    /// accepted together with an operating system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_rules: Option<PackageRulesInput>,
    /// Rules for image updates. If omitted, the default rules apply. Only the default rules are
    /// accepted if the policy lists packages, sources or a kernel command line only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_rules: Option<ImageRulesInput>,
}

impl Input for OsUpdatePolicyInput {
    const READ_ONLY: &[&str] = &["resourceId", "targetOs", "timestamps"];
}
