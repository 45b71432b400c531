//! What a host is made of.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
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

/// Parts of one kind. Whoever reads an answer has them one by one. Whoever gives one may have them as JSON that was written
/// before: that is told as it is.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Parts<T> {
    /// One by one.
    Each(Vec<T>),
    /// As the JSON of a list of them.
    Written(Box<RawValue>),
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self::Each(Vec::new())
    }
}

impl<T: PartialEq> PartialEq for Parts<T> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Each(own), Self::Each(other)) => own == other,
            (Self::Written(own), Self::Written(other)) => own.get() == other.get(),
            _ => false,
        }
    }
}

impl<T: Eq> Eq for Parts<T> {}

/// Those that can be looked at one by one. Nobody looks into what is written already.
impl<T> Deref for Parts<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Each(parts) => parts,
            Self::Written(_) => &[],
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Parts<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::Each)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_already_is_told_letter_by_letter_and_read_one_by_one() {
        let text = r#"[{"idVendor":"v","idProduct":"","bus":1,"addr":2,"class":"","serial":"","deviceName":"","timestamps":null}]"#;
        let written = RawValue::from_string(text.to_owned()).expect("JSON");
        let written = Parts::<HostUsb>::Written(written);
        assert_eq!(serde_json::to_string(&written).expect("JSON"), text);
        let read: Parts<HostUsb> = serde_json::from_str(text).expect("parts");
        assert_eq!((read.len(), read[0].id_vendor.as_str()), (1, "v"));
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
        let value = serde_json::to_value(&written).expect("a value");
        assert_eq!(value, serde_json::to_value(&read).expect("a value"));
    }
}
