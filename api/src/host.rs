//! Hosts: the machines of the inventory.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::hardware::{HostGpu, HostNic, HostStorage, HostUsb, Parts};
use crate::instance::InstanceResource;
use crate::number::U64;
use crate::out_of_band::{
    AmtControlMode, AmtSku, AmtState, BaremetalControllerKind, KvmState, KvmStatus,
    PowerCommandPolicy, PowerState, SolState, SolStatus,
};
use crate::provider::ProviderResource;
use crate::site::SiteResource;
use crate::status::{MetadataItem, StatusIndication};
use crate::{Input, Timestamps};

wire_enum! {
    /// Desired or current state of a host. A state that only a newer server knows is unspecified.
    HostState {
        Unspecified = "HOST_STATE_UNSPECIFIED",
        Deleted = "HOST_STATE_DELETED",
        Onboarded = "HOST_STATE_ONBOARDED",
        Untrusted = "HOST_STATE_UNTRUSTED",
        Registered = "HOST_STATE_REGISTERED",
    }
}

/// Host: a machine of the inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostResource {
    /// Resource ID.
    pub resource_id: String,
    /// Display name; may be empty and need not be unique.
    pub name: String,
    /// Desired state.
    pub desired_state: HostState,
    /// Current state.
    pub current_state: HostState,
    /// ID of the site; empty if the host has no site.
    pub site_id: String,
    /// Site; null if the host has no site.
    pub site: Option<SiteResource>,
    /// Provider of the machine; null if there is none.
    pub provider: Option<ProviderResource>,
    /// Reason of the invalidation; empty if the host is valid.
    pub note: String,
    /// Serial number of the vendor.
    pub serial_number: String,
    /// SMBIOS UUID of the machine.
    pub uuid: String,
    /// Memory in bytes.
    pub memory_bytes: U64,
    /// CPU model.
    pub cpu_model: String,
    /// CPU capabilities.
    pub cpu_capabilities: String,
    /// CPU architecture.
    pub cpu_architecture: String,
    /// CPU topology: a JSON object as text.
    pub cpu_topology: String,
    /// Number of CPU sockets.
    pub cpu_sockets: u32,
    /// Number of CPU cores.
    pub cpu_cores: u32,
    /// Number of CPU threads.
    pub cpu_threads: u32,
    /// Kind of the baseboard management controller.
    pub bmc_kind: BaremetalControllerKind,
    /// IP address of the baseboard management controller.
    pub bmc_ip: String,
    /// Hostname that the machine reports.
    pub hostname: String,
    /// Product name of the vendor.
    pub product_name: String,
    /// BIOS version.
    pub bios_version: String,
    /// BIOS release date.
    pub bios_release_date: String,
    /// BIOS vendor.
    pub bios_vendor: String,
    /// Desired power state.
    pub desired_power_state: PowerState,
    /// Current power state.
    pub current_power_state: PowerState,
    /// How the power state is changed.
    pub power_command_policy: PowerCommandPolicy,
    /// Time at which the machine was last switched on; always 0.
    pub power_on_time: u32,
    /// Status of the machine, as text: `Not Connected`, `Running`, `No Connection` or
    /// `Invalidated`.
    pub host_status: String,
    /// Indication of `hostStatus`.
    pub host_status_indicator: StatusIndication,
    /// Time at which `hostStatus` was set, in Unix seconds.
    pub host_status_timestamp: u32,
    /// Onboarding status, as text: `Onboarded`, or `Not Connected` before the machine has
    /// connected.
    pub onboarding_status: String,
    /// Indication of `onboardingStatus`.
    pub onboarding_status_indicator: StatusIndication,
    /// Time at which `onboardingStatus` was set; always 0.
    pub onboarding_status_timestamp: u32,
    /// Registration status; always `Unknown`.
    pub registration_status: String,
    /// Indication of `registrationStatus`.
    pub registration_status_indicator: StatusIndication,
    /// Time at which `registrationStatus` was set; always 0.
    pub registration_status_timestamp: u32,
    /// Power status; always `Unknown`.
    pub power_status: String,
    /// Indication of `powerStatus`.
    pub power_status_indicator: StatusIndication,
    /// Time at which `powerStatus` was set; always 0.
    pub power_status_timestamp: u32,
    /// Status of Intel AMT; always `Unknown`.
    pub amt_status: String,
    /// Indication of `amtStatus`.
    pub amt_status_indicator: StatusIndication,
    /// Time at which `amtStatus` was set; always 0.
    pub amt_status_timestamp: u32,
    /// Disks.
    #[schema(value_type = Vec<HostStorage>)]
    pub host_storages: Parts<HostStorage>,
    /// Network interfaces.
    #[schema(value_type = Vec<HostNic>)]
    pub host_nics: Parts<HostNic>,
    /// USB devices.
    #[schema(value_type = Vec<HostUsb>)]
    pub host_usbs: Parts<HostUsb>,
    /// Graphics processors.
    #[schema(value_type = Vec<HostGpu>)]
    pub host_gpus: Parts<HostGpu>,
    /// Instance on the host; null if there is none.
    #[schema(no_recursion)]
    pub instance: Option<Box<InstanceResource>>,
    /// Intel AMT variant of the machine.
    pub amt_sku: AmtSku,
    /// Desired state of Intel AMT.
    pub desired_amt_state: AmtState,
    /// Current state of Intel AMT.
    pub current_amt_state: AmtState,
    /// Control mode of Intel AMT.
    pub amt_control_mode: AmtControlMode,
    /// DNS suffix of Intel AMT; always empty.
    pub amt_dns_suffix: String,
    /// Desired state of remote KVM (keyboard, video, mouse).
    pub desired_kvm_state: KvmState,
    /// Current state of remote KVM.
    pub current_kvm_state: KvmState,
    /// Whether remote KVM is active.
    pub kvm_status: KvmStatus,
    /// Session status of remote KVM; always empty.
    pub kvm_session_status: String,
    /// Desired state of serial over LAN.
    pub desired_sol_state: SolState,
    /// Current state of serial over LAN.
    pub current_sol_state: SolState,
    /// Whether serial over LAN is active.
    pub sol_status: SolStatus,
    /// Session status of serial over LAN; always empty.
    pub sol_session_status: String,
    /// Size of the LVM volume for users, in GB.
    pub user_lvm_size: u32,
    /// Labels.
    pub metadata: Vec<MetadataItem>,
    /// Labels inherited from the site and its regions.
    pub inherited_metadata: Vec<MetadataItem>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,

    /// Vendor of the product; empty if it is unknown.
    pub product_vendor: String,
    /// Time of the last call of the node, or of the beginning of its long poll; null if there was none,
    /// and in hosts that are part of another resource. The server stores the times of calls at an
    /// interval, 30 seconds by default.
    pub last_contact: Option<DateTime<Utc>>,
    /// Version of the agent; empty if it is unknown, and in hosts that are part of another resource.
    pub agent_version: String,
    /// Release of the running kernel; empty if it is unknown, and in hosts that are part of another
    /// resource.
    pub kernel_release: String,
    /// Time at which the kernel started, by the clock of the node; null if it is unknown, and in hosts
    /// that are part of another resource.
    pub boot_time: Option<DateTime<Utc>>,
    /// Whether the node requires a reboot; null if it is unknown, and in hosts that are part of another
    /// resource.
    pub reboot_required: Option<bool>,
    /// Packages that require the reboot; empty if none does or they are unknown. If there are more than
    /// 20, the last entry is the number of the others.
    pub reboot_required_by: Vec<String>,
    /// IP addresses of all network interfaces, with the length of their prefix; empty in hosts that are
    /// part of another resource.
    pub ip_addresses: Vec<String>,
}

/// A page of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostList {
    /// Hosts on this page.
    pub hosts: Vec<HostResource>,
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

/// Machine to register. At least one of `uuid` and `serialNumber` is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HostRegister {
    /// Display name: at most 20 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[schema(max_length = 20, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// Serial number that identifies the machine: 5 to 20 letters and digits. May be empty if
    /// `uuid` is given.
    #[schema(pattern = "^([A-Za-z0-9]{5,20})?$")]
    pub serial_number: String,
    /// SMBIOS UUID that identifies the machine; may be empty if `serialNumber` is given.
    #[schema(
        max_length = 36,
        pattern = "^$|^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
    )]
    pub uuid: String,
    /// ID of the site; empty for none.
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub site_id: String,
    /// Whether the machine should be onboarded as soon as it connects. Stored as the desired state
    /// only: a machine that enrols with a join token is onboarded in any case.
    pub auto_onboard: bool,
    /// Accepted and ignored: Evenkeel has no out-of-band management.
    pub enable_vpro: bool,
    /// Size of the LVM volume for users, in GB. Stored and returned only: Evenkeel does not install
    /// operating systems.
    #[schema(maximum = 2_147_483_647)]
    pub user_lvm_size: u32,
}

impl Input for HostRegister {
    const READ_ONLY: &[&str] = &["resourceId", "timestamps"];
    const CREATE_ONLY: &[&str] = &["serialNumber", "uuid", "siteId", "enableVpro", "userLvmSize"];
}

/// Host to create or change. PATCH changes only the fields in the body.
///
/// Evenkeel has no out-of-band management. The fields for it exist because clients send back the
/// whole resource. A request that sets one of them to another value than its default is rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostInput {
    /// Display name: at most 50 letters, digits, spaces and `-_./:`; may be empty and need not be
    /// unique.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// SMBIOS UUID of the machine; may be empty. Used only when the host is created; ignored
    /// afterwards.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(
        max_length = 36,
        pattern = "^$|^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
    )]
    pub uuid: String,
    /// ID of the site; empty for none.
    #[serde(default)]
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub site_id: String,
    /// Labels; every key at most once.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub metadata: Vec<MetadataItem>,
    /// Desired power state. Only `POWER_STATE_UNSPECIFIED` is accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub desired_power_state: PowerState,
    /// How the power state is changed. Only `POWER_COMMAND_POLICY_UNSPECIFIED` is accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub power_command_policy: PowerCommandPolicy,
    /// Desired state of Intel AMT. Only `AMT_STATE_UNSPECIFIED` is accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub desired_amt_state: AmtState,
    /// Control mode of Intel AMT. Only `AMT_CONTROL_MODE_UNSPECIFIED` is accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub amt_control_mode: AmtControlMode,
    /// DNS suffix of Intel AMT. Only the empty text is accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    #[schema(max_length = 0)]
    pub amt_dns_suffix: String,
    /// Desired state of remote KVM. Only `KVM_STATE_UNSPECIFIED` is accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub desired_kvm_state: KvmState,
    /// Desired state of serial over LAN. Only `SOL_STATE_UNSPECIFIED` is accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub desired_sol_state: SolState,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl HostInput {
    /// Returns the first field that requests out-of-band management.
    #[must_use]
    pub fn out_of_band_field(&self) -> Option<&'static str> {
        let requested = [
            ("desiredPowerState", !is_default(&self.desired_power_state)),
            ("powerCommandPolicy", !is_default(&self.power_command_policy)),
            ("desiredAmtState", !is_default(&self.desired_amt_state)),
            ("amtControlMode", !is_default(&self.amt_control_mode)),
            ("amtDnsSuffix", !is_default(&self.amt_dns_suffix)),
            ("desiredKvmState", !is_default(&self.desired_kvm_state)),
            ("desiredSolState", !is_default(&self.desired_sol_state)),
        ];
        requested.into_iter().find_map(|(field, is_requested)| is_requested.then_some(field))
    }
}

impl Input for HostInput {
    const CREATE_ONLY: &[&str] = &["uuid"];
    const READ_ONLY: &[&str] = &[
        "resourceId",
        "desiredState",
        "currentState",
        "site",
        "provider",
        "note",
        "serialNumber",
        "memoryBytes",
        "cpuModel",
        "cpuCapabilities",
        "cpuArchitecture",
        "cpuTopology",
        "cpuSockets",
        "cpuCores",
        "cpuThreads",
        "bmcKind",
        "bmcIp",
        "hostname",
        "productName",
        "biosVersion",
        "biosReleaseDate",
        "biosVendor",
        "currentPowerState",
        "powerOnTime",
        "hostStatus",
        "hostStatusIndicator",
        "hostStatusTimestamp",
        "onboardingStatus",
        "onboardingStatusIndicator",
        "onboardingStatusTimestamp",
        "registrationStatus",
        "registrationStatusIndicator",
        "registrationStatusTimestamp",
        "powerStatus",
        "powerStatusIndicator",
        "powerStatusTimestamp",
        "amtStatus",
        "amtStatusIndicator",
        "amtStatusTimestamp",
        "hostStorages",
        "hostNics",
        "hostUsbs",
        "hostGpus",
        "instance",
        "amtSku",
        "currentAmtState",
        "currentKvmState",
        "kvmStatus",
        "kvmSessionStatus",
        "currentSolState",
        "solStatus",
        "solSessionStatus",
        "userLvmSize",
        "inheritedMetadata",
        "timestamps",
        "productVendor",
        "lastContact",
        "agentVersion",
        "kernelRelease",
        "bootTime",
        "rebootRequired",
        "rebootRequiredBy",
        "ipAddresses",
    ];
}
