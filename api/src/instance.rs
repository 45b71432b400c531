//! Instances: what runs on hosts.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::custom_config::CustomConfigResource;
use crate::decision::EffectivePolicy;
use crate::host::HostResource;
use crate::local_account::LocalAccountResource;
use crate::os::{OperatingSystemResource, SecurityFeature};
use crate::policy::OsUpdatePolicy;
use crate::status::StatusIndication;
use crate::{Input, Timestamps};

wire_enum! {
    /// Where an instance stands, wanted or current.
    InstanceState {
        Unspecified = "INSTANCE_STATE_UNSPECIFIED",
        Running = "INSTANCE_STATE_RUNNING",
        Deleted = "INSTANCE_STATE_DELETED",
        Untrusted = "INSTANCE_STATE_UNTRUSTED",
    }
}

wire_enum! {
    /// What an instance runs on.
    InstanceKind {
        Unspecified = "INSTANCE_KIND_UNSPECIFIED",
        Metal = "INSTANCE_KIND_METAL",
    }
}

/// The operating system that runs on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceResource {
    /// Its id.
    pub resource_id: String,
    /// Repeats `resourceId`.
    #[serde(rename = "instanceID")]
    pub instance_id: String,
    /// What it runs on.
    pub kind: InstanceKind,
    /// For people; may be empty.
    pub name: String,
    /// Where it should stand.
    pub desired_state: InstanceState,
    /// Where it stands.
    pub current_state: InstanceState,
    /// Its host.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// Its host, without what runs on it.
    #[schema(no_recursion)]
    pub host: Option<Box<HostResource>>,
    /// Its operating system.
    #[serde(rename = "osID")]
    pub os_id: String,
    /// Its operating system.
    pub os: Option<OperatingSystemResource>,
    /// The account that may log in.
    #[serde(rename = "localAccountID")]
    pub local_account_id: String,
    /// The account that may log in.
    pub localaccount: Option<LocalAccountResource>,
    /// Always empty: read `updatePolicy`.
    #[serde(rename = "osUpdatePolicyID")]
    pub os_update_policy_id: String,
    /// The policy that is assigned to this very instance.
    pub update_policy: Option<OsUpdatePolicy>,
    /// Configuration of its first start.
    #[serde(rename = "customConfigID")]
    pub custom_config_id: Vec<String>,
    /// Configuration of its first start. Only the answer about one instance has it.
    pub custom_config: Vec<CustomConfigResource>,
    /// The clusters that it belongs to; always empty, never null.
    #[schema(value_type = Vec<Object>)]
    pub workload_members: Vec<serde_json::Value>,
    /// How it is protected.
    pub security_feature: SecurityFeature,
    /// In words: what it is doing.
    pub instance_status: String,
    /// How to take `instanceStatus`.
    pub instance_status_indicator: StatusIndication,
    /// Since when `instanceStatus` holds, in Unix seconds.
    pub instance_status_timestamp: u32,
    /// In words: how many of its components run.
    pub instance_status_detail: String,
    /// In words: its installation.
    pub provisioning_status: String,
    /// How to take `provisioningStatus`.
    pub provisioning_status_indicator: StatusIndication,
    /// Since when `provisioningStatus` holds, in Unix seconds.
    pub provisioning_status_timestamp: u32,
    /// In words: where its updates stand.
    pub update_status: String,
    /// How to take `updateStatus`.
    pub update_status_indicator: StatusIndication,
    /// Since when `updateStatus` holds, in Unix seconds.
    pub update_status_timestamp: u32,
    /// In words: its trusted start.
    pub trusted_attestation_status: String,
    /// How to take `trustedAttestationStatus`.
    pub trusted_attestation_status_indicator: StatusIndication,
    /// Since when `trustedAttestationStatus` holds, in Unix seconds.
    pub trusted_attestation_status_timestamp: u32,
    /// The open vulnerabilities of its operating system, a JSON array as text. Only the answer about one instance has it.
    pub existing_cves: String,
    /// What is installed, a JSON array as text. Only the answer about one instance has it.
    pub runtime_packages: String,
    /// What could be updated: for a mutable system a JSON array of `{name, available_version, architecture}` as text, for
    /// an immutable one the name of the newest operating system; empty if there is nothing.
    pub os_update_available: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,

    /// What people should know about it although nothing failed.
    pub conditions: Vec<InstanceCondition>,
    /// The policy that applies to it, wherever it is assigned; null if there is none. Only answers about instances
    /// themselves have it, not those about hosts and runs.
    pub effective_update_policy: Option<EffectivePolicy>,
    /// The slots for images of its machine, as its node told them last. Only the answer about one instance has them.
    pub slots: Vec<InstanceSlot>,
    /// The images that failed on it and are not tried there again unless somebody orders it, the last one last. Only the
    /// answer about one instance has them.
    pub bad_images: Vec<InstanceBadImage>,
}

/// A slot for an image, as its node tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSlot {
    /// Such as `root-a`.
    pub name: String,
    /// `empty`, `writing`, `written`, `armed`, `trial`, `good` or `bad`.
    pub state: String,
    /// The version of the image in it; empty if it is not known or there is none.
    pub image_id: String,
}

/// An image that failed on an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceBadImage {
    /// Its digest.
    pub sha256: String,
    /// Its version.
    pub image_id: String,
    /// How it failed, in the node's own words.
    pub why: String,
}

/// Something that people should know about an instance. There is one of a type at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct InstanceCondition {
    /// Such as `not_newer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What exactly, for people.
    pub message: String,
    /// Since when.
    pub since: DateTime<Utc>,
}

/// A page of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceList {
    /// The instances of this page.
    pub instances: Vec<InstanceResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Where the next page begins, for `pageToken`; empty if there is none.
    pub next_page_token: String,
}

/// An instance to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceInput {
    /// What it runs on.
    #[serde(default)]
    pub kind: InstanceKind,
    /// For people; may be empty.
    #[serde(default)]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// On which host.
    #[serde(rename = "hostID")]
    #[schema(pattern = "^host-[0-9a-f]{8}$")]
    pub host_id: String,
    /// With which operating system.
    #[serde(rename = "osID")]
    #[schema(pattern = "^os-[0-9a-f]{8}$")]
    pub os_id: String,
    /// The account that may log in.
    #[serde(
        rename = "localAccountID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(pattern = "^$|^localaccount-[0-9a-f]{8}$")]
    pub local_account_id: Option<String>,
    /// Configuration of its first start.
    #[serde(rename = "customConfigID", default)]
    pub custom_config_id: Vec<String>,
    /// The policy to assign to it.
    #[serde(
        rename = "osUpdatePolicyID",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(pattern = "^$|^osupdatepolicy-[0-9a-f]{8}$")]
    pub os_update_policy_id: Option<String>,
    /// How it is protected.
    #[serde(default)]
    pub security_feature: SecurityFeature,
}

impl Input for InstanceInput {
    const READ_ONLY: &[&str] = READ_ONLY;
}

/// What of an instance can be changed: `name`, `kind` and `osUpdatePolicyID`, and `osID` until its node has spoken. The
/// others are chosen when it is made: they are accepted with the value that they have, and refused with another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InstancePatch {
    /// What it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<InstanceKind>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: Option<String>,
    /// Its host.
    #[serde(rename = "hostID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^host-[0-9a-f]{8}$")]
    pub host_id: Option<String>,
    /// Its operating system.
    #[serde(rename = "osID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^os-[0-9a-f]{8}$")]
    pub os_id: Option<String>,
    /// The account that may log in.
    #[serde(rename = "localAccountID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^$|^localaccount-[0-9a-f]{8}$")]
    pub local_account_id: Option<String>,
    /// Configuration of its first start.
    #[serde(rename = "customConfigID", skip_serializing_if = "Option::is_none")]
    pub custom_config_id: Option<Vec<String>>,
    /// The policy to assign to this very instance; empty takes the assignment away.
    #[serde(rename = "osUpdatePolicyID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^$|^osupdatepolicy-[0-9a-f]{8}$")]
    pub os_update_policy_id: Option<String>,
    /// How it is protected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_feature: Option<SecurityFeature>,
}

impl Input for InstancePatch {
    const READ_ONLY: &[&str] = READ_ONLY;
}

const READ_ONLY: &[&str] = &[
    "resourceId",
    "instanceID",
    "desiredState",
    "currentState",
    "host",
    "os",
    "localaccount",
    "updatePolicy",
    "customConfig",
    "workloadMembers",
    "instanceStatus",
    "instanceStatusIndicator",
    "instanceStatusTimestamp",
    "instanceStatusDetail",
    "provisioningStatus",
    "provisioningStatusIndicator",
    "provisioningStatusTimestamp",
    "updateStatus",
    "updateStatusIndicator",
    "updateStatusTimestamp",
    "trustedAttestationStatus",
    "trustedAttestationStatusIndicator",
    "trustedAttestationStatusTimestamp",
    "existingCves",
    "runtimePackages",
    "osUpdateAvailable",
    "timestamps",
    "conditions",
    "effectiveUpdatePolicy",
    "slots",
    "badImages",
];
