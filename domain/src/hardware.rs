//! Hardware inventory of a machine.
//!
//! The lists of parts have the JSON form of EIM's REST API. The database stores them in this form, and filters read it.

use std::slice;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Time;
use crate::id::IpAddressId;
use crate::lookup::find_first;

named! {
    /// Management controller of a machine.
    Controller {
        /// No controller.
        None = "none",
        /// A controller that speaks IPMI.
        Ipmi = "ipmi",
        /// Intel vPro.
        Vpro = "vpro",
        /// A switched power distribution unit.
        Pdu = "pdu",
    }
}

/// Hardware as a machine reports it. Parts have no times and addresses no ids before [`Hardware::carry_over`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Serial number as reported; any text.
    pub serial_number: String,
    pub memory_bytes: u64,
    pub cpu_model: String,
    /// Feature flags of its processors, separated by commas.
    pub cpu_capabilities: String,
    pub cpu_architecture: String,
    /// Processor topology: a JSON object as text; may be empty.
    pub cpu_topology: String,
    pub cpu_sockets: u32,
    pub cpu_cores: u32,
    pub cpu_threads: u32,
    pub product_name: String,
    pub product_vendor: String,
    /// Version of its firmware.
    pub bios_version: String,
    /// Release date of its firmware.
    pub bios_release_date: String,
    /// Vendor of its firmware.
    pub bios_vendor: String,
    /// Its management controller; `None` if unknown.
    pub controller: Option<Controller>,
    /// IP address of its management controller; may be empty.
    pub controller_ip: String,
    pub storages: Vec<Storage>,
    pub nics: Vec<Nic>,
    pub usbs: Vec<Usb>,
    pub gpus: Vec<Gpu>,
}

impl Hardware {
    /// Maximum number of parts of one kind that are stored.
    pub const MAX_PARTS: usize = 256;

    /// Maximum number of addresses of one network interface that are stored.
    pub const MAX_ADDRESSES: usize = 64;

    /// Maximum number of addresses of all network interfaces together that are stored.
    pub const MAX_TOTAL_ADDRESSES: usize = 1_024;

    /// Copies from the previous report what a machine does not report: the times of unchanged parts and the ids of known
    /// addresses. Returns the new addresses, which have no id yet.
    pub fn carry_over(&mut self, before: Option<&Self>, now: Time) -> Vec<&mut Address> {
        let nothing = Self::default();
        let before = before.unwrap_or(&nothing);
        carry_over(&mut self.storages, &before.storages, now);
        carry_over(&mut self.nics, &before.nics, now);
        carry_over(&mut self.usbs, &before.usbs, now);
        carry_over(&mut self.gpus, &before.gpus, now);
        let addresses = self.nics.iter_mut().flat_map(|nic| &mut nic.ipaddresses);
        addresses.filter(|address| address.resource_id.is_none()).collect()
    }
}

/// When a part was first reported, and when it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    /// When it was first reported.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// World-wide name.
    pub wwid: String,
    pub serial: String,
    pub vendor: String,
    pub model: String,
    pub capacity_bytes: Capacity,
    /// Device name such as `sda`.
    pub device_name: String,
    pub timestamps: Option<Lifetime>,
}

/// A number of bytes. In JSON it is a string, because JSON readers lose digits beyond 53 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity(pub u64);

impl Serialize for Capacity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nic {
    /// Device name such as `eth0`.
    pub device_name: String,
    /// PCI address.
    pub pci_identifier: String,
    pub mac_addr: String,
    /// Whether single-root I/O virtualisation is enabled.
    pub sriov_enabled: bool,
    /// Number of virtual functions.
    pub sriov_vfs_num: u32,
    /// Maximum number of virtual functions.
    pub sriov_vfs_total: u32,
    /// Maximum transmission unit, in bytes.
    pub mtu: u32,
    pub link_state: LinkState,
    /// Whether it belongs to the management controller.
    pub bmc_interface: bool,
    pub ipaddresses: Vec<Address>,
    pub timestamps: Option<Lifetime>,
}

/// Link state of a network interface, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    #[serde(rename = "type")]
    pub kind: Link,
    pub timestamps: Option<Lifetime>,
}

/// Link state of a network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// Not reported.
    #[default]
    #[serde(rename = "NETWORK_INTERFACE_LINK_STATE_UNSPECIFIED")]
    Unspecified,
    /// The interface has a link.
    #[serde(rename = "NETWORK_INTERFACE_LINK_STATE_UP")]
    Up,
    /// The interface has no link.
    #[serde(rename = "NETWORK_INTERFACE_LINK_STATE_DOWN")]
    Down,
}

/// IP address of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// Its id; `None` until the server assigns one.
    pub resource_id: Option<IpAddressId>,
    /// The address with its prefix length.
    pub address: String,
    pub status: AddressStatus,
    /// Details of the status; always empty so far.
    pub status_detail: String,
    /// How the address was configured.
    pub config_method: ConfigMethod,
    pub timestamps: Option<Lifetime>,
}

/// Status of an address. A machine reports only addresses that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressStatus {
    /// The machine has the address.
    #[default]
    #[serde(rename = "IP_ADDRESS_STATUS_CONFIGURED")]
    Configured,
}

/// How an address was configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigMethod {
    /// Not reported.
    #[default]
    #[serde(rename = "IP_ADDRESS_CONFIG_METHOD_UNSPECIFIED")]
    Unspecified,
    /// Configured by hand.
    #[serde(rename = "IP_ADDRESS_CONFIG_METHOD_STATIC")]
    Static,
    /// Assigned by a DHCP server.
    #[serde(rename = "IP_ADDRESS_CONFIG_METHOD_DYNAMIC")]
    Dynamic,
}

/// A USB device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usb {
    pub id_vendor: String,
    pub id_product: String,
    /// Bus number.
    pub bus: u32,
    /// Address on the bus.
    pub addr: u32,
    pub class: String,
    pub serial: String,
    /// Device name such as `ttyUSB0`; may be empty.
    pub device_name: String,
    pub timestamps: Option<Lifetime>,
}

/// A graphics processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// PCI address.
    pub pci_id: String,
    pub product: String,
    pub vendor: String,
    /// For users.
    pub description: String,
    /// Device name such as `card0`.
    pub device_name: String,
    pub capabilities: Vec<String>,
    pub timestamps: Option<Lifetime>,
}

/// What identifies a part of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PartKey<'a> {
    /// Its name or address.
    Name(&'a str),
    /// Its USB bus and the address there.
    Usb(u32, u32),
    /// There is only one of its kind.
    Single,
}

/// A part that is recognized when it is reported again.
trait HardwarePart: PartialEq {
    /// Identifies the part among those of its kind, whatever else changed.
    fn key(&self) -> PartKey<'_>;

    /// The times of the part.
    fn lifetime(&mut self) -> &mut Option<Lifetime>;

    /// Copies what the server knows of the part and the machine does not report.
    fn copy_identity(&mut self, previous: &Self);

    fn carry_over_nested(&mut self, _before: Option<&Self>, _now: Time) {}
}

/// Unchanged parts keep their times. The others changed or appeared now.
fn carry_over<P: HardwarePart>(parts: &mut [P], before: &[P], now: Time) {
    let before = before.iter().map(|old| (old.key(), old));
    let before = find_first(before, parts.iter().map(P::key));
    for (part, old) in parts.iter_mut().zip(before) {
        part.carry_over_nested(old, now);
        if let Some(old) = old {
            part.copy_identity(old);
            if part == old {
                continue;
            }
        }
        let lifetime = part.lifetime();
        let created_at = lifetime.map_or(now, |lifetime| lifetime.created_at);
        *lifetime = Some(Lifetime { created_at, updated_at: now });
    }
}

impl HardwarePart for Storage {
    fn key(&self) -> PartKey<'_> {
        PartKey::Name(&self.device_name)
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn copy_identity(&mut self, previous: &Self) {
        self.timestamps = previous.timestamps;
    }
}

impl HardwarePart for Nic {
    fn key(&self) -> PartKey<'_> {
        PartKey::Name(&self.device_name)
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn copy_identity(&mut self, previous: &Self) {
        self.timestamps = previous.timestamps;
    }

    fn carry_over_nested(&mut self, before: Option<&Self>, now: Time) {
        let links = before.map(|before| slice::from_ref(&before.link_state));
        let addresses = before.map(|before| before.ipaddresses.as_slice());
        let link = slice::from_mut(&mut self.link_state);
        carry_over(link, links.unwrap_or_default(), now);
        carry_over(&mut self.ipaddresses, addresses.unwrap_or_default(), now);
    }
}

impl HardwarePart for LinkState {
    fn key(&self) -> PartKey<'_> {
        PartKey::Single
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn copy_identity(&mut self, previous: &Self) {
        self.timestamps = previous.timestamps;
    }
}

impl HardwarePart for Address {
    fn key(&self) -> PartKey<'_> {
        PartKey::Name(&self.address)
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn copy_identity(&mut self, previous: &Self) {
        self.resource_id = previous.resource_id;
        self.timestamps = previous.timestamps;
    }
}

impl HardwarePart for Usb {
    fn key(&self) -> PartKey<'_> {
        PartKey::Usb(self.bus, self.addr)
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn copy_identity(&mut self, previous: &Self) {
        self.timestamps = previous.timestamps;
    }
}

impl HardwarePart for Gpu {
    fn key(&self) -> PartKey<'_> {
        PartKey::Name(&self.pci_id)
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn copy_identity(&mut self, previous: &Self) {
        self.timestamps = previous.timestamps;
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;

    use super::*;

    fn at(hour: i64) -> Time {
        DateTime::from_timestamp(1_800_000_000 + 3_600 * hour, 0).expect("a time")
    }

    fn times(created: i64, updated: i64) -> Lifetime {
        Lifetime { created_at: at(created), updated_at: at(updated) }
    }

    fn nic(name: &str, link: Link, addresses: &[&str]) -> Nic {
        let address =
            |address: &&str| Address { address: (*address).to_owned(), ..Address::default() };
        Nic {
            device_name: name.to_owned(),
            link_state: LinkState { kind: link, timestamps: None },
            ipaddresses: addresses.iter().map(address).collect(),
            ..Nic::default()
        }
    }

    fn machine(nics: Vec<Nic>) -> Hardware {
        let disk = Storage {
            device_name: "sda".to_owned(),
            capacity_bytes: Capacity(u64::MAX),
            ..Storage::default()
        };
        Hardware { storages: vec![disk], nics, ..Hardware::default() }
    }

    /// Carries `before` over, with new ids from `hour` on. Returns also the number of new addresses.
    fn carried_over(
        mut reported: Hardware,
        before: Option<&Hardware>,
        hour: i64,
    ) -> (Hardware, u32) {
        let mut new = 0;
        for address in reported.carry_over(before, at(hour)) {
            address.resource_id = Some(IpAddressId::nth(u32::try_from(hour).expect("small") + new));
            new += 1;
        }
        (reported, new)
    }

    #[test]
    fn unchanged_parts_keep_their_times_and_ids() {
        let reported = machine(vec![nic("eth0", Link::Up, &["10.0.0.1/24", "10.0.0.2/24"])]);
        let (first, new) = carried_over(reported.clone(), None, 0);
        assert_eq!(new, 2);
        assert_eq!(first.storages[0].timestamps, Some(times(0, 0)));
        assert_eq!(first.nics[0].link_state.timestamps, Some(times(0, 0)));
        let (again, new) = carried_over(reported, Some(&first), 5);
        assert_eq!((again, new), (first, 0));
    }

    #[test]
    fn a_part_changes_with_its_own_parts_and_no_other_does() {
        let reported = vec![nic("eth0", Link::Up, &["10.0.0.1/24"]), nic("eth1", Link::Up, &[])];
        let (first, _) = carried_over(machine(reported), None, 0);
        let reported = vec![
            nic("eth1", Link::Up, &[]),
            nic("eth0", Link::Down, &["10.0.0.9/24", "10.0.0.1/24"]),
            nic("eth2", Link::Up, &[]),
        ];
        let (later, new) = carried_over(machine(reported), Some(&first), 5);
        assert_eq!(new, 1);
        let [eth1, eth0, eth2] = later.nics.as_slice() else {
            panic!("{later:?}");
        };
        assert_eq!(eth1.timestamps, Some(times(0, 0)));
        assert_eq!(eth0.timestamps, Some(times(0, 5)));
        assert_eq!(eth0.link_state.timestamps, Some(times(0, 5)));
        assert_eq!(eth0.ipaddresses[0].timestamps, Some(times(5, 5)));
        assert_eq!(eth0.ipaddresses[1], first.nics[0].ipaddresses[0]);
        assert_eq!(eth2.timestamps, Some(times(5, 5)));
        assert_eq!(later.storages, first.storages);
    }

    #[test]
    fn parts_have_the_form_of_the_api() {
        let reported = machine(vec![nic("eth0", Link::Up, &["10.0.0.1/24"])]);
        let (stored, _) = carried_over(reported, None, 0);
        let times =
            json!({"createdAt": "2027-01-15T08:00:00Z", "updatedAt": "2027-01-15T08:00:00Z"});
        let rendered = serde_json::to_value(&stored.nics).expect("JSON");
        let address = json!({
            "resourceId": IpAddressId::nth(0).to_string(), "address": "10.0.0.1/24",
            "status": "IP_ADDRESS_STATUS_CONFIGURED", "statusDetail": "",
            "configMethod": "IP_ADDRESS_CONFIG_METHOD_UNSPECIFIED", "timestamps": times,
        });
        assert_eq!(
            rendered,
            json!([{
                "deviceName": "eth0", "pciIdentifier": "", "macAddr": "", "sriovEnabled": false, "sriovVfsNum": 0,
                "sriovVfsTotal": 0, "mtu": 0, "bmcInterface": false, "ipaddresses": [address],
                "linkState": {"type": "NETWORK_INTERFACE_LINK_STATE_UP", "timestamps": times}, "timestamps": times,
            }])
        );
        let disks = serde_json::to_value(&stored.storages).expect("JSON");
        assert_eq!(disks[0]["capacityBytes"], "18446744073709551615");
        let read: Vec<Storage> = serde_json::from_value(disks).expect("disks");
        assert_eq!(read, stored.storages);
        let read: Vec<Nic> = serde_json::from_value(rendered).expect("interfaces");
        assert_eq!(read, stored.nics);
    }
}
