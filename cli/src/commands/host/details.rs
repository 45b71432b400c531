//! Details of a host.

use evenkeel_api::hardware::{HostNic, HostStorage, LinkStateKind};
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::InstanceResource;

use super::{humanize_state, site_label, state_label};
use crate::commands::instance::{
    CONDITION_HEADER, available_updates_cell, condition_row, describe_policy, facts,
};
use crate::commands::site;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::time::{format_time, format_unix_seconds};

pub fn add_details(page: &mut DetailPage, host: &HostResource) {
    page.field("hostname", &host.hostname)
        .field("site", site_label(host))
        .field("state", state_label(host))
        .field("desired", humanize_state(host.desired_state.as_str()))
        .field("status", Cell::status(&host.host_status, host.host_status_indicator))
        .field("since", format_unix_seconds(host.host_status_timestamp))
        .field("uuid", &host.uuid)
        .field("serial", &host.serial_number)
        .field_if("note", &host.note);
    add_node(page, host);
    if let Some(provider) = &host.provider {
        page.field("provider", &provider.name);
    }
    if let Some(instance) = &host.instance {
        add_instance(page, instance);
    }
    add_hardware_summary(page, host);
    page.created(host.timestamps.as_ref());
    site::add_labels(page, &host.metadata, &host.inherited_metadata);
    if let Some(instance) = &host.instance {
        let conditions = instance.conditions.iter().map(condition_row);
        page.table("Conditions:", CONDITION_HEADER, conditions);
        facts::add_fact_tables(page, instance);
    }
    add_hardware_tables(page, host);
}

/// Adds the last contact, the agent and the time of the boot, as far as they are known.
fn add_node(page: &mut DetailPage, host: &HostResource) {
    if let Some(at) = host.last_contact {
        page.field("last contact", format_time(at));
    }
    page.field_if("agent", &host.agent_version);
    if let Some(at) = host.boot_time {
        page.field("booted", format_time(at));
    }
}

fn add_instance(page: &mut DetailPage, instance: &InstanceResource) {
    let os = instance.os.as_ref().map(|os| os.name.clone());
    page.field("instance", &instance.resource_id)
        .field("os", os.unwrap_or_default())
        .field("policy", describe_policy(instance))
        .field("update", Cell::status(&instance.update_status, instance.update_status_indicator))
        .field("available", available_updates_cell(instance));
    facts::add_facts(page, instance);
}

/// Adds the hardware summary, as far as the node has reported it.
fn add_hardware_summary(page: &mut DetailPage, host: &HostResource) {
    let product = [host.product_vendor.as_str(), &host.product_name];
    let product: Vec<_> = product.into_iter().filter(|part| !part.is_empty()).collect();
    page.field_if("product", &product.join(" "));
    if host.cpu_cores > 0 {
        let cores = match host.cpu_cores {
            1 => "1 core".to_owned(),
            cores => format!("{cores} cores"),
        };
        let text = [host.cpu_model.as_str(), &host.cpu_architecture, &cores];
        let text: Vec<_> = text.into_iter().filter(|part| !part.is_empty()).collect();
        page.field("processor", text.join(", "));
    }
    if host.memory_bytes.0 > 0 {
        page.field("memory", format_bytes(host.memory_bytes.0));
    }
    let firmware = [host.bios_vendor.as_str(), &host.bios_version, &host.bios_release_date];
    let firmware: Vec<_> = firmware.into_iter().filter(|part| !part.is_empty()).collect();
    page.field_if("firmware", &firmware.join(" "));
}

fn add_hardware_tables(page: &mut DetailPage, host: &HostResource) {
    page.table(
        "Network:",
        &["DEVICE", "ADDRESS", "LINK", "IP"],
        host.host_nics.iter().map(nic_row),
    )
    .table(
        "Disks:",
        &["DEVICE", "SIZE", "MODEL", "SERIAL"],
        host.host_storages.iter().map(disk_row),
    )
    .table(
        "Graphics:",
        &["DEVICE", "PRODUCT", "VENDOR"],
        host.host_gpus.iter().map(|gpu| cells![&gpu.device_name, &gpu.product, &gpu.vendor]),
    )
    .table(
        "USB:",
        &["DEVICE", "PRODUCT", "VENDOR", "CLASS"],
        host.host_usbs
            .iter()
            .map(|usb| cells![&usb.device_name, &usb.id_product, &usb.id_vendor, &usb.class]),
    );
}

fn nic_row(nic: &HostNic) -> Vec<Cell> {
    let link = match nic.link_state.kind {
        LinkStateKind::Unspecified => Cell::from(""),
        LinkStateKind::Up => Cell::toned("up", Tone::Good),
        LinkStateKind::Down => Cell::toned("down", Tone::Bad),
    };
    let addresses = nic.ipaddresses.iter().map(|ip| ip.address.as_str());
    let addresses: Vec<_> = addresses.collect();
    cells![&nic.device_name, &nic.mac_addr, link, addresses.join(", ")]
}

fn disk_row(disk: &HostStorage) -> Vec<Cell> {
    cells![&disk.device_name, format_bytes(disk.capacity_bytes.0), &disk.model, &disk.serial]
}

/// Formats a number of bytes in the largest binary unit that fits.
fn format_bytes(count: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| count >> shift > 0) {
        None => format!("{count} B"),
        Some((shift, name)) => {
            let tenths = (count >> (shift - 10)) % 1_024 * 10 / 1_024;
            format!("{}.{tenths} {name}", count >> shift)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1_023), "1023 B");
        assert_eq!(format_bytes(1_536), "1.5 KiB");
        assert_eq!(format_bytes(17_179_869_184), "16.0 GiB");
        assert_eq!(format_bytes(u64::MAX), "16777215.9 TiB");
    }
}
