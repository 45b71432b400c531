//! What one of the ancestor's agents says that its machine is made of. What is too long is cut, what is too many is
//! left out, what makes no sense as well: a machine is shown as far as it can be.

use std::net::IpAddr;

use evenkeel_domain::hardware::{
    Address, Capacity, ConfigMethod, Controller, Gpu, Hardware, Link, LinkState, Nic, Storage, Usb,
};
use evenkeel_domain::text::{cut, storable};
use evenkeel_proto::hostmgr::{
    BmInfo, CpuTopology, HwInfo, IpAddress, SystemCpu, SystemDisk, SystemGpu, SystemInfo,
    SystemNetwork, SystemUsb,
};
use serde_json::{Value, json};

/// The longest text, in bytes.
const MAX_TEXT: usize = 128;

/// The most things that processors can do, and the longest text of all of them in bytes.
const MAX_FEATURES: usize = 1_000;
const MAX_CAPABILITIES: usize = 8_192;

/// The most things that a graphics processor can do.
const MAX_GPU_FEATURES: usize = 64;

/// The most interfaces of a USB device.
const MAX_USB_INTERFACES: usize = 32;

/// The most cores whose arrangement is kept, with their groups and sockets.
const MAX_ARRANGED: usize = 4_096;

/// What a machine says that it is made of; none if it says nothing of that.
pub fn hardware(info: &SystemInfo) -> Option<Hardware> {
    let said = info.hw_info.as_ref()?;
    let bios = info.bios_info.as_ref();
    let known = Hardware {
        serial_number: text(&said.serial_num),
        memory_bytes: said.memory.as_ref().map_or(0, |memory| memory.size),
        product_name: text(&said.product_name),
        bios_version: bios.map(|bios| text(&bios.version)).unwrap_or_default(),
        bios_release_date: bios
            .map(|bios| text(&bios.release_date))
            .unwrap_or_default(),
        bios_vendor: bios.map(|bios| text(&bios.vendor)).unwrap_or_default(),
        ..parts(said)
    };
    let known = match &said.cpu {
        None => known,
        Some(cpu) => with_cpu(known, cpu),
    };
    Some(match &info.bm_ctl_info {
        None => known,
        Some(controller) => with_controller(known, controller),
    })
}

/// The lists of parts.
fn parts(said: &HwInfo) -> Hardware {
    let disks = said.storage.iter().flat_map(|storage| &storage.disk);
    let gpus = said.gpu.iter().filter(|gpu| {
        // Older agents tell of one that is not there.
        !gpu.pci_id.is_empty() || !gpu.name.is_empty()
    });
    let most = Hardware::MAX_PARTS;
    let mut left = Hardware::MAX_ADDRESSES_OF_ALL;
    let nics = said.network.iter().take(most).map(|said| {
        let kept = nic(said, left);
        left -= kept.ipaddresses.len();
        kept
    });
    Hardware {
        storages: disks.take(most).map(storage).collect(),
        nics: nics.collect(),
        usbs: said.usb.iter().take(most).map(usb).collect(),
        gpus: gpus.take(most).map(gpu).collect(),
        ..Hardware::default()
    }
}

fn with_cpu(known: Hardware, cpu: &SystemCpu) -> Hardware {
    let features = cpu.features.iter().take(MAX_FEATURES);
    let features: Vec<_> = features.map(|feature| text(feature)).collect();
    Hardware {
        cpu_model: text(&cpu.model),
        cpu_capabilities: cut(&features.join(","), MAX_CAPABILITIES),
        cpu_architecture: text(&cpu.arch),
        cpu_topology: cpu.cpu_topology.as_ref().map_or_else(String::new, topology),
        cpu_sockets: cpu.sockets,
        cpu_cores: cpu.cores,
        cpu_threads: cpu.threads,
        ..known
    }
}

/// How processors are arranged, as the ancestor's clients read it; empty if that is too much.
fn topology(said: &CpuTopology) -> String {
    let groups = || said.sockets.iter().flat_map(|socket| &socket.core_groups);
    let cores: usize = groups().map(|group| group.core_list.len()).sum();
    if said.sockets.len() + groups().count() + cores > MAX_ARRANGED {
        return String::new();
    }
    let sockets = said.sockets.iter().map(|socket| {
        let groups = socket.core_groups.iter().map(
            |group| json!({"core_type": text(&group.core_type), "core_list": group.core_list}),
        );
        json!({"socket_id": socket.socket_id, "core_groups": groups.collect::<Value>()})
    });
    json!({"sockets": sockets.collect::<Value>()}).to_string()
}

/// The numbers are those of the ancestor's enumeration.
fn with_controller(known: Hardware, said: &BmInfo) -> Hardware {
    let address = said.bmc_info.as_ref().map(|info| text(&info.bm_ip));
    Hardware {
        controller: match said.bm_type {
            0 => Some(Controller::Ipmi),
            2 => Some(Controller::Pdu),
            3 => Some(Controller::Vpro),
            5 => Some(Controller::None),
            _ => None,
        },
        controller_ip: address.unwrap_or_default(),
        ..known
    }
}

fn storage(said: &SystemDisk) -> Storage {
    Storage {
        wwid: text(&said.wwid),
        serial: text(&said.serial_number),
        vendor: text(&said.vendor),
        model: text(&said.model),
        capacity_bytes: Capacity(said.size),
        device_name: text(&said.name),
        timestamps: None,
    }
}

/// A network interface with at most so many addresses.
fn nic(said: &SystemNetwork, most: usize) -> Nic {
    let most = most.min(Hardware::MAX_ADDRESSES);
    let addresses = said.ip_addresses.iter().filter_map(address);
    Nic {
        device_name: text(&said.name),
        pci_identifier: text(&said.pci_id),
        mac_addr: text(&said.mac),
        sriov_enabled: said.sriovenabled,
        sriov_vfs_num: said.sriovnumvfs,
        sriov_vfs_total: said.sriov_vfs_total,
        mtu: said.mtu,
        link_state: LinkState {
            kind: if said.link_state {
                Link::Up
            } else {
                Link::Down
            },
            timestamps: None,
        },
        bmc_interface: said.bmc_net,
        ipaddresses: addresses.take(most).collect(),
        timestamps: None,
    }
}

/// An address with the length of its prefix; none if it is not one.
fn address(said: &IpAddress) -> Option<Address> {
    let address: IpAddr = said.ip_address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let bits = said.network_prefix_bits;
    (0..=longest).contains(&bits).then(|| Address {
        address: format!("{address}/{bits}"),
        config_method: match said.config_mode {
            1 => ConfigMethod::Static,
            2 => ConfigMethod::Dynamic,
            _ => ConfigMethod::Unspecified,
        },
        ..Address::default()
    })
}

fn usb(said: &SystemUsb) -> Usb {
    let interfaces = said.interfaces.iter().take(MAX_USB_INTERFACES);
    let mut classes: Vec<_> = interfaces.map(|one| one.class.as_str()).collect();
    classes.dedup();
    Usb {
        id_vendor: text(&said.idvendor),
        id_product: text(&said.idproduct),
        bus: said.bus,
        addr: said.addr,
        // Many devices have a class for each of their interfaces and none of their own.
        class: match said.class.as_str() {
            "" => text(&classes.join(",")),
            class => text(class),
        },
        serial: text(&said.serial),
        device_name: String::new(),
        timestamps: None,
    }
}

fn gpu(said: &SystemGpu) -> Gpu {
    let features = said.features.iter().take(MAX_GPU_FEATURES);
    Gpu {
        pci_id: text(&said.pci_id),
        product: text(&said.product),
        vendor: text(&said.vendor),
        description: text(&said.description),
        device_name: text(&said.name),
        capabilities: features.map(|feature| text(feature)).collect(),
        timestamps: None,
    }
}

/// A text as it is kept.
fn text(said: &str) -> String {
    cut(&storable(said), MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::hostmgr::{BmcInfo, CoreGroup, Interfaces, Socket};

    use super::*;

    fn of(said: HwInfo) -> Hardware {
        let info = SystemInfo {
            hw_info: Some(said),
            ..SystemInfo::default()
        };
        hardware(&info).expect("something was said")
    }

    #[test]
    fn who_says_nothing_of_the_machine_says_nothing() {
        assert_eq!(hardware(&SystemInfo::default()), None);
    }

    #[test]
    fn what_is_too_long_is_cut_and_what_is_too_many_is_left_out() {
        let nic = SystemNetwork {
            name: "e\0".repeat(1_000),
            ip_addresses: vec![
                IpAddress {
                    ip_address: "::1".into(),
                    network_prefix_bits: 128,
                    config_mode: 7,
                };
                1_000
            ],
            ..SystemNetwork::default()
        };
        let known = of(HwInfo {
            network: vec![nic; 1_000],
            cpu: Some(SystemCpu {
                features: vec!["f".repeat(1_000); 100_000],
                ..SystemCpu::default()
            }),
            ..HwInfo::default()
        });
        assert_eq!(known.nics.len(), Hardware::MAX_PARTS);
        assert!(known.nics[0].device_name.len() <= MAX_TEXT);
        assert!(!known.nics[0].device_name.contains('\0'));
        assert_eq!(known.nics[0].ipaddresses.len(), Hardware::MAX_ADDRESSES);
        assert!(known.cpu_capabilities.len() <= MAX_CAPABILITIES);
    }

    #[test]
    fn all_interfaces_together_have_so_many_addresses_and_the_first_come_first() {
        let address = IpAddress {
            ip_address: "::1".into(),
            network_prefix_bits: 128,
            config_mode: 2,
        };
        let nic = |addresses: usize| SystemNetwork {
            ip_addresses: vec![address.clone(); addresses],
            ..SystemNetwork::default()
        };
        // One that has none takes nothing from the others.
        let mut network = vec![nic(24), nic(0)];
        network.extend(vec![nic(64); 100]);
        let known = of(HwInfo {
            network,
            ..HwInfo::default()
        });
        let counts = known.nics.iter().map(|nic| nic.ipaddresses.len());
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts.len(), 102, "every interface is kept");
        assert_eq!(counts[..3], [24, 0, 64]);
        assert_eq!(counts[16..19], [64, 40, 0]);
        let all: usize = counts.iter().sum();
        assert_eq!(all, Hardware::MAX_ADDRESSES_OF_ALL);
    }

    #[test]
    fn an_address_makes_sense_or_is_left_out() {
        for (said, bits, wanted) in [
            ("192.168.1.12", 24, Some("192.168.1.12/24")),
            ("FE80::1", 64, Some("fe80::1/64")),
            ("::1", 128, Some("::1/128")),
            ("192.168.1.12", 33, None),
            ("192.168.1.12", -1, None),
            ("localhost", 8, None),
            ("", 0, None),
        ] {
            let said = IpAddress {
                ip_address: said.to_owned(),
                network_prefix_bits: bits,
                config_mode: 2,
            };
            let known = address(&said).map(|address| address.address);
            assert_eq!(known.as_deref(), wanted, "{said:?}");
        }
    }

    #[test]
    fn processors_are_arranged_as_they_say_unless_that_is_too_much() {
        let group = |cores: u32| CoreGroup {
            core_type: "P-Core".into(),
            core_list: (0..cores).collect(),
        };
        let arranged = |cores| CpuTopology {
            sockets: vec![Socket {
                socket_id: 1,
                core_groups: vec![group(cores)],
            }],
        };
        let known: Value = serde_json::from_str(&topology(&arranged(2))).expect("JSON");
        let group = json!({"core_type": "P-Core", "core_list": [0, 1]});
        let wanted = json!({"sockets": [{"socket_id": 1, "core_groups": [group]}]});
        assert_eq!(known, wanted);
        assert_eq!(topology(&arranged(1_000_000)), "");
    }

    #[test]
    fn a_device_without_a_class_has_those_of_its_interfaces() {
        let interface = |class: &str| Interfaces {
            class: class.to_owned(),
        };
        let said = SystemUsb {
            interfaces: ["Video", "Video", "Audio"].map(interface).to_vec(),
            ..SystemUsb::default()
        };
        assert_eq!(usb(&said).class, "Video,Audio");
        let class = "Hub".to_owned();
        assert_eq!(usb(&SystemUsb { class, ..said }).class, "Hub");
    }

    #[test]
    fn a_controller_is_known_by_its_number_and_a_graphics_processor_by_its_place() {
        use Controller as C;
        let kinds = [0, 1, 2, 3, 4, 5, 99].map(|bm_type| {
            let said = BmInfo {
                bm_type,
                bmc_info: Some(BmcInfo {
                    bm_ip: "10.0.0.9".into(),
                }),
            };
            with_controller(Hardware::default(), &said).controller
        });
        assert_eq!(
            kinds,
            [
                Some(C::Ipmi),
                None,
                Some(C::Pdu),
                Some(C::Vpro),
                None,
                Some(C::None),
                None
            ]
        );
        let known = of(HwInfo {
            gpu: vec![SystemGpu::default()],
            ..HwInfo::default()
        });
        assert!(known.gpus.is_empty());
    }
}
