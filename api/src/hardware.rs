//! What a host is made of.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamps;
use crate::number::U64;

wire_enum! {
    /// Whether a network interface has a link.
    LinkStateKind {
        Unspecified = "NETWORK_INTERFACE_LINK_STATE_UNSPECIFIED",
        Up = "NETWORK_INTERFACE_LINK_STATE_UP",
        Down = "NETWORK_INTERFACE_LINK_STATE_DOWN",
    }
}

wire_enum! {
    /// Where an address stands.
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
    /// How an address came about.
    IpAddressConfigMethod {
        Unspecified = "IP_ADDRESS_CONFIG_METHOD_UNSPECIFIED",
        Static = "IP_ADDRESS_CONFIG_METHOD_STATIC",
        Dynamic = "IP_ADDRESS_CONFIG_METHOD_DYNAMIC",
    }
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostStorage {
    /// World-wide name.
    pub wwid: String,
    /// Serial number.
    pub serial: String,
    /// Who made it.
    pub vendor: String,
    /// Its model.
    pub model: String,
    /// Its size.
    pub capacity_bytes: U64,
    /// Such as `sda`.
    pub device_name: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostNic {
    /// Such as `eth0`.
    pub device_name: String,
    /// Where it sits.
    pub pci_identifier: String,
    /// Its hardware address.
    pub mac_addr: String,
    /// Whether single-root I/O virtualisation is on.
    pub sriov_enabled: bool,
    /// How many virtual functions it has.
    pub sriov_vfs_num: u32,
    /// How many it could have.
    pub sriov_vfs_total: u32,
    /// The greatest packet.
    pub mtu: u32,
    /// Whether it has a link.
    pub link_state: LinkState,
    /// Whether it belongs to the management controller.
    pub bmc_interface: bool,
    /// Its addresses.
    pub ipaddresses: Vec<IpAddress>,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// Whether a network interface has a link, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LinkState {
    /// Whether it has.
    #[serde(rename = "type")]
    pub kind: LinkStateKind,
    /// When that was first and last seen.
    pub timestamps: Option<Timestamps>,
}

/// An address of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IpAddress {
    /// Its id.
    pub resource_id: String,
    /// The address with its prefix length.
    pub address: String,
    /// Where it stands.
    pub status: IpAddressStatus,
    /// Why.
    pub status_detail: String,
    /// How it came about.
    pub config_method: IpAddressConfigMethod,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A USB device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostUsb {
    /// Who made it.
    pub id_vendor: String,
    /// What it is.
    pub id_product: String,
    /// On which bus.
    pub bus: u32,
    /// Where on the bus.
    pub addr: u32,
    /// Its class.
    pub class: String,
    /// Serial number.
    pub serial: String,
    /// Such as `ttyUSB0`.
    pub device_name: String,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}

/// A graphics processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostGpu {
    /// Where it sits.
    pub pci_id: String,
    /// What it is.
    pub product: String,
    /// Who made it.
    pub vendor: String,
    /// For people.
    pub description: String,
    /// Such as `card0`.
    pub device_name: String,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// When it was made and changed.
    pub timestamps: Option<Timestamps>,
}
