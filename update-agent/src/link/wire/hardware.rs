//! Messages about the hardware of the machine.

use evenkeel_proto::agent as pb;

use crate::facts::{Disk, Firmware, GraphicsProcessor, Hardware, NetworkInterface};

pub(super) fn hardware_message(hardware: &Hardware) -> pb::Hardware {
    let processors = &hardware.processors;
    let interfaces = hardware.network_interfaces.iter().map(network_interface_message);
    let graphics = hardware.graphics_processors.iter().map(graphics_processor_message);
    pb::Hardware {
        cpu_model: processors.model.clone(),
        cpu_architecture: processors.architecture.clone(),
        cpu_sockets: processors.sockets,
        cpu_cores: processors.cores,
        cpu_threads: processors.threads,
        memory_bytes: hardware.memory_bytes,
        product_name: hardware.product_name.clone(),
        product_vendor: hardware.product_vendor.clone(),
        firmware: Some(firmware_message(&hardware.firmware)),
        disks: hardware.disks.iter().map(disk_message).collect(),
        network_interfaces: interfaces.collect(),
        graphics_processors: graphics.collect(),
    }
}

fn firmware_message(firmware: &Firmware) -> pb::Firmware {
    pb::Firmware {
        vendor: firmware.vendor.clone(),
        version: firmware.version.clone(),
        release_date: firmware.release_date.clone(),
    }
}

fn disk_message(disk: &Disk) -> pb::Disk {
    pb::Disk {
        name: disk.name.clone(),
        model: disk.model.clone(),
        vendor: disk.vendor.clone(),
        serial: disk.serial.clone(),
        wwid: disk.wwid.clone(),
        size_bytes: disk.size_bytes,
    }
}

fn network_interface_message(interface: &NetworkInterface) -> pb::NetworkInterface {
    let link_state = match interface.has_link {
        None => pb::LinkState::Unspecified,
        Some(true) => pb::LinkState::Up,
        Some(false) => pb::LinkState::Down,
    };
    pb::NetworkInterface {
        name: interface.name.clone(),
        pci_address: interface.pci_address.clone(),
        mac_address: interface.mac_address.clone(),
        mtu: interface.mtu,
        link_state: link_state.into(),
        addresses: interface.addresses.clone(),
        virtual_functions: interface.virtual_functions,
        max_virtual_functions: interface.max_virtual_functions,
    }
}

fn graphics_processor_message(processor: &GraphicsProcessor) -> pb::GraphicsProcessor {
    pb::GraphicsProcessor {
        pci_address: processor.pci_address.clone(),
        vendor: processor.vendor.clone(),
        product: processor.product.clone(),
        device_name: processor.device_name.clone(),
    }
}
