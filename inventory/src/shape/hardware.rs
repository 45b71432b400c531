//! REST form of the hardware of hosts.

use evenkeel_api::hardware::Parts;
use evenkeel_api::host::HostResource;
use evenkeel_api::number::U64;
use evenkeel_api::out_of_band::BaremetalControllerKind;
use evenkeel_domain::hardware::Controller;
use evenkeel_store::hardware::RenderedHardware;

/// Adds the hardware to a host. Parts are passed on as JSON, as the database has them.
pub fn with_hardware(hardware: RenderedHardware, host: HostResource) -> HostResource {
    let RenderedHardware { hardware: of_itself, parts } = hardware;
    HostResource {
        memory_bytes: U64(of_itself.memory_bytes),
        cpu_model: of_itself.cpu_model,
        cpu_capabilities: of_itself.cpu_capabilities,
        cpu_architecture: of_itself.cpu_architecture,
        cpu_topology: of_itself.cpu_topology,
        cpu_sockets: of_itself.cpu_sockets,
        cpu_cores: of_itself.cpu_cores,
        cpu_threads: of_itself.cpu_threads,
        product_name: of_itself.product_name,
        product_vendor: of_itself.product_vendor,
        bios_version: of_itself.bios_version,
        bios_release_date: of_itself.bios_release_date,
        bios_vendor: of_itself.bios_vendor,
        bmc_kind: controller(of_itself.controller),
        bmc_ip: of_itself.controller_ip,
        host_storages: Parts::Raw(parts.storages),
        host_nics: Parts::Raw(parts.nics),
        host_usbs: Parts::Raw(parts.usbs),
        host_gpus: Parts::Raw(parts.gpus),
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
