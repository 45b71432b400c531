//! Converts stored resources into records of the oracle, with the fields as the REST API shows
//! them.

use evenkeel_domain::Time;
use evenkeel_domain::custom_config::CustomConfig;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::hardware::{Address, ConfigMethod, Gpu, Hardware, Link, Nic, Storage, Usb};
use evenkeel_domain::host::{Host, HostState};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccount;
use evenkeel_domain::location::{Metadata, Region, Site};
use evenkeel_domain::os::OsProfile;
use evenkeel_domain::package::PackageRequirement;
use evenkeel_domain::policy::{DesiredUpdate, UpdatePolicy};
use evenkeel_domain::provider::Provider;
use evenkeel_domain::run::{RunState, UpdateRun};
use evenkeel_domain::schedule::{RepeatedSchedule, ScheduleTarget, SingleSchedule};

use crate::listing_oracle::{Cell, ListingOracle, Record, enumeration};

fn labels(metadata: &Metadata) -> Vec<(String, String)> {
    let labels = metadata.as_slice().iter();
    labels.map(|label| (label.key.clone(), label.value.clone())).collect()
}

pub fn region(region: &Region) -> Record {
    let cells = [
        ("resource_id", region.id.to_string().into()),
        ("name", region.spec.name.as_str().into()),
        ("created_at", region.created_at.into()),
        ("updated_at", region.updated_at.into()),
    ];
    Record::new(Resource::Region, region.id.bits(), cells)
        .with_labels(labels(&region.spec.metadata))
        .with_edge("parent_region", region.spec.parent.map(evenkeel_domain::id::RegionId::bits))
}

pub fn site(site: &Site) -> Record {
    let cells = [
        ("resource_id", site.id.to_string().into()),
        ("name", site.spec.name.as_str().into()),
        ("site_lat", site.spec.latitude.into()),
        ("site_lng", site.spec.longitude.into()),
        ("created_at", site.created_at.into()),
        ("updated_at", site.updated_at.into()),
    ];
    Record::new(Resource::Site, site.id.bits(), cells)
        .with_labels(labels(&site.spec.metadata))
        .with_edge("region", site.spec.region.map(evenkeel_domain::id::RegionId::bits))
}

/// What lists show of the node of a host.
#[derive(Clone, Copy, Default)]
pub struct HostNode<'a> {
    pub instance: Option<&'a Instance>,
    pub last_contact: Option<Time>,
}

/// Adds a host and its parts.
pub fn add_host(
    oracle: &mut ListingOracle,
    host: &Host,
    node: HostNode<'_>,
    hardware: Option<&Hardware>,
) {
    let onboarded = host.current == HostState::Onboarded;
    let (onboarding, indication) =
        if onboarded { ("Onboarded", "idle") } else { ("Not Connected", "unspecified") };
    let serial = host.serial.as_ref().map_or("", |serial| serial.as_str());
    let uuid = host.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
    let mut cells: Vec<(&'static str, Cell)> = vec![
        ("resource_id", host.id.to_string().into()),
        ("name", host.name.as_str().into()),
        ("desired_state", enumeration(host.desired.name())),
        ("current_state", enumeration(host.current.name())),
        ("note", host.note.as_str().into()),
        ("serial_number", serial.into()),
        ("uuid", uuid.into()),
        ("hostname", host.hostname.as_str().into()),
        ("host_status", host.status.text.as_str().into()),
        ("host_status_indicator", enumeration(host.status.indication.name())),
        ("host_status_timestamp", host.status.at.into()),
        ("onboarding_status", onboarding.into()),
        ("onboarding_status_indicator", enumeration(indication)),
        ("registration_status", "Unknown".into()),
        ("power_status", "Unknown".into()),
        ("amt_status", "Unknown".into()),
        ("user_lvm_size", host.user_lvm_size.into()),
        ("created_at", host.created_at.into()),
        ("updated_at", host.updated_at.into()),
    ];
    cells.extend(node_cells(node));
    let mut part_ids: [Vec<u32>; 4] = Default::default();
    if let Some(hardware) = hardware {
        cells.extend(hardware_cells(hardware));
        part_ids = add_parts(oracle, host.id.bits(), hardware);
    }
    let [nics, storages, usbs, gpus] = part_ids;
    oracle.add(
        Record::new(Resource::Host, host.id.bits(), cells)
            .with_labels(labels(&host.metadata))
            .with_edge("site", host.site.map(evenkeel_domain::id::SiteId::bits))
            .with_edge("provider", host.provider.map(evenkeel_domain::id::ProviderId::bits))
            .with_edge("host_nics", nics)
            .with_edge("host_storages", storages)
            .with_edge("host_usbs", usbs)
            .with_edge("host_gpus", gpus),
    );
}

fn node_cells(node: HostNode<'_>) -> Vec<(&'static str, Cell)> {
    let summary = node.instance.map(|instance| &instance.summary);
    let facts = summary.map(|summary| &summary.facts);
    let kernel = facts.and_then(|facts| facts.kernel_release.clone());
    let version = summary.map(|summary| summary.agent_version.clone());
    vec![
        ("last_contact", Cell::Time(node.last_contact)),
        ("agent_version", version.unwrap_or_default().into()),
        ("kernel_release", kernel.unwrap_or_default().into()),
        ("boot_time", Cell::Time(facts.and_then(|facts| facts.boot_time))),
        ("reboot_required", Cell::Bool(facts.and_then(|facts| facts.reboot_required))),
    ]
}

fn number_cell(bytes: u64) -> Cell {
    Cell::Number(Some(i64::try_from(bytes).expect("at most i64::MAX")))
}

fn hardware_cells(hardware: &Hardware) -> Vec<(&'static str, Cell)> {
    let controller = hardware.controller.map_or("unspecified", |kind| kind.name());
    vec![
        ("memory_bytes", number_cell(hardware.memory_bytes)),
        ("cpu_model", hardware.cpu_model.as_str().into()),
        ("cpu_capabilities", hardware.cpu_capabilities.as_str().into()),
        ("cpu_architecture", hardware.cpu_architecture.as_str().into()),
        ("cpu_topology", hardware.cpu_topology.as_str().into()),
        ("cpu_sockets", hardware.cpu_sockets.into()),
        ("cpu_cores", hardware.cpu_cores.into()),
        ("cpu_threads", hardware.cpu_threads.into()),
        ("bmc_kind", enumeration(controller)),
        ("bmc_ip", hardware.controller_ip.as_str().into()),
        ("product_name", hardware.product_name.as_str().into()),
        ("product_vendor", hardware.product_vendor.as_str().into()),
        ("bios_version", hardware.bios_version.as_str().into()),
        ("bios_release_date", hardware.bios_release_date.as_str().into()),
        ("bios_vendor", hardware.bios_vendor.as_str().into()),
    ]
}

/// Adds the parts of a host, numbered from the bits of its id.
fn add_parts(oracle: &mut ListingOracle, host: u32, hardware: &Hardware) -> [Vec<u32>; 4] {
    let numbered = |n: usize| host.wrapping_add(u32::try_from(n).expect("a small number"));
    let mut part_ids: [Vec<u32>; 4] = Default::default();
    for (n, part) in hardware.nics.iter().enumerate() {
        oracle.add(nic(numbered(n), part));
        part.ipaddresses.iter().for_each(|it| oracle.add(address(it)));
        part_ids[0].push(numbered(n));
    }
    for (n, part) in hardware.storages.iter().enumerate() {
        oracle.add(storage(numbered(n), part));
        part_ids[1].push(numbered(n));
    }
    for (n, part) in hardware.usbs.iter().enumerate() {
        oracle.add(usb(numbered(n), part));
        part_ids[2].push(numbered(n));
    }
    for (n, part) in hardware.gpus.iter().enumerate() {
        oracle.add(gpu(numbered(n), part));
        part_ids[3].push(numbered(n));
    }
    part_ids
}

fn nic(number: u32, nic: &Nic) -> Record {
    let link = match nic.link_state.kind {
        Link::Unspecified => "unspecified",
        Link::Up => "up",
        Link::Down => "down",
    };
    let addresses = nic.ipaddresses.iter();
    let addresses = addresses.map(|it| it.resource_id.expect("an id").bits());
    let cells = [
        ("device_name", nic.device_name.as_str().into()),
        ("pci_identifier", nic.pci_identifier.as_str().into()),
        ("mac_addr", nic.mac_addr.as_str().into()),
        ("sriov_enabled", Cell::Bool(Some(nic.sriov_enabled))),
        ("sriov_vfs_num", nic.sriov_vfs_num.into()),
        ("sriov_vfs_total", nic.sriov_vfs_total.into()),
        ("mtu", nic.mtu.into()),
        ("link_state", enumeration(link)),
        ("bmc_interface", Cell::Bool(Some(nic.bmc_interface))),
    ];
    Record::new(Resource::Nic, number, cells).with_edge("ipaddresses", addresses)
}

fn address(address: &Address) -> Record {
    let id = address.resource_id.expect("an id");
    let method = match address.config_method {
        ConfigMethod::Unspecified => "unspecified",
        ConfigMethod::Static => "static",
        ConfigMethod::Dynamic => "dynamic",
    };
    let cells = [
        ("resource_id", id.to_string().into()),
        ("address", address.address.as_str().into()),
        ("status", enumeration("configured")),
        ("status_detail", address.status_detail.as_str().into()),
        ("config_method", enumeration(method)),
    ];
    Record::new(Resource::IpAddress, id.bits(), cells)
}

fn storage(bits: u32, storage: &Storage) -> Record {
    let cells = [
        ("wwid", storage.wwid.as_str().into()),
        ("serial", storage.serial.as_str().into()),
        ("vendor", storage.vendor.as_str().into()),
        ("model", storage.model.as_str().into()),
        ("capacity_bytes", number_cell(storage.capacity_bytes.0)),
        ("device_name", storage.device_name.as_str().into()),
    ];
    Record::new(Resource::Storage, bits, cells)
}

fn usb(bits: u32, usb: &Usb) -> Record {
    let cells = [
        ("id_vendor", usb.id_vendor.as_str().into()),
        ("id_product", usb.id_product.as_str().into()),
        ("bus", usb.bus.into()),
        ("addr", usb.addr.into()),
        ("class", usb.class.as_str().into()),
        ("serial", usb.serial.as_str().into()),
        ("device_name", usb.device_name.as_str().into()),
    ];
    Record::new(Resource::Usb, bits, cells)
}

fn gpu(bits: u32, gpu: &Gpu) -> Record {
    let cells = [
        ("pci_id", gpu.pci_id.as_str().into()),
        ("product", gpu.product.as_str().into()),
        ("vendor", gpu.vendor.as_str().into()),
        ("description", gpu.description.as_str().into()),
        ("device_name", gpu.device_name.as_str().into()),
    ];
    Record::new(Resource::Gpu, bits, cells)
}

pub fn os(os: &OsProfile) -> Record {
    let spec = &os.spec;
    let cells = [
        ("resource_id", os.id.to_string().into()),
        ("name", spec.name.as_str().into()),
        ("architecture", spec.architecture.as_str().into()),
        ("image_url", spec.image_url.as_str().into()),
        ("image_id", spec.image_id.as_str().into()),
        ("sha256", spec.sha256.as_str().into()),
        ("profile_name", spec.profile_name.as_str().into()),
        ("description", spec.description.as_str().into()),
        ("security_feature", enumeration(spec.security_feature.name())),
        ("os_type", enumeration(spec.kind.name())),
        ("os_provider", enumeration(spec.provider.name())),
        ("created_at", os.created_at.into()),
        ("updated_at", os.updated_at.into()),
    ];
    Record::new(Resource::Os, os.id.bits(), cells)
}

pub fn policy(policy: &UpdatePolicy) -> Record {
    let spec = &policy.spec;
    let (mode, target) = match &spec.desired {
        DesiredUpdate::Latest => ("latest", None),
        DesiredUpdate::Target(target) => ("target", Some(target)),
    };
    let packages = target.map(|target| PackageRequirement::format_list(&target.packages));
    let sources = target.map(|target| target.sources.join("|"));
    let kernel = target.map_or("", |target| target.kernel_command.as_str());
    let cells = [
        ("resource_id", policy.id.to_string().into()),
        ("name", spec.name.as_str().into()),
        ("description", spec.description.as_str().into()),
        ("update_policy", enumeration(mode)),
        ("update_packages", packages.unwrap_or_default().into()),
        ("update_sources", sources.unwrap_or_default().into()),
        ("update_kernel_command", kernel.into()),
        ("allow_downgrade", Cell::Bool(Some(spec.allow_downgrade))),
        ("offline_days", spec.offline_days.into()),
        ("created_at", policy.created_at.into()),
        ("updated_at", policy.created_at.into()),
    ];
    let os = target.and_then(|target| target.os);
    Record::new(Resource::Policy, policy.id.bits(), cells)
        .with_edge("target_os", os.map(evenkeel_domain::id::OsId::bits))
}

pub fn provider(provider: &Provider) -> Record {
    let spec = &provider.spec;
    let cells = [
        ("resource_id", provider.id.to_string().into()),
        ("provider_kind", enumeration(spec.kind.name())),
        ("provider_vendor", enumeration(spec.vendor.name())),
        ("name", spec.name.as_str().into()),
        ("api_endpoint", spec.api_endpoint.as_str().into()),
        ("config", spec.config.as_str().into()),
        ("created_at", provider.created_at.into()),
        ("updated_at", provider.updated_at.into()),
    ];
    Record::new(Resource::Provider, provider.id.bits(), cells)
}

pub fn account(account: &LocalAccount) -> Record {
    let cells = [
        ("resource_id", account.id.to_string().into()),
        ("username", account.spec.username.as_str().into()),
        ("ssh_key", account.spec.ssh_key.as_str().into()),
        ("created_at", account.created_at.into()),
        ("updated_at", account.updated_at.into()),
    ];
    Record::new(Resource::LocalAccount, account.id.bits(), cells)
}

pub fn config(config: &CustomConfig) -> Record {
    let cells = [
        ("resource_id", config.id.to_string().into()),
        ("name", config.spec.name.as_str().into()),
        ("description", config.spec.description.as_str().into()),
        ("config", config.spec.config.as_str().into()),
        ("created_at", config.created_at.into()),
        ("updated_at", config.updated_at.into()),
    ];
    Record::new(Resource::CustomConfig, config.id.bits(), cells)
}

pub fn instance(instance: &Instance) -> Record {
    let summary = &instance.summary;
    let facts = &summary.facts;
    let count = |number: Option<u32>| Cell::Number(number.map(i64::from));
    let (provisioning, indication) = if summary.provisioned {
        ("Provisioned", "idle")
    } else {
        ("Not Provisioned", "unspecified")
    };
    let cells = [
        ("resource_id", instance.id.to_string().into()),
        ("kind", enumeration(instance.kind.name())),
        ("name", instance.name.as_str().into()),
        ("desired_state", enumeration(instance.desired.name())),
        ("current_state", enumeration(instance.current.name())),
        ("security_feature", enumeration(instance.security_feature.name())),
        ("instance_status", summary.status.text.as_str().into()),
        ("instance_status_indicator", enumeration(summary.status.indication.name())),
        ("instance_status_timestamp", summary.status.at.into()),
        ("provisioning_status", provisioning.into()),
        ("provisioning_status_indicator", enumeration(indication)),
        ("update_status", summary.update_status.text.as_str().into()),
        ("update_status_indicator", enumeration(summary.update_status.indication.name())),
        ("update_status_timestamp", summary.update_status.at.into()),
        ("trusted_attestation_status", "Unknown".into()),
        ("os_update_available", summary.os_update_available.as_str().into()),
        ("kernel_release", facts.kernel_release.clone().unwrap_or_default().into()),
        ("reboot_required", Cell::Bool(facts.reboot_required)),
        ("package_lists_refreshed_at", Cell::Time(facts.package_lists_refreshed_at)),
        ("package_lists_error", facts.package_lists_error.clone().unwrap_or_default().into()),
        ("security_updates", count(facts.security_updates)),
        ("held_back_updates", count(facts.held_back_updates)),
        ("stale_services", count(facts.stale_services)),
        ("created_at", instance.created_at.into()),
        ("updated_at", instance.updated_at.into()),
    ];
    Record::new(Resource::Instance, instance.id.bits(), cells)
        .with_edge("host", [instance.host.bits()])
        .with_edge("os", [summary.os.bits()])
        .with_edge(
            "localaccount",
            instance.local_account.map(evenkeel_domain::id::LocalAccountId::bits),
        )
        .with_edge("update_policy", instance.policy.map(evenkeel_domain::id::PolicyId::bits))
        .with_edge("custom_config", instance.custom_configs.iter().map(|id| id.bits()))
}

/// A deleted policy stays an edge without a target: the oracle finds nothing there.
pub fn run(run: &UpdateRun) -> Record {
    let (status, indication) = run.state.status();
    let attempt = run.attempt.map(|attempt| attempt.0.to_string());
    let cells = [
        ("resource_id", run.id.to_string().into()),
        ("name", run.name.as_str().into()),
        ("description", run.description.as_str().into()),
        ("status", status.into()),
        ("status_indicator", enumeration(indication.name())),
        ("status_timestamp", run.state.since().into()),
        ("start_time", run.started_at.into()),
        ("end_time", Cell::Time(run.ended_at())),
        ("state", enumeration(run.state.name())),
        ("reason", reason(run).into()),
        ("attempt", attempt.unwrap_or_default().into()),
        ("log", run.log.as_str().into()),
        ("created_at", run.started_at.into()),
        ("updated_at", run.state.since().into()),
    ];
    Record::new(Resource::Run, run.id.bits(), cells)
        .with_edge(
            "applied_policy",
            run.origin.policy_id().map(evenkeel_domain::id::PolicyId::bits),
        )
        .with_edge("instance", [run.instance.bits()])
}

fn reason(run: &UpdateRun) -> String {
    match &run.state {
        RunState::Failed { failure, .. } | RunState::Reverted { failure, .. } => {
            format!("{}: {}", failure.kind, failure.reason)
        }
        RunState::Cancelled { cause, .. } => cause.to_string(),
        RunState::Abandoned { cause, .. } => cause.to_string(),
        RunState::Succeeded { changed: false, .. } if run.report.held_back_counts.is_empty() => {
            "nothing to do".to_owned()
        }
        RunState::Succeeded { changed: false, .. } => "newer versions are held back".to_owned(),
        _ => String::new(),
    }
}

fn with_target(record: Record, target: Option<ScheduleTarget>) -> Record {
    match target {
        None => record,
        Some(ScheduleTarget::Host(id)) => record.with_edge("target_host", [id.bits()]),
        Some(ScheduleTarget::Site(id)) => record.with_edge("target_site", [id.bits()]),
        Some(ScheduleTarget::Region(id)) => record.with_edge("target_region", [id.bits()]),
    }
}

pub fn single(schedule: &SingleSchedule) -> Record {
    let spec = &schedule.spec;
    let cells = [
        ("resource_id", schedule.id.to_string().into()),
        ("name", spec.name.as_str().into()),
        ("schedule_status", enumeration(spec.status.name())),
        ("start_seconds", spec.start.into()),
        ("end_seconds", Cell::Time(spec.end)),
        ("created_at", schedule.created_at.into()),
        ("updated_at", schedule.updated_at.into()),
    ];
    let record = Record::new(Resource::SingleSchedule, schedule.id.bits(), cells);
    with_target(record, spec.target)
}

pub fn repeated(schedule: &RepeatedSchedule) -> Record {
    let spec = &schedule.spec;
    let seconds = i32::try_from(spec.duration.num_seconds()).expect("a short time");
    let cells = [
        ("resource_id", schedule.id.to_string().into()),
        ("name", spec.name.as_str().into()),
        ("schedule_status", enumeration(spec.status.name())),
        ("duration_seconds", seconds.into()),
        ("cron_minutes", spec.cron.minutes().into()),
        ("cron_hours", spec.cron.hours().into()),
        ("cron_day_month", spec.cron.day_month().into()),
        ("cron_month", spec.cron.month().into()),
        ("cron_day_week", spec.cron.day_week().into()),
        ("time_zone", spec.zone.name().into()),
        ("created_at", schedule.created_at.into()),
        ("updated_at", schedule.updated_at.into()),
    ];
    let record = Record::new(Resource::RepeatedSchedule, schedule.id.bits(), cells);
    with_target(record, spec.target)
}
