//! Update policies: what should run. A policy is immutable once it was created.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::os::OperatingSystemResource;
use crate::{Input, Timestamps};

wire_enum! {
    /// What a policy wishes for: whatever is newest, or exactly what it names.
    UpdatePolicyKind {
        Unspecified = "UPDATE_POLICY_UNSPECIFIED",
        Latest = "UPDATE_POLICY_LATEST",
        Target = "UPDATE_POLICY_TARGET",
    }
}

wire_enum! {
    /// Whether a node reboots after an update: if that asks for it and the window is open, or not by itself.
    RebootRule {
        IfRequired = "IF_REQUIRED",
        Never = "NEVER",
    }
}

wire_enum! {
    /// What becomes of services that still run what was replaced: they run on, or they are restarted.
    ServiceRule {
        Leave = "LEAVE",
        Restart = "RESTART",
    }
}

/// How packages may be brought to what a policy wishes for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PackageRules {
    /// Only what comes from these suites or codenames; from any if none is named.
    pub suites: Vec<String>,
    /// Names that are left as they are; `*` stands for any letters, `?` for one.
    pub exclude: Vec<String>,
    /// How many days ago the server must have heard of a version first for it to be installed; 0 if it does not matter.
    pub min_age_days: u32,
    /// Whether packages may be removed for it.
    pub allow_removals: bool,
    /// Whether the node reboots afterwards.
    pub reboot: RebootRule,
    /// What becomes of services that still run what was replaced.
    pub services: ServiceRule,
    /// The most bytes that a node fetches in a second; 0 for no limit.
    pub download_bytes_per_second: u64,
}

/// How packages may be brought to what a policy wishes for. What is left out is as usual.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PackageRulesInput {
    /// Only what comes from these suites or codenames, such as `bookworm-security`; from any if none is named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub suites: Vec<String>,
    /// Names that are left as they are; `*` stands for any letters, `?` for one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub exclude: Vec<String>,
    /// How many days ago the server must have heard of a version first for it to be installed; 0 if it does not matter.
    #[serde(skip_serializing_if = "is_usual")]
    #[schema(maximum = 365)]
    pub min_age_days: u32,
    /// Whether packages may be removed for it.
    #[serde(skip_serializing_if = "is_usual")]
    pub allow_removals: bool,
    /// Whether the node reboots afterwards.
    #[serde(skip_serializing_if = "is_usual")]
    pub reboot: RebootRule,
    /// What becomes of services that still run what was replaced.
    #[serde(skip_serializing_if = "is_usual")]
    pub services: ServiceRule,
    /// The most bytes that a node fetches in a second, from 1024 up to 2^40; 0 for no limit.
    #[serde(skip_serializing_if = "is_usual")]
    #[schema(maximum = 1_099_511_627_776_u64)]
    pub download_bytes_per_second: u64,
}

/// How an image may be brought to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageRules {
    /// The most bytes that a node fetches in a second; 0 for no limit.
    pub download_bytes_per_second: u64,
    /// The most bytes that the image may have as it is fetched; 0 for no limit.
    pub max_bytes: u64,
    /// How often its download may fail in a row; 0 for as often as usual.
    pub attempts: u32,
}

/// How an image may be brought to a node. What is left out is as usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImageRulesInput {
    /// The most bytes that a node fetches in a second, from 1024 up to 2^40; 0 for no limit.
    #[serde(skip_serializing_if = "is_usual")]
    #[schema(maximum = 1_099_511_627_776_u64)]
    pub download_bytes_per_second: u64,
    /// The most bytes that the image may have as it is fetched, from 2^20 up to 2^50; 0 for no limit.
    #[serde(skip_serializing_if = "is_usual")]
    #[schema(maximum = 1_125_899_906_842_624_u64)]
    pub max_bytes: u64,
    /// How often its download may fail in a row; 0 for as often as usual.
    #[serde(skip_serializing_if = "is_usual")]
    #[schema(maximum = 100)]
    pub attempts: u32,
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What should run on the nodes that it is assigned to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = OSUpdatePolicy)]
pub struct OsUpdatePolicy {
    /// Its id.
    pub resource_id: String,
    /// For people; not unique.
    pub name: String,
    /// For people.
    pub description: String,
    /// What it wishes for.
    pub update_policy: UpdatePolicyKind,
    /// Packages, one a line, `name` or `name=version`.
    pub update_packages: String,
    /// Further sources of packages, one DEB822 stanza each.
    pub update_sources: Vec<String>,
    /// The command line of the kernel.
    pub update_kernel_command: String,
    /// Always empty: read `targetOs`.
    pub target_os_id: String,
    /// The operating system whose image should run.
    pub target_os: Option<OperatingSystemResource>,
    /// Whether it may replace what is newer.
    pub allow_downgrade: bool,
    /// For how many days a node that is offline may begin by leave that it was given ahead; 0 for never.
    pub offline_days: u32,
    /// How packages may be brought to it.
    pub package_rules: PackageRules,
    /// How an image may be brought to a node.
    pub image_rules: ImageRules,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of update policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OSUpdatePolicyList)]
pub struct OsUpdatePolicyList {
    /// The policies of this page.
    pub os_update_policies: Vec<OsUpdatePolicy>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// What to give as `pageToken` for the next page; empty behind the last.
    pub next_page_token: String,
}

/// A policy to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = OSUpdatePolicyInput)]
pub struct OsUpdatePolicyInput {
    /// For people; not unique.
    #[schema(min_length = 1, max_length = 50, pattern = "^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 200)]
    pub description: String,
    /// What it wishes for.
    #[serde(default)]
    pub update_policy: UpdatePolicyKind,
    /// Packages, one a line, `name` or `name=version`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500_000)]
    pub update_packages: String,
    /// Further sources of packages, one DEB822 stanza each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub update_sources: Vec<String>,
    /// The command line of the kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500)]
    pub update_kernel_command: String,
    /// The operating system whose image should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^os-[0-9a-f]{8}$")]
    pub target_os_id: Option<String>,
    /// Whether it may replace what is newer.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// For how many days a node that is offline may begin by leave that it was given ahead, 0 for never; 7 if it is left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 365)]
    pub offline_days: Option<u32>,
    /// How packages may be brought to it; as usual if it is left out. An operating system excludes what is not usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_rules: Option<PackageRulesInput>,
    /// How an image may be brought to a node; as usual if it is left out. A wish for packages, sources or the command
    /// line of the kernel alone excludes what is not usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_rules: Option<ImageRulesInput>,
}

impl Input for OsUpdatePolicyInput {
    const READ_ONLY: &[&str] = &["resourceId", "targetOs", "timestamps"];
}
