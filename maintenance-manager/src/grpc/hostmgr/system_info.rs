//! Converts the hardware information of EIM's agents. Long texts are cut, and excess or invalid
//! entries are left out, so that a machine is always shown as far as possible.

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

/// The maximum length of a text, in bytes.
const MAX_TEXT_BYTES: usize = 128;

/// The maximum number of processor features, and the maximum length of all together in bytes.
const MAX_FEATURES: usize = 1_000;
const MAX_CAPABILITIES_BYTES: usize = 8_192;

/// The maximum number of features of a graphics processor.
const MAX_GPU_FEATURES: usize = 64;

/// The maximum number of interfaces of a USB device.
const MAX_USB_INTERFACES: usize = 32;

/// The maximum number of cores, core groups and sockets in a stored topology.
const MAX_TOPOLOGY_ENTRIES: usize = 4_096;

/// Parses the hardware of a machine; `None` if the message has no hardware information.
pub fn parse_hardware(info: &SystemInfo) -> Option<Hardware> {
    let message = info.hw_info.as_ref()?;
    let bios = info.bios_info.as_ref();
    let parsed = Hardware {
        serial_number: truncate(&message.serial_num),
        memory_bytes: message.memory.as_ref().map_or(0, |memory| memory.size),
        product_name: truncate(&message.product_name),
        bios_version: bios.map(|bios| truncate(&bios.version)).unwrap_or_default(),
        bios_release_date: bios.map(|bios| truncate(&bios.release_date)).unwrap_or_default(),
        bios_vendor: bios.map(|bios| truncate(&bios.vendor)).unwrap_or_default(),
        ..parse_parts(message)
    };
    let parsed = match &message.cpu {
        None => parsed,
        Some(cpu) => with_cpu(parsed, cpu),
    };
    Some(match &info.bm_ctl_info {
        None => parsed,
        Some(controller) => with_controller(parsed, controller),
    })
}

/// Parses the lists of parts.
fn parse_parts(message: &HwInfo) -> Hardware {
    let disks = message.storage.iter().flat_map(|storage| &storage.disk);
    let gpus = message.gpu.iter().filter(|gpu| {
        // Older agents send an empty entry if there is no graphics processor.
        !gpu.pci_id.is_empty() || !gpu.name.is_empty()
    });
    let max = Hardware::MAX_PARTS;
    let mut left = Hardware::MAX_TOTAL_ADDRESSES;
    let nics = message.network.iter().take(max).map(|message| {
        let parsed = nic(message, left);
        left -= parsed.ipaddresses.len();
        parsed
    });
    Hardware {
        storages: disks.take(max).map(storage).collect(),
        nics: nics.collect(),
        usbs: message.usb.iter().take(max).map(usb).collect(),
        gpus: gpus.take(max).map(gpu).collect(),
        ..Hardware::default()
    }
}

fn with_cpu(parsed: Hardware, cpu: &SystemCpu) -> Hardware {
    let features = cpu.features.iter().take(MAX_FEATURES);
    let features: Vec<_> = features.map(|feature| truncate(feature)).collect();
    Hardware {
        cpu_model: truncate(&cpu.model),
        cpu_capabilities: cut(&features.join(","), MAX_CAPABILITIES_BYTES),
        cpu_architecture: truncate(&cpu.arch),
        cpu_topology: cpu.cpu_topology.as_ref().map_or_else(String::new, render_topology),
        cpu_sockets: cpu.sockets,
        cpu_cores: cpu.cores,
        cpu_threads: cpu.threads,
        ..parsed
    }
}

/// The processor topology as JSON for EIM's clients; empty if it is too large.
fn render_topology(message: &CpuTopology) -> String {
    let groups = || message.sockets.iter().flat_map(|socket| &socket.core_groups);
    let cores: usize = groups().map(|group| group.core_list.len()).sum();
    if message.sockets.len() + groups().count() + cores > MAX_TOPOLOGY_ENTRIES {
        return String::new();
    }
    let sockets = message.sockets.iter().map(|socket| {
        let groups = socket.core_groups.iter().map(
            |group| json!({"core_type": truncate(&group.core_type), "core_list": group.core_list}),
        );
        json!({"socket_id": socket.socket_id, "core_groups": groups.collect::<Value>()})
    });
    json!({"sockets": sockets.collect::<Value>()}).to_string()
}

/// The numbers are those of EIM's enumeration.
fn with_controller(parsed: Hardware, message: &BmInfo) -> Hardware {
    let address = message.bmc_info.as_ref().map(|info| truncate(&info.bm_ip));
    Hardware {
        controller: match message.bm_type {
            0 => Some(Controller::Ipmi),
            2 => Some(Controller::Pdu),
            3 => Some(Controller::Vpro),
            5 => Some(Controller::None),
            _ => None,
        },
        controller_ip: address.unwrap_or_default(),
        ..parsed
    }
}

fn storage(message: &SystemDisk) -> Storage {
    Storage {
        wwid: truncate(&message.wwid),
        serial: truncate(&message.serial_number),
        vendor: truncate(&message.vendor),
        model: truncate(&message.model),
        capacity_bytes: Capacity(message.size),
        device_name: truncate(&message.name),
        timestamps: None,
    }
}

/// Parses a network interface with at most `max` addresses.
fn nic(message: &SystemNetwork, max: usize) -> Nic {
    let max = max.min(Hardware::MAX_ADDRESSES);
    let addresses = message.ip_addresses.iter().filter_map(address);
    Nic {
        device_name: truncate(&message.name),
        pci_identifier: truncate(&message.pci_id),
        mac_addr: truncate(&message.mac),
        sriov_enabled: message.sriovenabled,
        sriov_vfs_num: message.sriovnumvfs,
        sriov_vfs_total: message.sriov_vfs_total,
        mtu: message.mtu,
        link_state: LinkState {
            kind: if message.link_state { Link::Up } else { Link::Down },
            timestamps: None,
        },
        bmc_interface: message.bmc_net,
        ipaddresses: addresses.take(max).collect(),
        timestamps: None,
    }
}

/// Parses an address with its prefix length; `None` if it is invalid.
fn address(message: &IpAddress) -> Option<Address> {
    let address: IpAddr = message.ip_address.parse().ok()?;
    let max_bits = if address.is_ipv4() { 32 } else { 128 };
    let bits = message.network_prefix_bits;
    (0..=max_bits).contains(&bits).then(|| Address {
        address: format!("{address}/{bits}"),
        config_method: match message.config_mode {
            1 => ConfigMethod::Static,
            2 => ConfigMethod::Dynamic,
            _ => ConfigMethod::Unspecified,
        },
        ..Address::default()
    })
}

fn usb(message: &SystemUsb) -> Usb {
    let interfaces = message.interfaces.iter().take(MAX_USB_INTERFACES);
    let mut classes: Vec<_> = interfaces.map(|one| one.class.as_str()).collect();
    classes.dedup();
    Usb {
        id_vendor: truncate(&message.idvendor),
        id_product: truncate(&message.idproduct),
        bus: message.bus,
        addr: message.addr,
        // Many devices have no class of their own, only one for each interface.
        class: match message.class.as_str() {
            "" => truncate(&classes.join(",")),
            class => truncate(class),
        },
        serial: truncate(&message.serial),
        device_name: String::new(),
        timestamps: None,
    }
}

fn gpu(message: &SystemGpu) -> Gpu {
    let features = message.features.iter().take(MAX_GPU_FEATURES);
    Gpu {
        pci_id: truncate(&message.pci_id),
        product: truncate(&message.product),
        vendor: truncate(&message.vendor),
        description: truncate(&message.description),
        device_name: truncate(&message.name),
        capabilities: features.map(|feature| truncate(feature)).collect(),
        timestamps: None,
    }
}

/// Cuts a text to its maximum length.
fn truncate(message: &str) -> String {
    cut(&storable(message), MAX_TEXT_BYTES)
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::hostmgr::{BmcInfo, CoreGroup, Interfaces, Socket};

    use super::*;

    fn parse(message: HwInfo) -> Hardware {
        let info = SystemInfo { hw_info: Some(message), ..SystemInfo::default() };
        parse_hardware(&info).expect("there is hardware information")
    }

    #[test]
    fn no_hardware_info_yields_no_hardware() {
        assert_eq!(parse_hardware(&SystemInfo::default()), None);
    }

    #[test]
    fn long_texts_are_cut_and_excess_entries_are_left_out() {
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
        let parsed = parse(HwInfo {
            network: vec![nic; 1_000],
            cpu: Some(SystemCpu {
                features: vec!["f".repeat(1_000); 100_000],
                ..SystemCpu::default()
            }),
            ..HwInfo::default()
        });
        assert_eq!(parsed.nics.len(), Hardware::MAX_PARTS);
        assert!(parsed.nics[0].device_name.len() <= MAX_TEXT_BYTES);
        assert!(!parsed.nics[0].device_name.contains('\0'));
        assert_eq!(parsed.nics[0].ipaddresses.len(), Hardware::MAX_ADDRESSES);
        assert!(parsed.cpu_capabilities.len() <= MAX_CAPABILITIES_BYTES);
    }

    #[test]
    fn addresses_are_limited_over_all_interfaces_and_the_first_win() {
        let address =
            IpAddress { ip_address: "::1".into(), network_prefix_bits: 128, config_mode: 2 };
        let nic = |addresses: usize| SystemNetwork {
            ip_addresses: vec![address.clone(); addresses],
            ..SystemNetwork::default()
        };
        // An interface without addresses takes nothing from the others.
        let mut network = vec![nic(24), nic(0)];
        network.extend(vec![nic(64); 100]);
        let parsed = parse(HwInfo { network, ..HwInfo::default() });
        let counts = parsed.nics.iter().map(|nic| nic.ipaddresses.len());
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts.len(), 102, "every interface is stored");
        assert_eq!(counts[..3], [24, 0, 64]);
        assert_eq!(counts[16..19], [64, 40, 0]);
        let all: usize = counts.iter().sum();
        assert_eq!(all, Hardware::MAX_TOTAL_ADDRESSES);
    }

    #[test]
    fn an_invalid_address_is_left_out() {
        for (message, bits, expected) in [
            ("192.168.1.12", 24, Some("192.168.1.12/24")),
            ("FE80::1", 64, Some("fe80::1/64")),
            ("::1", 128, Some("::1/128")),
            ("192.168.1.12", 33, None),
            ("192.168.1.12", -1, None),
            ("localhost", 8, None),
            ("", 0, None),
        ] {
            let message = IpAddress {
                ip_address: message.to_owned(),
                network_prefix_bits: bits,
                config_mode: 2,
            };
            let parsed = address(&message).map(|address| address.address);
            assert_eq!(parsed.as_deref(), expected, "{message:?}");
        }
    }

    #[test]
    fn the_processor_topology_is_rendered_unless_it_is_too_large() {
        let group =
            |cores: u32| CoreGroup { core_type: "P-Core".into(), core_list: (0..cores).collect() };
        let arranged = |cores| CpuTopology {
            sockets: vec![Socket { socket_id: 1, core_groups: vec![group(cores)] }],
        };
        let parsed: Value = serde_json::from_str(&render_topology(&arranged(2))).expect("JSON");
        let group = json!({"core_type": "P-Core", "core_list": [0, 1]});
        let expected = json!({"sockets": [{"socket_id": 1, "core_groups": [group]}]});
        assert_eq!(parsed, expected);
        assert_eq!(render_topology(&arranged(1_000_000)), "");
    }

    #[test]
    fn a_device_without_a_class_has_those_of_its_interfaces() {
        let interface = |class: &str| Interfaces { class: class.to_owned() };
        let message = SystemUsb {
            interfaces: ["Video", "Video", "Audio"].map(interface).to_vec(),
            ..SystemUsb::default()
        };
        assert_eq!(usb(&message).class, "Video,Audio");
        let class = "Hub".to_owned();
        assert_eq!(usb(&SystemUsb { class, ..message }).class, "Hub");
    }

    #[test]
    fn a_controller_is_identified_by_its_number_and_an_empty_gpu_is_skipped() {
        use Controller as C;
        let kinds = [0, 1, 2, 3, 4, 5, 99].map(|bm_type| {
            let message = BmInfo { bm_type, bmc_info: Some(BmcInfo { bm_ip: "10.0.0.9".into() }) };
            with_controller(Hardware::default(), &message).controller
        });
        assert_eq!(
            kinds,
            [Some(C::Ipmi), None, Some(C::Pdu), Some(C::Vpro), None, Some(C::None), None]
        );
        let parsed = parse(HwInfo { gpu: vec![SystemGpu::default()], ..HwInfo::default() });
        assert!(parsed.gpus.is_empty());
    }
}
