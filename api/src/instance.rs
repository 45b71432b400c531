//! Instances: hosts with an operating system.

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
    /// Desired or current state of an instance. A state that only a newer server knows is
    /// unspecified.
    InstanceState {
        Unspecified = "INSTANCE_STATE_UNSPECIFIED",
        Running = "INSTANCE_STATE_RUNNING",
        Deleted = "INSTANCE_STATE_DELETED",
        Untrusted = "INSTANCE_STATE_UNTRUSTED",
    }
}

wire_enum! {
    /// Kind of machine that an instance runs on. A kind that only a newer server knows is
    /// unspecified.
    InstanceKind {
        Unspecified = "INSTANCE_KIND_UNSPECIFIED",
        Metal = "INSTANCE_KIND_METAL",
    }
}

/// Instance: the operating system of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceResource {
    /// Resource ID.
    pub resource_id: String,
    /// Same as `resourceId`.
    #[serde(rename = "instanceID")]
    pub instance_id: String,
    /// Kind of machine.
    pub kind: InstanceKind,
    /// Display name; may be empty.
    pub name: String,
    /// Desired state.
    pub desired_state: InstanceState,
    /// Current state.
    pub current_state: InstanceState,
    /// ID of the host.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// Host, without its instance; may be null.
    #[schema(no_recursion)]
    pub host: Option<Box<HostResource>>,
    /// ID of the operating system.
    #[serde(rename = "osID")]
    pub os_id: String,
    /// Operating system.
    pub os: Option<OperatingSystemResource>,
    /// ID of the local account that may log in; empty for none.
    #[serde(rename = "localAccountID")]
    pub local_account_id: String,
    /// Local account that may log in; null for none.
    pub localaccount: Option<LocalAccountResource>,
    /// Always empty; use `updatePolicy`.
    #[serde(rename = "osUpdatePolicyID")]
    pub os_update_policy_id: String,
    /// Policy that is assigned directly to this instance; null for none.
    pub update_policy: Option<OsUpdatePolicy>,
    /// IDs of the custom configurations for the first boot.
    #[serde(rename = "customConfigID")]
    pub custom_config_id: Vec<String>,
    /// Custom configurations for the first boot. Filled only in responses for a single instance.
    pub custom_config: Vec<CustomConfigResource>,
    /// Cluster memberships; always empty, never null.
    #[schema(value_type = Vec<Object>)]
    pub workload_members: Vec<serde_json::Value>,
    /// Security features of the installation.
    pub security_feature: SecurityFeature,
    /// Instance status, as text.
    pub instance_status: String,
    /// Indication of `instanceStatus`.
    pub instance_status_indicator: StatusIndication,
    /// Time at which `instanceStatus` was set, in Unix seconds.
    pub instance_status_timestamp: u32,
    /// Details of `instanceStatus`; always empty.
    pub instance_status_detail: String,
    /// Provisioning status, as text: `Provisioned` after the first report of the node, `Not
    /// Provisioned` before.
    pub provisioning_status: String,
    /// Indication of `provisioningStatus`.
    pub provisioning_status_indicator: StatusIndication,
    /// Time at which `provisioningStatus` was set; always 0.
    pub provisioning_status_timestamp: u32,
    /// Update status, as text.
    pub update_status: String,
    /// Indication of `updateStatus`.
    pub update_status_indicator: StatusIndication,
    /// Time at which `updateStatus` was set, in Unix seconds.
    pub update_status_timestamp: u32,
    /// Trusted attestation status; always `Unknown`.
    pub trusted_attestation_status: String,
    /// Indication of `trustedAttestationStatus`.
    pub trusted_attestation_status_indicator: StatusIndication,
    /// Time at which `trustedAttestationStatus` was set; always 0.
    pub trusted_attestation_status_timestamp: u32,
    /// Open vulnerabilities of the operating system: a JSON array as text. Filled only in responses
    /// for a single instance.
    pub existing_cves: String,
    /// Installed packages: a JSON array as text. Filled only in responses for a single instance.
    pub runtime_packages: String,
    /// Available updates. Mutable operating system: a JSON array of `{name, available_version,
    /// architecture}` as text. Immutable operating system: name of the newest operating system.
    /// Empty if there is no update, or if the updates are unknown: `securityUpdates` is null then.
    pub os_update_available: String,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,

    /// Lasting facts about the instance that an operator should know although nothing failed.
    pub conditions: Vec<InstanceCondition>,
    /// Policy that applies to the instance, on whatever level it is assigned; null if there is
    /// none. Filled in responses for a single instance, and in lists with `showEffectivePolicy`.
    pub effective_update_policy: Option<EffectivePolicy>,
    /// Release of the running kernel, from the node's last report; empty if it is unknown.
    pub kernel_release: String,
    /// Whether the node requires a reboot; null if it is unknown.
    pub reboot_required: Option<bool>,
    /// Why the node requires a reboot, as text. Filled only in responses for a single instance.
    pub reboot_reasons: Vec<String>,
    /// Time at which the agent last refreshed all package lists; null if it is unknown. The
    /// available updates are as old as the lists. If a refresh changes nothing else, the node
    /// reports it once a day.
    pub package_lists_refreshed_at: Option<DateTime<Utc>>,
    /// Why the package lists are not current, as text, also for a node that has enrolled and not
    /// reported yet; empty if the last refresh succeeded or its result is unknown.
    pub package_lists_error: String,
    /// Number of security updates that are not installed, including those that are held back; null
    /// if it is unknown.
    pub security_updates: Option<u32>,
    /// Number of updates that the node holds back; null if it is unknown.
    pub held_back_updates: Option<u32>,
    /// Updates that the node holds back, from its last report: the first 1000. `heldBackUpdates` is
    /// the number of all. Filled only in responses for a single instance.
    pub held_back_packages: Vec<InstanceHeldBackPackage>,
    /// Number of services that still run replaced files; null if it is unknown.
    pub stale_services: Option<u32>,
    /// Services that still run replaced files, from the node's last report. Filled only in
    /// responses for a single instance.
    pub stale_units: Vec<InstanceStaleUnit>,
    /// Last change of packages that the agent did not make, from the node's last report; null if
    /// there was none. Filled only in responses for a single instance.
    pub foreign_change: Option<InstanceForeignChange>,
    /// Image slots of the machine, from the node's last report. Filled only in responses for a
    /// single instance.
    pub slots: Vec<InstanceSlot>,
    /// Images that failed on the instance and are not retried without an order; the most recent one
    /// last. Filled only in responses for a single instance.
    pub bad_images: Vec<InstanceBadImage>,
}

/// Update that a node holds back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceHeldBackPackage {
    /// Package name.
    pub name: String,
    /// Debian architecture, for example `amd64`.
    pub architecture: String,
    /// Installed version.
    pub installed: String,
    /// Available version.
    pub available: String,
    /// Why the version is not installed: `hold`, `dependencies`, `phased`, `pinned`, `limits` (of
    /// the owner of the machine), `space`, `boot_loader`, a rule of a policy (`excluded`, `suite`,
    /// `too_young` or `policy`) or `unspecified`.
    pub cause: String,
    /// Details of the cause, as text; may be empty.
    pub detail: String,
    /// Suites and codenames that contain the version; empty if they are unknown.
    pub suites: Vec<String>,
    /// Labels of the repositories that contain the version; empty if they are unknown.
    pub origins: Vec<String>,
    /// Whether the version is a security update; null if its suites are unknown.
    pub security: Option<bool>,
}

/// Service that still runs replaced files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceStaleUnit {
    /// Name of the systemd unit.
    pub name: String,
    /// Paths of the replaced files.
    pub files: Vec<String>,
}

/// Change of packages by a person or another program on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceForeignChange {
    /// Time of the change, by the node's clock; null if it is unknown.
    pub changed_at: Option<DateTime<Utc>>,
    /// Number of changed packages.
    pub count: u32,
    /// The first of them, each as text with its versions.
    pub packages: Vec<String>,
}

/// Image slot, as the node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceSlot {
    /// Name of the slot, for example `root-a`.
    pub name: String,
    /// State: `empty`, `writing`, `written`, `armed`, `trial`, `good` or `bad`.
    pub state: String,
    /// Version of the image in the slot; empty if there is none or it is unknown.
    pub image_id: String,
}

/// Image that failed on an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceBadImage {
    /// SHA-256 of the image file, as hexadecimal digits.
    pub sha256: String,
    /// Version of the image.
    pub image_id: String,
    /// How the image failed, as the node reports it.
    pub reason: String,
}

/// Lasting fact about an instance. An instance has at most one condition of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct InstanceCondition {
    /// Type, for example `not_newer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Explanation, as text.
    pub message: String,
    /// Time since which the condition exists.
    pub since: DateTime<Utc>,
}

/// A page of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceList {
    /// Instances on this page.
    pub instances: Vec<InstanceResource>,
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

/// Instance to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceInput {
    /// Kind of machine.
    #[serde(default)]
    pub kind: InstanceKind,
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[serde(default)]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// ID of the host.
    #[serde(rename = "hostID")]
    #[schema(pattern = "^host-[0-9a-f]{8}$")]
    pub host_id: String,
    /// ID of the operating system.
    #[serde(rename = "osID")]
    #[schema(pattern = "^os-[0-9a-f]{8}$")]
    pub os_id: String,
    /// ID of the local account that may log in; empty, null or omitted for none.
    #[serde(rename = "localAccountID", default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^$|^localaccount-[0-9a-f]{8}$")]
    pub local_account_id: Option<String>,
    /// IDs of the custom configurations for the first boot.
    #[serde(rename = "customConfigID", default)]
    pub custom_config_id: Vec<String>,
    /// ID of the policy to assign to the instance; empty, null or omitted for none.
    #[serde(rename = "osUpdatePolicyID", default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^$|^osupdatepolicy-[0-9a-f]{8}$")]
    pub os_update_policy_id: Option<String>,
    /// Security features of the installation.
    #[serde(default)]
    pub security_feature: SecurityFeature,
}

impl Input for InstanceInput {
    const READ_ONLY: &[&str] = READ_ONLY;
}

/// Changes to an instance. `name`, `kind` and `osUpdatePolicyID` can be changed, and `osID` until
/// the node has reported its operating system. The other fields are set when the instance is
/// created: their current value is accepted, every other value is rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InstancePatch {
    /// Kind of machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<InstanceKind>,
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: Option<String>,
    /// ID of the host.
    #[serde(rename = "hostID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^host-[0-9a-f]{8}$")]
    pub host_id: Option<String>,
    /// ID of the operating system.
    #[serde(rename = "osID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^os-[0-9a-f]{8}$")]
    pub os_id: Option<String>,
    /// ID of the local account that may log in.
    #[serde(rename = "localAccountID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^$|^localaccount-[0-9a-f]{8}$")]
    pub local_account_id: Option<String>,
    /// IDs of the custom configurations for the first boot.
    #[serde(rename = "customConfigID", skip_serializing_if = "Option::is_none")]
    pub custom_config_id: Option<Vec<String>>,
    /// ID of the policy to assign directly to the instance; empty removes the assignment.
    #[serde(rename = "osUpdatePolicyID", skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^$|^osupdatepolicy-[0-9a-f]{8}$")]
    pub os_update_policy_id: Option<String>,
    /// Security features of the installation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_feature: Option<SecurityFeature>,
}

impl Input for InstancePatch {
    const READ_ONLY: &[&str] = READ_ONLY;
    const CREATE_ONLY: &[&str] = &["hostID", "localAccountID", "customConfigID", "securityFeature"];
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
    "kernelRelease",
    "rebootRequired",
    "rebootReasons",
    "packageListsRefreshedAt",
    "packageListsError",
    "securityUpdates",
    "heldBackUpdates",
    "heldBackPackages",
    "staleServices",
    "staleUnits",
    "foreignChange",
    "slots",
    "badImages",
];
