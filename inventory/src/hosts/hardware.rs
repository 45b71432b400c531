//! What hosts are made of, as it is shown.

use evenkeel_api::Timestamps;
use evenkeel_api::hardware as wire;
use evenkeel_api::host::HostResource;
use evenkeel_api::number::U64;
use evenkeel_api::out_of_band::BaremetalControllerKind;
use evenkeel_domain::hardware::{
    Address, AddressStatus, ConfigMethod, Controller, Gpu, Hardware, Lifetime, Link, LinkState,
    Nic, Storage, Usb,
};

/// A host with what it is made of.
pub fn made_of(hardware: Hardware, host: HostResource) -> HostResource {
    HostResource {
        memory_bytes: U64(hardware.memory_bytes),
        cpu_model: hardware.cpu_model,
        cpu_capabilities: hardware.cpu_capabilities,
        cpu_architecture: hardware.cpu_architecture,
        cpu_topology: hardware.cpu_topology,
        cpu_sockets: hardware.cpu_sockets,
        cpu_cores: hardware.cpu_cores,
        cpu_threads: hardware.cpu_threads,
        product_name: hardware.product_name,
        bios_version: hardware.bios_version,
        bios_release_date: hardware.bios_release_date,
        bios_vendor: hardware.bios_vendor,
        bmc_kind: controller(hardware.controller),
        bmc_ip: hardware.controller_ip,
        host_storages: hardware.storages.into_iter().map(storage).collect(),
        host_nics: hardware.nics.into_iter().map(nic).collect(),
        host_usbs: hardware.usbs.into_iter().map(usb).collect(),
        host_gpus: hardware.gpus.into_iter().map(gpu).collect(),
        ..host
    }
}

const fn controller(controller: Option<Controller>) -> BaremetalControllerKind {
    use BaremetalControllerKind as Wire;
    match controller {
        None => Wire::Unspecified,
        Some(Controller::None) => Wire::None,
        Some(Controller::Ipmi) => Wire::Ipmi,
        Some(Controller::Vpro) => Wire::Vpro,
        Some(Controller::Pdu) => Wire::Pdu,
    }
}

fn storage(storage: Storage) -> wire::HostStorage {
    wire::HostStorage {
        wwid: storage.wwid,
        serial: storage.serial,
        vendor: storage.vendor,
        model: storage.model,
        capacity_bytes: U64(storage.capacity_bytes.0),
        device_name: storage.device_name,
        timestamps: timestamps(storage.timestamps),
    }
}

fn nic(nic: Nic) -> wire::HostNic {
    wire::HostNic {
        device_name: nic.device_name,
        pci_identifier: nic.pci_identifier,
        mac_addr: nic.mac_addr,
        sriov_enabled: nic.sriov_enabled,
        sriov_vfs_num: nic.sriov_vfs_num,
        sriov_vfs_total: nic.sriov_vfs_total,
        mtu: nic.mtu,
        link_state: link_state(nic.link_state),
        bmc_interface: nic.bmc_interface,
        ipaddresses: nic.ipaddresses.into_iter().map(address).collect(),
        timestamps: timestamps(nic.timestamps),
    }
}

fn link_state(link: LinkState) -> wire::LinkState {
    use wire::LinkStateKind as Wire;
    wire::LinkState {
        kind: match link.kind {
            Link::Unspecified => Wire::Unspecified,
            Link::Up => Wire::Up,
            Link::Down => Wire::Down,
        },
        timestamps: timestamps(link.timestamps),
    }
}

fn address(address: Address) -> wire::IpAddress {
    use wire::IpAddressConfigMethod as Wire;
    wire::IpAddress {
        resource_id: address
            .resource_id
            .map(|id| id.to_string())
            .unwrap_or_default(),
        address: address.address,
        status: match address.status {
            AddressStatus::Configured => wire::IpAddressStatus::Configured,
        },
        status_detail: address.status_detail,
        config_method: match address.config_method {
            ConfigMethod::Unspecified => Wire::Unspecified,
            ConfigMethod::Static => Wire::Static,
            ConfigMethod::Dynamic => Wire::Dynamic,
        },
        timestamps: timestamps(address.timestamps),
    }
}

fn usb(usb: Usb) -> wire::HostUsb {
    wire::HostUsb {
        id_vendor: usb.id_vendor,
        id_product: usb.id_product,
        bus: usb.bus,
        addr: usb.addr,
        class: usb.class,
        serial: usb.serial,
        device_name: usb.device_name,
        timestamps: timestamps(usb.timestamps),
    }
}

fn gpu(gpu: Gpu) -> wire::HostGpu {
    wire::HostGpu {
        pci_id: gpu.pci_id,
        product: gpu.product,
        vendor: gpu.vendor,
        description: gpu.description,
        device_name: gpu.device_name,
        capabilities: gpu.capabilities,
        timestamps: timestamps(gpu.timestamps),
    }
}

fn timestamps(lifetime: Option<Lifetime>) -> Option<Timestamps> {
    lifetime.map(|lifetime| Timestamps::new(lifetime.created_at, lifetime.updated_at))
}
