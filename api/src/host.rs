//! Hosts: the machines of the fleet.

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
    /// Where a host stands, wanted or current.
    HostState {
        Unspecified = "HOST_STATE_UNSPECIFIED",
        Deleted = "HOST_STATE_DELETED",
        Onboarded = "HOST_STATE_ONBOARDED",
        Untrusted = "HOST_STATE_UNTRUSTED",
        Registered = "HOST_STATE_REGISTERED",
    }
}

/// One machine of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostResource {
    /// Its id.
    pub resource_id: String,
    /// For people; may be empty, not unique.
    pub name: String,
    /// Where it should stand.
    pub desired_state: HostState,
    /// Where it stands.
    pub current_state: HostState,
    /// The site that it stands at.
    pub site_id: String,
    /// The site that it stands at.
    pub site: Option<SiteResource>,
    /// Who brought it.
    pub provider: Option<ProviderResource>,
    /// Why it was invalidated.
    pub note: String,
    /// The vendor's serial number.
    pub serial_number: String,
    /// The machine's UUID.
    pub uuid: String,
    /// Its memory.
    pub memory_bytes: U64,
    /// The model of its processors.
    pub cpu_model: String,
    /// What its processors can do.
    pub cpu_capabilities: String,
    /// The architecture of its processors.
    pub cpu_architecture: String,
    /// How its processors are arranged, a JSON object as text.
    pub cpu_topology: String,
    /// How many sockets it has.
    pub cpu_sockets: u32,
    /// How many cores it has.
    pub cpu_cores: u32,
    /// How many threads run at once.
    pub cpu_threads: u32,
    /// Its management controller.
    pub bmc_kind: BaremetalControllerKind,
    /// The address of its management controller.
    pub bmc_ip: String,
    /// What it calls itself.
    pub hostname: String,
    /// What its vendor calls it.
    pub product_name: String,
    /// The version of its firmware.
    pub bios_version: String,
    /// The date of its firmware.
    pub bios_release_date: String,
    /// Who made its firmware.
    pub bios_vendor: String,
    /// Power, wanted.
    pub desired_power_state: PowerState,
    /// Power, current.
    pub current_power_state: PowerState,
    /// How a change of power is made.
    pub power_command_policy: PowerCommandPolicy,
    /// When it was last switched on, in Unix seconds.
    pub power_on_time: u32,
    /// In words: what it is doing.
    pub host_status: String,
    /// How to take `hostStatus`.
    pub host_status_indicator: StatusIndication,
    /// Since when `hostStatus` holds, in Unix seconds.
    pub host_status_timestamp: u32,
    /// In words: its onboarding.
    pub onboarding_status: String,
    /// How to take `onboardingStatus`.
    pub onboarding_status_indicator: StatusIndication,
    /// Since when `onboardingStatus` holds, in Unix seconds.
    pub onboarding_status_timestamp: u32,
    /// In words: its registration.
    pub registration_status: String,
    /// How to take `registrationStatus`.
    pub registration_status_indicator: StatusIndication,
    /// Since when `registrationStatus` holds, in Unix seconds.
    pub registration_status_timestamp: u32,
    /// In words: its power.
    pub power_status: String,
    /// How to take `powerStatus`.
    pub power_status_indicator: StatusIndication,
    /// Since when `powerStatus` holds, in Unix seconds.
    pub power_status_timestamp: u32,
    /// In words: its active management.
    pub amt_status: String,
    /// How to take `amtStatus`.
    pub amt_status_indicator: StatusIndication,
    /// Since when `amtStatus` holds, in Unix seconds.
    pub amt_status_timestamp: u32,
    /// Its disks.
    #[schema(value_type = Vec<HostStorage>)]
    pub host_storages: Parts<HostStorage>,
    /// Its network interfaces.
    #[schema(value_type = Vec<HostNic>)]
    pub host_nics: Parts<HostNic>,
    /// Its USB devices.
    #[schema(value_type = Vec<HostUsb>)]
    pub host_usbs: Parts<HostUsb>,
    /// Its graphics processors.
    #[schema(value_type = Vec<HostGpu>)]
    pub host_gpus: Parts<HostGpu>,
    /// What runs on it.
    #[schema(no_recursion)]
    pub instance: Option<Box<InstanceResource>>,
    /// Which active management it has.
    pub amt_sku: AmtSku,
    /// Active management, wanted.
    pub desired_amt_state: AmtState,
    /// Active management, current.
    pub current_amt_state: AmtState,
    /// How active management is controlled.
    pub amt_control_mode: AmtControlMode,
    /// The domain that active management trusts.
    pub amt_dns_suffix: String,
    /// Remote screen and keyboard, wanted.
    pub desired_kvm_state: KvmState,
    /// Remote screen and keyboard, current.
    pub current_kvm_state: KvmState,
    /// Whether remote screen and keyboard are on.
    pub kvm_status: KvmStatus,
    /// The session of remote screen and keyboard.
    pub kvm_session_status: String,
    /// The serial console, wanted.
    pub desired_sol_state: SolState,
    /// The serial console, current.
    pub current_sol_state: SolState,
    /// Whether the serial console is on.
    pub sol_status: SolStatus,
    /// The session of the serial console.
    pub sol_session_status: String,
    /// The size of the users' volume in GB.
    pub user_lvm_size: u32,
    /// Its labels.
    pub metadata: Vec<MetadataItem>,
    /// The labels of its site and the regions above that.
    pub inherited_metadata: Vec<MetadataItem>,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A page of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostList {
    /// The hosts of this page.
    pub hosts: Vec<HostResource>,
    /// How many there are in all.
    pub total_elements: i32,
    /// Whether there are more behind this page.
    pub has_next: bool,
    /// Asks for the next page; empty if there is none.
    pub next_page_token: String,
}

/// A machine that will come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HostRegister {
    /// What to call it; may be empty.
    #[schema(max_length = 20, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// By what it will be known, unless by its UUID.
    #[schema(pattern = "^([A-Za-z0-9]{5,20})?$")]
    pub serial_number: String,
    /// By what it will be known, unless by its serial number.
    #[schema(
        max_length = 36,
        pattern = "^$|^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
    )]
    pub uuid: String,
    /// The site that it will stand at; empty for none.
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub site_id: String,
    /// Whether it is to be onboarded as soon as it comes. Kept as its desired state and not more: a machine that enrols
    /// with a join token is onboarded in either case.
    pub auto_onboard: bool,
    /// Taken and not used: Evenkeel does no out-of-band management.
    pub enable_vpro: bool,
    /// The size of the users' volume in GB. Kept and shown: Evenkeel does not install systems.
    #[schema(maximum = 2_147_483_647)]
    pub user_lvm_size: u32,
}

impl Input for HostRegister {
    const READ_ONLY: &[&str] = &["resourceId", "timestamps"];
}

/// What of a host can be written. A change (PATCH) counts only for the fields that it names.
///
/// Evenkeel does no out-of-band management: the fields for it are there because clients send back what they were given.
/// Whoever asks for something with one of them is told that it cannot be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostInput {
    /// For people; may be empty, not unique.
    #[schema(max_length = 50, pattern = "^$|^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// The machine's UUID; may be empty. It counts when the host is made, and is passed over later.
    #[serde(default, skip_serializing_if = "is_usual")]
    #[schema(
        max_length = 36,
        pattern = "^$|^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
    )]
    pub uuid: String,
    /// The site that it stands at; empty for none.
    #[serde(default)]
    #[schema(pattern = "^$|^site-[0-9a-f]{8}$")]
    pub site_id: String,
    /// Its labels; no key twice.
    #[serde(default)]
    #[schema(max_items = 100)]
    pub metadata: Vec<MetadataItem>,
    /// Power, wanted. Only `POWER_STATE_UNSPECIFIED`: it cannot be switched.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub desired_power_state: PowerState,
    /// How a change of power is made. Only `POWER_COMMAND_POLICY_UNSPECIFIED`: it cannot be switched.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub power_command_policy: PowerCommandPolicy,
    /// Active management, wanted. Only `AMT_STATE_UNSPECIFIED`: it cannot be set up.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub desired_amt_state: AmtState,
    /// How active management is controlled. Only `AMT_CONTROL_MODE_UNSPECIFIED`: it cannot be set up.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub amt_control_mode: AmtControlMode,
    /// The domain that active management trusts. Only empty: it cannot be set up.
    #[serde(default, skip_serializing_if = "is_usual")]
    #[schema(max_length = 0)]
    pub amt_dns_suffix: String,
    /// Remote screen and keyboard, wanted. Only `KVM_STATE_UNSPECIFIED`: there are none.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub desired_kvm_state: KvmState,
    /// The serial console, wanted. Only `SOL_STATE_UNSPECIFIED`: there is none.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub desired_sol_state: SolState,
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl HostInput {
    /// The first field that asks for out-of-band management.
    #[must_use]
    pub fn out_of_band(&self) -> Option<&'static str> {
        let asked = [
            ("desiredPowerState", !is_usual(&self.desired_power_state)),
            ("powerCommandPolicy", !is_usual(&self.power_command_policy)),
            ("desiredAmtState", !is_usual(&self.desired_amt_state)),
            ("amtControlMode", !is_usual(&self.amt_control_mode)),
            ("amtDnsSuffix", !is_usual(&self.amt_dns_suffix)),
            ("desiredKvmState", !is_usual(&self.desired_kvm_state)),
            ("desiredSolState", !is_usual(&self.desired_sol_state)),
        ];
        asked
            .into_iter()
            .find_map(|(field, is_asked)| is_asked.then_some(field))
    }
}

impl Input for HostInput {
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
    ];
}
