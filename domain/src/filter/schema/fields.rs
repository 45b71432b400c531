//! The fields of each resource: the plain members of its JSON that a database can compare.
//!
//! Values that are computed from many rows or are secret are not fields: inherited labels, totals, details of a run,
//! credentials.

use super::enumerations as of_few;
use super::{Enumeration, FieldKind, FilterField, Resource};
use crate::id::{
    CustomConfigId, HostId, InstanceId, IpAddressId, LocalAccountId, OsId, PolicyId, ProviderId,
    RegionId, RepeatedScheduleId, RunId, SingleScheduleId, SiteId,
};

const REGION: &[FilterField] =
    &[id(RegionId::PREFIX), text("name"), text("metadata"), CREATED_AT, UPDATED_AT];

const SITE: &[FilterField] = &[
    id(SiteId::PREFIX),
    text("name"),
    number("site_lat"),
    number("site_lng"),
    text("metadata"),
    CREATED_AT,
    UPDATED_AT,
];

const HOST: &[FilterField] = &[
    id(HostId::PREFIX),
    text("name"),
    one_of("desired_state", &of_few::HOST_STATE),
    one_of("current_state", &of_few::HOST_STATE),
    text("note"),
    text("serial_number"),
    text("uuid"),
    number("memory_bytes"),
    text("cpu_model"),
    text("cpu_capabilities"),
    text("cpu_architecture"),
    text("cpu_topology"),
    number("cpu_sockets"),
    number("cpu_cores"),
    number("cpu_threads"),
    one_of("bmc_kind", &of_few::BMC_KIND),
    text("bmc_ip"),
    text("hostname"),
    text("product_name"),
    text("bios_version"),
    text("bios_release_date"),
    text("bios_vendor"),
    one_of("desired_power_state", &of_few::POWER_STATE),
    one_of("current_power_state", &of_few::POWER_STATE),
    one_of("power_command_policy", &of_few::POWER_COMMAND_POLICY),
    seconds("power_on_time"),
    text("host_status"),
    one_of("host_status_indicator", &of_few::INDICATION),
    seconds("host_status_timestamp"),
    text("onboarding_status"),
    one_of("onboarding_status_indicator", &of_few::INDICATION),
    seconds("onboarding_status_timestamp"),
    text("registration_status"),
    one_of("registration_status_indicator", &of_few::INDICATION),
    seconds("registration_status_timestamp"),
    text("power_status"),
    one_of("power_status_indicator", &of_few::INDICATION),
    seconds("power_status_timestamp"),
    text("amt_status"),
    one_of("amt_status_indicator", &of_few::INDICATION),
    seconds("amt_status_timestamp"),
    one_of("amt_sku", &of_few::AMT_SKU),
    one_of("desired_amt_state", &of_few::AMT_STATE),
    one_of("current_amt_state", &of_few::AMT_STATE),
    one_of("amt_control_mode", &of_few::AMT_CONTROL_MODE),
    text("amt_dns_suffix"),
    one_of("desired_kvm_state", &of_few::KVM_STATE),
    one_of("current_kvm_state", &of_few::KVM_STATE),
    one_of("kvm_status", &of_few::KVM_STATUS),
    text("kvm_session_status"),
    one_of("desired_sol_state", &of_few::SOL_STATE),
    one_of("current_sol_state", &of_few::SOL_STATE),
    one_of("sol_status", &of_few::SOL_STATUS),
    text("sol_session_status"),
    number("user_lvm_size"),
    text("product_vendor"),
    field("last_contact", FieldKind::Rfc3339Time),
    field("agent_version", FieldKind::Version),
    text("kernel_release"),
    field("boot_time", FieldKind::Rfc3339Time),
    boolean("reboot_required"),
    text("metadata"),
    CREATED_AT,
    UPDATED_AT,
];

const INSTANCE: &[FilterField] = &[
    id(InstanceId::PREFIX),
    one_of("kind", &of_few::INSTANCE_KIND),
    text("name"),
    one_of("desired_state", &of_few::INSTANCE_STATE),
    one_of("current_state", &of_few::INSTANCE_STATE),
    one_of("security_feature", &of_few::SECURITY_FEATURE),
    text("instance_status"),
    one_of("instance_status_indicator", &of_few::INDICATION),
    seconds("instance_status_timestamp"),
    text("instance_status_detail"),
    text("provisioning_status"),
    one_of("provisioning_status_indicator", &of_few::INDICATION),
    seconds("provisioning_status_timestamp"),
    text("update_status"),
    one_of("update_status_indicator", &of_few::INDICATION),
    seconds("update_status_timestamp"),
    text("trusted_attestation_status"),
    one_of("trusted_attestation_status_indicator", &of_few::INDICATION),
    seconds("trusted_attestation_status_timestamp"),
    text("existing_cves"),
    text("runtime_packages"),
    text("os_update_available"),
    text("kernel_release"),
    boolean("reboot_required"),
    field("package_lists_refreshed_at", FieldKind::Rfc3339Time),
    text("package_lists_error"),
    number("security_updates"),
    number("held_back_updates"),
    number("stale_services"),
    CREATED_AT,
    UPDATED_AT,
];

const OS: &[FilterField] = &[
    id(OsId::PREFIX),
    text("name"),
    text("architecture"),
    text("image_url"),
    text("image_id"),
    text("sha256"),
    text("profile_name"),
    text("profile_version"),
    text("description"),
    text("installed_packages"),
    text("installed_packages_url"),
    one_of("security_feature", &of_few::SECURITY_FEATURE),
    one_of("os_type", &of_few::OS_TYPE),
    one_of("os_provider", &of_few::OS_PROVIDER),
    text("platform_bundle"),
    text("metadata"),
    text("tls_ca_cert"),
    text("existing_cves_url"),
    text("existing_cves"),
    text("fixed_cves_url"),
    text("fixed_cves"),
    text("repo_url"),
    CREATED_AT,
    UPDATED_AT,
];

const POLICY: &[FilterField] = &[
    id(PolicyId::PREFIX),
    text("name"),
    text("description"),
    one_of("update_policy", &of_few::UPDATE_POLICY),
    text("update_packages"),
    text("update_sources"),
    text("update_kernel_command"),
    boolean("allow_downgrade"),
    number("offline_days"),
    CREATED_AT,
    UPDATED_AT,
];

const RUN: &[FilterField] = &[
    id(RunId::PREFIX),
    text("name"),
    text("description"),
    text("status"),
    one_of("status_indicator", &of_few::INDICATION),
    seconds("status_timestamp"),
    seconds("start_time"),
    seconds("end_time"),
    one_of("state", &of_few::RUN_STATE),
    text("reason"),
    text("attempt"),
    text("log"),
    CREATED_AT,
    UPDATED_AT,
];

const SINGLE_SCHEDULE: &[FilterField] = &[
    id(SingleScheduleId::PREFIX),
    text("name"),
    one_of("schedule_status", &of_few::SCHEDULE_STATUS),
    seconds("start_seconds"),
    seconds("end_seconds"),
    CREATED_AT,
    UPDATED_AT,
];

const REPEATED_SCHEDULE: &[FilterField] = &[
    id(RepeatedScheduleId::PREFIX),
    text("name"),
    one_of("schedule_status", &of_few::SCHEDULE_STATUS),
    number("duration_seconds"),
    text("cron_minutes"),
    text("cron_hours"),
    text("cron_day_month"),
    text("cron_month"),
    text("cron_day_week"),
    text("time_zone"),
    CREATED_AT,
    UPDATED_AT,
];

const PROVIDER: &[FilterField] = &[
    id(ProviderId::PREFIX),
    one_of("provider_kind", &of_few::PROVIDER_KIND),
    one_of("provider_vendor", &of_few::PROVIDER_VENDOR),
    text("name"),
    text("api_endpoint"),
    text("config"),
    CREATED_AT,
    UPDATED_AT,
];

const CUSTOM_CONFIG: &[FilterField] = &[
    id(CustomConfigId::PREFIX),
    text("name"),
    text("description"),
    text("config"),
    CREATED_AT,
    UPDATED_AT,
];

const LOCAL_ACCOUNT: &[FilterField] =
    &[id(LocalAccountId::PREFIX), text("username"), text("ssh_key"), CREATED_AT, UPDATED_AT];

const NIC: &[FilterField] = &[
    text("device_name"),
    text("pci_identifier"),
    text("mac_addr"),
    boolean("sriov_enabled"),
    number("sriov_vfs_num"),
    number("sriov_vfs_total"),
    number("mtu"),
    one_of("link_state", &of_few::LINK_STATE),
    boolean("bmc_interface"),
];

const STORAGE: &[FilterField] = &[
    text("wwid"),
    text("serial"),
    text("vendor"),
    text("model"),
    number("capacity_bytes"),
    text("device_name"),
];

const USB: &[FilterField] = &[
    text("id_vendor"),
    text("id_product"),
    number("bus"),
    number("addr"),
    text("class"),
    text("serial"),
    text("device_name"),
];

const GPU: &[FilterField] =
    &[text("pci_id"), text("product"), text("vendor"), text("description"), text("device_name")];

const IP_ADDRESS: &[FilterField] = &[
    id(IpAddressId::PREFIX),
    text("address"),
    one_of("status", &of_few::IP_ADDRESS_STATUS),
    text("status_detail"),
    one_of("config_method", &of_few::IP_ADDRESS_CONFIG_METHOD),
];

const WORKLOAD_MEMBER: &[FilterField] = &[id("workloadmember")];

pub(super) const fn fields_of(resource: Resource) -> &'static [FilterField] {
    match resource {
        Resource::Region => REGION,
        Resource::Site => SITE,
        Resource::Host => HOST,
        Resource::Instance => INSTANCE,
        Resource::Os => OS,
        Resource::Policy => POLICY,
        Resource::Run => RUN,
        Resource::SingleSchedule => SINGLE_SCHEDULE,
        Resource::RepeatedSchedule => REPEATED_SCHEDULE,
        Resource::Provider => PROVIDER,
        Resource::CustomConfig => CUSTOM_CONFIG,
        Resource::LocalAccount => LOCAL_ACCOUNT,
        Resource::Nic => NIC,
        Resource::Storage => STORAGE,
        Resource::Usb => USB,
        Resource::Gpu => GPU,
        Resource::IpAddress => IP_ADDRESS,
        Resource::WorkloadMember => WORKLOAD_MEMBER,
    }
}

const CREATED_AT: FilterField = field("created_at", FieldKind::Rfc3339Time);
const UPDATED_AT: FilterField = field("updated_at", FieldKind::Rfc3339Time);

const fn field(name: &'static str, kind: FieldKind) -> FilterField {
    FilterField { name, kind }
}

const fn id(prefix: &'static str) -> FilterField {
    field("resource_id", FieldKind::Id(prefix))
}

const fn text(name: &'static str) -> FilterField {
    field(name, FieldKind::Text)
}

const fn one_of(name: &'static str, values: &'static Enumeration) -> FilterField {
    field(name, FieldKind::Enumeration(values))
}

const fn number(name: &'static str) -> FilterField {
    field(name, FieldKind::Number)
}

const fn boolean(name: &'static str) -> FilterField {
    field(name, FieldKind::Bool)
}

const fn seconds(name: &'static str) -> FilterField {
    field(name, FieldKind::UnixSeconds)
}
