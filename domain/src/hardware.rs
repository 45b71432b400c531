//! What machines are made of.
//!
//! The lists of parts have the JSON form of the REST API (northbound section 1.3): so the database keeps them, and so
//! filters read them.

use std::slice;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Time;
use crate::id::IpAddressId;

named! {
    /// The management controller of a machine.
    Controller {
        /// It has none.
        None = "none",
        /// One that speaks IPMI.
        Ipmi = "ipmi",
        /// Intel vPro.
        Vpro = "vpro",
        /// A power distribution unit that is switched.
        Pdu = "pdu",
    }
}

/// What a machine says that it is made of. Parts have no times and addresses no ids before [`Hardware::follow`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Its serial number, as it says it: any text.
    pub serial_number: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// The model of its processors.
    pub cpu_model: String,
    /// What its processors can do, separated by commas.
    pub cpu_capabilities: String,
    /// The architecture of its processors.
    pub cpu_architecture: String,
    /// How its processors are arranged, a JSON object as text; may be empty.
    pub cpu_topology: String,
    /// How many sockets it has.
    pub cpu_sockets: u32,
    /// How many cores it has.
    pub cpu_cores: u32,
    /// How many threads run at once.
    pub cpu_threads: u32,
    /// What its vendor calls it.
    pub product_name: String,
    /// The version of its firmware.
    pub bios_version: String,
    /// The date of its firmware.
    pub bios_release_date: String,
    /// Who made its firmware.
    pub bios_vendor: String,
    /// Its management controller; none if nothing is known of one.
    pub controller: Option<Controller>,
    /// The address of its management controller; may be empty.
    pub controller_ip: String,
    /// Its disks.
    pub storages: Vec<Storage>,
    /// Its network interfaces.
    pub nics: Vec<Nic>,
    /// Its USB devices.
    pub usbs: Vec<Usb>,
    /// Its graphics processors.
    pub gpus: Vec<Gpu>,
}

impl Hardware {
    /// The most parts of one kind that are kept.
    pub const MAX_PARTS: usize = 256;

    /// The most addresses of one network interface that are kept.
    pub const MAX_ADDRESSES: usize = 64;

    /// The most addresses of all network interfaces together that are kept.
    pub const MAX_ADDRESSES_OF_ALL: usize = 1_024;

    /// Takes from what was known before what a machine does not say: since when its parts are there, and the ids of its
    /// addresses. Gives the addresses that are new and so have no id yet.
    pub fn follow(&mut self, before: Option<&Self>, now: Time) -> Vec<&mut Address> {
        let nothing = Self::default();
        let before = before.unwrap_or(&nothing);
        follow(&mut self.storages, &before.storages, now);
        follow(&mut self.nics, &before.nics, now);
        follow(&mut self.usbs, &before.usbs, now);
        follow(&mut self.gpus, &before.gpus, now);
        let addresses = self.nics.iter_mut().flat_map(|nic| &mut nic.ipaddresses);
        addresses
            .filter(|address| address.resource_id.is_none())
            .collect()
    }
}

/// When a part was first seen, and when it was last found changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    /// When it was first seen.
    pub created_at: Time,
    /// When it was last found changed.
    pub updated_at: Time,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// World-wide name.
    pub wwid: String,
    /// Serial number.
    pub serial: String,
    /// Who made it.
    pub vendor: String,
    /// Its model.
    pub model: String,
    /// Its size.
    pub capacity_bytes: Capacity,
    /// Such as `sda`.
    pub device_name: String,
    /// Since when it is there.
    pub timestamps: Option<Lifetime>,
}

/// A number of bytes; in JSON a text, because readers of JSON lose digits beyond 53 bits.
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
    pub ipaddresses: Vec<Address>,
    /// Since when it is there.
    pub timestamps: Option<Lifetime>,
}

/// Whether a network interface has a link, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Whether it has.
    #[serde(rename = "type")]
    pub kind: Link,
    /// Since when.
    pub timestamps: Option<Lifetime>,
}

/// Whether a network interface has a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// Nothing was said.
    #[default]
    #[serde(rename = "NETWORK_INTERFACE_LINK_STATE_UNSPECIFIED")]
    Unspecified,
    /// It has.
    #[serde(rename = "NETWORK_INTERFACE_LINK_STATE_UP")]
    Up,
    /// It has not.
    #[serde(rename = "NETWORK_INTERFACE_LINK_STATE_DOWN")]
    Down,
}

/// An address of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// Its id; none as long as it was not given one.
    pub resource_id: Option<IpAddressId>,
    /// The address with the length of its prefix.
    pub address: String,
    /// Where it stands.
    pub status: AddressStatus,
    /// Why; nothing says so yet.
    pub status_detail: String,
    /// How it came about.
    pub config_method: ConfigMethod,
    /// Since when it is there.
    pub timestamps: Option<Lifetime>,
}

/// Where an address stands. A machine tells only of those that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressStatus {
    /// The machine has it.
    #[default]
    #[serde(rename = "IP_ADDRESS_STATUS_CONFIGURED")]
    Configured,
}

/// How an address came about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigMethod {
    /// Nothing was said.
    #[default]
    #[serde(rename = "IP_ADDRESS_CONFIG_METHOD_UNSPECIFIED")]
    Unspecified,
    /// Somebody wrote it down.
    #[serde(rename = "IP_ADDRESS_CONFIG_METHOD_STATIC")]
    Static,
    /// A server lent it.
    #[serde(rename = "IP_ADDRESS_CONFIG_METHOD_DYNAMIC")]
    Dynamic,
}

/// A USB device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usb {
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
    /// Such as `ttyUSB0`; may be empty.
    pub device_name: String,
    /// Since when it is there.
    pub timestamps: Option<Lifetime>,
}

/// A graphics processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
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
    /// Since when it is there.
    pub timestamps: Option<Lifetime>,
}

/// A part that is known again when it is told of once more.
trait Part: PartialEq {
    /// Whether it is the same part, whatever else is told of it now.
    fn is(&self, other: &Self) -> bool;

    /// Since when it is there.
    fn lifetime(&mut self) -> &mut Option<Lifetime>;

    /// Takes what is known of it and never said.
    fn take(&mut self, known: &Self);

    /// Lets its own parts follow those of what it was before.
    fn inner(&mut self, _before: Option<&Self>, _now: Time) {}
}

/// Parts that are as they were keep their times; the others changed now, or came now.
fn follow<P: Part>(parts: &mut [P], before: &[P], now: Time) {
    for part in parts {
        let old = before.iter().find(|old| old.is(part));
        part.inner(old, now);
        if let Some(old) = old {
            part.take(old);
            if part == old {
                continue;
            }
        }
        let lifetime = part.lifetime();
        let created_at = lifetime.map_or(now, |lifetime| lifetime.created_at);
        *lifetime = Some(Lifetime {
            created_at,
            updated_at: now,
        });
    }
}

impl Part for Storage {
    fn is(&self, other: &Self) -> bool {
        self.device_name == other.device_name
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn take(&mut self, known: &Self) {
        self.timestamps = known.timestamps;
    }
}

impl Part for Nic {
    fn is(&self, other: &Self) -> bool {
        self.device_name == other.device_name
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn take(&mut self, known: &Self) {
        self.timestamps = known.timestamps;
    }

    fn inner(&mut self, before: Option<&Self>, now: Time) {
        let links = before.map(|before| slice::from_ref(&before.link_state));
        let addresses = before.map(|before| before.ipaddresses.as_slice());
        let link = slice::from_mut(&mut self.link_state);
        follow(link, links.unwrap_or_default(), now);
        follow(&mut self.ipaddresses, addresses.unwrap_or_default(), now);
    }
}

impl Part for LinkState {
    fn is(&self, _other: &Self) -> bool {
        true
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn take(&mut self, known: &Self) {
        self.timestamps = known.timestamps;
    }
}

impl Part for Address {
    fn is(&self, other: &Self) -> bool {
        self.address == other.address
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn take(&mut self, known: &Self) {
        self.resource_id = known.resource_id;
        self.timestamps = known.timestamps;
    }
}

impl Part for Usb {
    fn is(&self, other: &Self) -> bool {
        (self.bus, self.addr) == (other.bus, other.addr)
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn take(&mut self, known: &Self) {
        self.timestamps = known.timestamps;
    }
}

impl Part for Gpu {
    fn is(&self, other: &Self) -> bool {
        self.pci_id == other.pci_id
    }

    fn lifetime(&mut self) -> &mut Option<Lifetime> {
        &mut self.timestamps
    }

    fn take(&mut self, known: &Self) {
        self.timestamps = known.timestamps;
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
        Lifetime {
            created_at: at(created),
            updated_at: at(updated),
        }
    }

    fn nic(name: &str, link: Link, addresses: &[&str]) -> Nic {
        let address = |address: &&str| Address {
            address: (*address).to_owned(),
            ..Address::default()
        };
        Nic {
            device_name: name.to_owned(),
            link_state: LinkState {
                kind: link,
                timestamps: None,
            },
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
        Hardware {
            storages: vec![disk],
            nics,
            ..Hardware::default()
        }
    }

    /// What follows, with new ids from a number on; and how many are new.
    fn followed(mut said: Hardware, before: Option<&Hardware>, hour: i64) -> (Hardware, u32) {
        let mut new = 0;
        for address in said.follow(before, at(hour)) {
            address.resource_id = Some(IpAddressId::nth(u32::try_from(hour).expect("small") + new));
            new += 1;
        }
        (said, new)
    }

    #[test]
    fn what_is_told_once_more_keeps_its_times_and_ids() {
        let said = machine(vec![nic("eth0", Link::Up, &["10.0.0.1/24", "10.0.0.2/24"])]);
        let (first, new) = followed(said.clone(), None, 0);
        assert_eq!(new, 2);
        assert_eq!(first.storages[0].timestamps, Some(times(0, 0)));
        assert_eq!(first.nics[0].link_state.timestamps, Some(times(0, 0)));
        let (again, new) = followed(said, Some(&first), 5);
        assert_eq!((again, new), (first, 0));
    }

    #[test]
    fn a_part_changes_with_its_own_parts_and_no_other_does() {
        let said = vec![
            nic("eth0", Link::Up, &["10.0.0.1/24"]),
            nic("eth1", Link::Up, &[]),
        ];
        let (first, _) = followed(machine(said), None, 0);
        let said = vec![
            nic("eth1", Link::Up, &[]),
            nic("eth0", Link::Down, &["10.0.0.9/24", "10.0.0.1/24"]),
            nic("eth2", Link::Up, &[]),
        ];
        let (later, new) = followed(machine(said), Some(&first), 5);
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
        let said = machine(vec![nic("eth0", Link::Up, &["10.0.0.1/24"])]);
        let (known, _) = followed(said, None, 0);
        let times =
            json!({"createdAt": "2027-01-15T08:00:00Z", "updatedAt": "2027-01-15T08:00:00Z"});
        let shown = serde_json::to_value(&known.nics).expect("JSON");
        let address = json!({
            "resourceId": IpAddressId::nth(0).to_string(), "address": "10.0.0.1/24",
            "status": "IP_ADDRESS_STATUS_CONFIGURED", "statusDetail": "",
            "configMethod": "IP_ADDRESS_CONFIG_METHOD_UNSPECIFIED", "timestamps": times,
        });
        assert_eq!(
            shown,
            json!([{
                "deviceName": "eth0", "pciIdentifier": "", "macAddr": "", "sriovEnabled": false, "sriovVfsNum": 0,
                "sriovVfsTotal": 0, "mtu": 0, "bmcInterface": false, "ipaddresses": [address],
                "linkState": {"type": "NETWORK_INTERFACE_LINK_STATE_UP", "timestamps": times}, "timestamps": times,
            }])
        );
        let disks = serde_json::to_value(&known.storages).expect("JSON");
        assert_eq!(disks[0]["capacityBytes"], "18446744073709551615");
        let read: Vec<Storage> = serde_json::from_value(disks).expect("disks");
        assert_eq!(read, known.storages);
        let read: Vec<Nic> = serde_json::from_value(shown).expect("interfaces");
        assert_eq!(read, known.nics);
    }
}
