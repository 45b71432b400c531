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
}

/// A policy to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = OSUpdatePolicyInput)]
pub struct OsUpdatePolicyInput {
    /// For people; not unique.
    #[schema(min_length = 1, max_length = 50)]
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
}

impl Input for OsUpdatePolicyInput {
    const READ_ONLY: &[&str] = &["resourceId", "targetOs", "timestamps"];
}
