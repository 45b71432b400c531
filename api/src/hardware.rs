//! Hardware of a host.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::Timestamps;
use crate::number::U64;

wire_enum! {
    /// Link state of a network interface.
    LinkStateKind {
        Unspecified = "NETWORK_INTERFACE_LINK_STATE_UNSPECIFIED",
        Up = "NETWORK_INTERFACE_LINK_STATE_UP",
        Down = "NETWORK_INTERFACE_LINK_STATE_DOWN",
    }
}

wire_enum! {
    /// State of an IP address.
    IpAddressStatus {
        Unspecified = "IP_ADDRESS_STATUS_UNSPECIFIED",
        AssignmentError = "IP_ADDRESS_STATUS_ASSIGNMENT_ERROR",
        Assigned = "IP_ADDRESS_STATUS_ASSIGNED",
        ConfigurationError = "IP_ADDRESS_STATUS_CONFIGURATION_ERROR",
        Configured = "IP_ADDRESS_STATUS_CONFIGURED",
        Released = "IP_ADDRESS_STATUS_RELEASED",
        Error = "IP_ADDRESS_STATUS_ERROR",
    }
}

wire_enum! {
    /// How an IP address was assigned.
    IpAddressConfigMethod {
        Unspecified = "IP_ADDRESS_CONFIG_METHOD_UNSPECIFIED",
        Static = "IP_ADDRESS_CONFIG_METHOD_STATIC",
        Dynamic = "IP_ADDRESS_CONFIG_METHOD_DYNAMIC",
    }
}

/// Hardware parts of one kind. A deserialized list is always `Parsed`. The server may serialize
/// stored JSON without parsing it (`Raw`).
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Parts<T> {
    /// Parsed parts.
    Parsed(Vec<T>),
    /// JSON array of the parts, serialized unchanged.
    Raw(Box<RawValue>),
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self::Parsed(Vec::new())
    }
}

impl<T: PartialEq> PartialEq for Parts<T> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Parsed(own), Self::Parsed(other)) => own == other,
            (Self::Raw(own), Self::Raw(other)) => own.get() == other.get(),
            _ => false,
        }
    }
}

impl<T: Eq> Eq for Parts<T> {}

/// Gives the parsed parts. `Raw` JSON is not parsed, so it gives an empty slice.
impl<T> Deref for Parts<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Parsed(parts) => parts,
            Self::Raw(_) => &[],
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Parts<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::Parsed)
    }
}

/// Disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostStorage {
    /// World Wide Name (WWN).
    pub wwid: String,
    /// Serial number.
    pub serial: String,
    /// Manufacturer.
    pub vendor: String,
    /// Model.
    pub model: String,
    /// Capacity in bytes.
    pub capacity_bytes: U64,
    /// Device name, for example `sda`.
    pub device_name: String,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// Network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostNic {
    /// Device name, for example `eth0`.
    pub device_name: String,
    /// PCI address.
    pub pci_identifier: String,
    /// MAC address.
    pub mac_addr: String,
    /// Whether single-root I/O virtualisation (SR-IOV) is enabled.
    pub sriov_enabled: bool,
    /// Number of SR-IOV virtual functions that are enabled.
    pub sriov_vfs_num: u32,
    /// Maximum number of SR-IOV virtual functions.
    pub sriov_vfs_total: u32,
    /// Maximum transmission unit (MTU) in bytes.
    pub mtu: u32,
    /// Link state.
    pub link_state: LinkState,
    /// Whether the interface belongs to the baseboard management controller.
    pub bmc_interface: bool,
    /// IP addresses.
    pub ipaddresses: Vec<IpAddress>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// Link state of a network interface, with its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LinkState {
    /// Link state.
    #[serde(rename = "type")]
    pub kind: LinkStateKind,
    /// Times at which this state was first and last observed.
    pub timestamps: Option<Timestamps>,
}

/// IP address of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IpAddress {
    /// Resource ID.
    pub resource_id: String,
    /// Address with prefix length.
    pub address: String,
    /// State of the address.
    pub status: IpAddressStatus,
    /// Details of the state.
    pub status_detail: String,
    /// How the address was assigned.
    pub config_method: IpAddressConfigMethod,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// USB device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostUsb {
    /// Vendor ID.
    pub id_vendor: String,
    /// Product ID.
    pub id_product: String,
    /// Bus number.
    pub bus: u32,
    /// Device address on the bus.
    pub addr: u32,
    /// USB class.
    pub class: String,
    /// Serial number.
    pub serial: String,
    /// Device name, for example `ttyUSB0`.
    pub device_name: String,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// Graphics processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostGpu {
    /// PCI address.
    pub pci_id: String,
    /// Product name.
    pub product: String,
    /// Manufacturer.
    pub vendor: String,
    /// Description, as free text.
    pub description: String,
    /// Device name, for example `card0`.
    pub device_name: String,
    /// Capabilities.
    pub capabilities: Vec<String>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_parts_are_serialized_unchanged_and_parsed_one_by_one() {
        let text = r#"[{"idVendor":"v","idProduct":"","bus":1,"addr":2,"class":"","serial":"","deviceName":"","timestamps":null}]"#;
        let written = RawValue::from_string(text.to_owned()).expect("JSON");
        let written = Parts::<HostUsb>::Raw(written);
        assert_eq!(serde_json::to_string(&written).expect("JSON"), text);
        let read: Parts<HostUsb> = serde_json::from_str(text).expect("parts");
        assert_eq!((read.len(), read[0].id_vendor.as_str()), (1, "v"));
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
        let value = serde_json::to_value(&written).expect("a value");
        assert_eq!(value, serde_json::to_value(&read).expect("a value"));
    }
}
