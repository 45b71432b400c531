//! What is in a database, as lists without one have it: the fields as the REST API shows them.

use evenkeel_domain::custom_config::CustomConfig;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::hardware::{Address, ConfigMethod, Gpu, Hardware, Link, Nic, Storage, Usb};
use evenkeel_domain::host::{Host, HostState};
use evenkeel_domain::instance::Instance;
use evenkeel_domain::local_account::LocalAccount;
use evenkeel_domain::os::OsProfile;
use evenkeel_domain::package::WantedPackage;
use evenkeel_domain::place::{Metadata, Region, Site};
use evenkeel_domain::policy::{UpdatePolicy, Wish};
use evenkeel_domain::provider::Provider;
use evenkeel_domain::run::{RunState, UpdateRun};
use evenkeel_domain::schedule::{RepeatedSchedule, ScheduleTarget, SingleSchedule};

use crate::listing_oracle::{Cell, Model, Thing, word};

fn labels(metadata: &Metadata) -> Vec<(String, String)> {
    let labels = metadata.as_slice().iter();
    labels
        .map(|label| (label.key.clone(), label.value.clone()))
        .collect()
}

pub fn region(region: &Region) -> Thing {
    let cells = [
        ("resource_id", region.id.to_string().into()),
        ("name", region.spec.name.as_str().into()),
        ("created_at", region.created_at.into()),
        ("updated_at", region.updated_at.into()),
    ];
    Thing::new(Resource::Region, region.id.bits(), cells)
        .labelled(labels(&region.spec.metadata))
        .leading(
            "parent_region",
            region.spec.parent.map(evenkeel_domain::id::RegionId::bits),
        )
}

pub fn site(site: &Site) -> Thing {
    let cells = [
        ("resource_id", site.id.to_string().into()),
        ("name", site.spec.name.as_str().into()),
        ("site_lat", site.spec.latitude.into()),
        ("site_lng", site.spec.longitude.into()),
        ("created_at", site.created_at.into()),
        ("updated_at", site.updated_at.into()),
    ];
    Thing::new(Resource::Site, site.id.bits(), cells)
        .labelled(labels(&site.spec.metadata))
        .leading(
            "region",
            site.spec.region.map(evenkeel_domain::id::RegionId::bits),
        )
}

/// A host and its parts.
pub fn host(there: &mut Model, host: &Host, made_of: Option<&Hardware>) {
    let onboarded = host.current == HostState::Onboarded;
    let (onboarding, indication) = if onboarded {
        ("Onboarded", "idle")
    } else {
        ("Not Connected", "unspecified")
    };
    let serial = host.serial.as_ref().map_or("", |serial| serial.as_str());
    let uuid = host.uuid.map(|uuid| uuid.to_string()).unwrap_or_default();
    let mut cells: Vec<(&'static str, Cell)> = vec![
        ("resource_id", host.id.to_string().into()),
        ("name", host.name.as_str().into()),
        ("desired_state", word(host.desired.name())),
        ("current_state", word(host.current.name())),
        ("note", host.note.as_str().into()),
        ("serial_number", serial.into()),
        ("uuid", uuid.into()),
        ("hostname", host.hostname.as_str().into()),
        ("host_status", host.status.text.as_str().into()),
        ("host_status_indicator", word(host.status.indication.name())),
        ("host_status_timestamp", host.status.at.into()),
        ("onboarding_status", onboarding.into()),
        ("onboarding_status_indicator", word(indication)),
        ("registration_status", "Unknown".into()),
        ("power_status", "Unknown".into()),
        ("amt_status", "Unknown".into()),
        ("user_lvm_size", host.user_lvm_size.into()),
        ("created_at", host.created_at.into()),
        ("updated_at", host.updated_at.into()),
    ];
    let mut ends: [Vec<u32>; 4] = Default::default();
    if let Some(made_of) = made_of {
        cells.extend(hardware(made_of));
        ends = parts(there, host.id.bits(), made_of);
    }
    let [nics, storages, usbs, gpus] = ends;
    there.add(
        Thing::new(Resource::Host, host.id.bits(), cells)
            .labelled(labels(&host.metadata))
            .leading("site", host.site.map(evenkeel_domain::id::SiteId::bits))
            .leading(
                "provider",
                host.provider.map(evenkeel_domain::id::ProviderId::bits),
            )
            .leading("host_nics", nics)
            .leading("host_storages", storages)
            .leading("host_usbs", usbs)
            .leading("host_gpus", gpus),
    );
}

fn number(bytes: u64) -> Cell {
    Cell::Number(Some(i64::try_from(bytes).expect("not so much")))
}

fn hardware(made_of: &Hardware) -> Vec<(&'static str, Cell)> {
    let controller = made_of.controller.map_or("unspecified", |kind| kind.name());
    vec![
        ("memory_bytes", number(made_of.memory_bytes)),
        ("cpu_model", made_of.cpu_model.as_str().into()),
        ("cpu_capabilities", made_of.cpu_capabilities.as_str().into()),
        ("cpu_architecture", made_of.cpu_architecture.as_str().into()),
        ("cpu_topology", made_of.cpu_topology.as_str().into()),
        ("cpu_sockets", made_of.cpu_sockets.into()),
        ("cpu_cores", made_of.cpu_cores.into()),
        ("cpu_threads", made_of.cpu_threads.into()),
        ("bmc_kind", word(controller)),
        ("bmc_ip", made_of.controller_ip.as_str().into()),
        ("product_name", made_of.product_name.as_str().into()),
        ("bios_version", made_of.bios_version.as_str().into()),
        (
            "bios_release_date",
            made_of.bios_release_date.as_str().into(),
        ),
        ("bios_vendor", made_of.bios_vendor.as_str().into()),
    ]
}

/// Adds the parts of a host, numbered by the bits of its id.
fn parts(there: &mut Model, host: u32, made_of: &Hardware) -> [Vec<u32>; 4] {
    let numbered = |n: usize| host.wrapping_add(u32::try_from(n).expect("few"));
    let mut ends: [Vec<u32>; 4] = Default::default();
    for (n, part) in made_of.nics.iter().enumerate() {
        there.add(nic(numbered(n), part));
        part.ipaddresses
            .iter()
            .for_each(|it| there.add(address(it)));
        ends[0].push(numbered(n));
    }
    for (n, part) in made_of.storages.iter().enumerate() {
        there.add(storage(numbered(n), part));
        ends[1].push(numbered(n));
    }
    for (n, part) in made_of.usbs.iter().enumerate() {
        there.add(usb(numbered(n), part));
        ends[2].push(numbered(n));
    }
    for (n, part) in made_of.gpus.iter().enumerate() {
        there.add(gpu(numbered(n), part));
        ends[3].push(numbered(n));
    }
    ends
}

fn nic(number: u32, nic: &Nic) -> Thing {
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
        ("sriov_enabled", Cell::Truth(nic.sriov_enabled)),
        ("sriov_vfs_num", nic.sriov_vfs_num.into()),
        ("sriov_vfs_total", nic.sriov_vfs_total.into()),
        ("mtu", nic.mtu.into()),
        ("link_state", word(link)),
        ("bmc_interface", Cell::Truth(nic.bmc_interface)),
    ];
    Thing::new(Resource::Nic, number, cells).leading("ipaddresses", addresses)
}

fn address(address: &Address) -> Thing {
    let id = address.resource_id.expect("an id");
    let method = match address.config_method {
        ConfigMethod::Unspecified => "unspecified",
        ConfigMethod::Static => "static",
        ConfigMethod::Dynamic => "dynamic",
    };
    let cells = [
        ("resource_id", id.to_string().into()),
        ("address", address.address.as_str().into()),
        ("status", word("configured")),
        ("status_detail", address.status_detail.as_str().into()),
        ("config_method", word(method)),
    ];
    Thing::new(Resource::IpAddress, id.bits(), cells)
}

fn storage(bits: u32, storage: &Storage) -> Thing {
    let cells = [
        ("wwid", storage.wwid.as_str().into()),
        ("serial", storage.serial.as_str().into()),
        ("vendor", storage.vendor.as_str().into()),
        ("model", storage.model.as_str().into()),
        ("capacity_bytes", number(storage.capacity_bytes.0)),
        ("device_name", storage.device_name.as_str().into()),
    ];
    Thing::new(Resource::Storage, bits, cells)
}

fn usb(bits: u32, usb: &Usb) -> Thing {
    let cells = [
        ("id_vendor", usb.id_vendor.as_str().into()),
        ("id_product", usb.id_product.as_str().into()),
        ("bus", usb.bus.into()),
        ("addr", usb.addr.into()),
        ("class", usb.class.as_str().into()),
        ("serial", usb.serial.as_str().into()),
        ("device_name", usb.device_name.as_str().into()),
    ];
    Thing::new(Resource::Usb, bits, cells)
}

fn gpu(bits: u32, gpu: &Gpu) -> Thing {
    let cells = [
        ("pci_id", gpu.pci_id.as_str().into()),
        ("product", gpu.product.as_str().into()),
        ("vendor", gpu.vendor.as_str().into()),
        ("description", gpu.description.as_str().into()),
        ("device_name", gpu.device_name.as_str().into()),
    ];
    Thing::new(Resource::Gpu, bits, cells)
}

pub fn os(os: &OsProfile) -> Thing {
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
        ("security_feature", word(spec.security_feature.name())),
        ("os_type", word(spec.kind.name())),
        ("os_provider", word(spec.provider.name())),
        ("created_at", os.created_at.into()),
        ("updated_at", os.updated_at.into()),
    ];
    Thing::new(Resource::Os, os.id.bits(), cells)
}

pub fn policy(policy: &UpdatePolicy) -> Thing {
    let spec = &policy.spec;
    let (mode, target) = match &spec.wish {
        Wish::Latest => ("latest", None),
        Wish::Target(target) => ("target", Some(target)),
    };
    let packages = target.map(|target| WantedPackage::list_text(&target.packages));
    let sources = target.map(|target| target.sources.join("|"));
    let kernel = target.map_or("", |target| target.kernel_command.as_str());
    let cells = [
        ("resource_id", policy.id.to_string().into()),
        ("name", spec.name.as_str().into()),
        ("description", spec.description.as_str().into()),
        ("update_policy", word(mode)),
        ("update_packages", packages.unwrap_or_default().into()),
        ("update_sources", sources.unwrap_or_default().into()),
        ("update_kernel_command", kernel.into()),
        ("allow_downgrade", Cell::Truth(spec.allow_downgrade)),
        ("offline_days", spec.offline_days.into()),
        ("created_at", policy.created_at.into()),
        ("updated_at", policy.created_at.into()),
    ];
    let os = target.and_then(|target| target.os);
    Thing::new(Resource::Policy, policy.id.bits(), cells)
        .leading("target_os", os.map(evenkeel_domain::id::OsId::bits))
}

pub fn provider(provider: &Provider) -> Thing {
    let spec = &provider.spec;
    let cells = [
        ("resource_id", provider.id.to_string().into()),
        ("provider_kind", word(spec.kind.name())),
        ("provider_vendor", word(spec.vendor.name())),
        ("name", spec.name.as_str().into()),
        ("api_endpoint", spec.api_endpoint.as_str().into()),
        ("config", spec.config.as_str().into()),
        ("created_at", provider.created_at.into()),
        ("updated_at", provider.updated_at.into()),
    ];
    Thing::new(Resource::Provider, provider.id.bits(), cells)
}

pub fn account(account: &LocalAccount) -> Thing {
    let cells = [
        ("resource_id", account.id.to_string().into()),
        ("username", account.spec.username.as_str().into()),
        ("ssh_key", account.spec.ssh_key.as_str().into()),
        ("created_at", account.created_at.into()),
        ("updated_at", account.updated_at.into()),
    ];
    Thing::new(Resource::LocalAccount, account.id.bits(), cells)
}

pub fn config(config: &CustomConfig) -> Thing {
    let cells = [
        ("resource_id", config.id.to_string().into()),
        ("name", config.spec.name.as_str().into()),
        ("description", config.spec.description.as_str().into()),
        ("config", config.spec.config.as_str().into()),
        ("created_at", config.created_at.into()),
        ("updated_at", config.updated_at.into()),
    ];
    Thing::new(Resource::CustomConfig, config.id.bits(), cells)
}

pub fn instance(instance: &Instance) -> Thing {
    let said = &instance.summary;
    let (provisioning, indication) = if said.provisioned {
        ("Provisioned", "idle")
    } else {
        ("Not Provisioned", "unspecified")
    };
    let cells = [
        ("resource_id", instance.id.to_string().into()),
        ("kind", word(instance.kind.name())),
        ("name", instance.name.as_str().into()),
        ("desired_state", word(instance.desired.name())),
        ("current_state", word(instance.current.name())),
        ("security_feature", word(instance.security_feature.name())),
        ("instance_status", said.status.text.as_str().into()),
        (
            "instance_status_indicator",
            word(said.status.indication.name()),
        ),
        ("instance_status_timestamp", said.status.at.into()),
        ("provisioning_status", provisioning.into()),
        ("provisioning_status_indicator", word(indication)),
        ("update_status", said.update_status.text.as_str().into()),
        (
            "update_status_indicator",
            word(said.update_status.indication.name()),
        ),
        ("update_status_timestamp", said.update_status.at.into()),
        ("trusted_attestation_status", "Unknown".into()),
        (
            "os_update_available",
            said.os_update_available.as_str().into(),
        ),
        ("created_at", instance.created_at.into()),
        ("updated_at", instance.updated_at.into()),
    ];
    Thing::new(Resource::Instance, instance.id.bits(), cells)
        .leading("host", [instance.host.bits()])
        .leading("os", [said.os.bits()])
        .leading(
            "localaccount",
            instance
                .local_account
                .map(evenkeel_domain::id::LocalAccountId::bits),
        )
        .leading(
            "update_policy",
            instance.policy.map(evenkeel_domain::id::PolicyId::bits),
        )
        .leading(
            "custom_config",
            instance.custom_configs.iter().map(|id| id.bits()),
        )
}

/// A policy that is gone is at the end of no edge: the oracle finds nothing there.
pub fn run(run: &UpdateRun) -> Thing {
    let (status, indication) = run.state.status();
    let attempt = run.attempt.map(|attempt| attempt.0.to_string());
    let cells = [
        ("resource_id", run.id.to_string().into()),
        ("name", run.name.as_str().into()),
        ("description", run.description.as_str().into()),
        ("status", status.into()),
        ("status_indicator", word(indication.name())),
        ("status_timestamp", run.state.since().into()),
        ("start_time", run.started_at.into()),
        ("end_time", Cell::Time(run.ended_at())),
        ("state", word(run.state.name())),
        ("reason", reason(&run.state).into()),
        ("attempt", attempt.unwrap_or_default().into()),
        ("log", run.log.as_str().into()),
        ("created_at", run.started_at.into()),
        ("updated_at", run.state.since().into()),
    ];
    Thing::new(Resource::Run, run.id.bits(), cells)
        .leading(
            "applied_policy",
            run.origin
                .policy_id()
                .map(evenkeel_domain::id::PolicyId::bits),
        )
        .leading("instance", [run.instance.bits()])
}

fn reason(state: &RunState) -> String {
    match state {
        RunState::Failed { failure, .. } | RunState::Reverted { failure, .. } => {
            format!("{}: {}", failure.kind, failure.reason)
        }
        RunState::Cancelled { cause, .. } => cause.to_string(),
        RunState::Abandoned { cause, .. } => cause.to_string(),
        RunState::Succeeded { changed: false, .. } => "nothing to do".to_owned(),
        _ => String::new(),
    }
}

fn aimed(thing: Thing, target: Option<ScheduleTarget>) -> Thing {
    match target {
        None => thing,
        Some(ScheduleTarget::Host(id)) => thing.leading("target_host", [id.bits()]),
        Some(ScheduleTarget::Site(id)) => thing.leading("target_site", [id.bits()]),
        Some(ScheduleTarget::Region(id)) => thing.leading("target_region", [id.bits()]),
    }
}

pub fn single(schedule: &SingleSchedule) -> Thing {
    let spec = &schedule.spec;
    let cells = [
        ("resource_id", schedule.id.to_string().into()),
        ("name", spec.name.as_str().into()),
        ("schedule_status", word(spec.status.name())),
        ("start_seconds", spec.start.into()),
        ("end_seconds", Cell::Time(spec.end)),
        ("created_at", schedule.created_at.into()),
        ("updated_at", schedule.updated_at.into()),
    ];
    let thing = Thing::new(Resource::SingleSchedule, schedule.id.bits(), cells);
    aimed(thing, spec.target)
}

pub fn repeated(schedule: &RepeatedSchedule) -> Thing {
    let spec = &schedule.spec;
    let seconds = i32::try_from(spec.duration.num_seconds()).expect("a short time");
    let cells = [
        ("resource_id", schedule.id.to_string().into()),
        ("name", spec.name.as_str().into()),
        ("schedule_status", word(spec.status.name())),
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
    let thing = Thing::new(Resource::RepeatedSchedule, schedule.id.bits(), cells);
    aimed(thing, spec.target)
}
