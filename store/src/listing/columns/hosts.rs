//! Hosts, with their reported hardware.

use super::{Column, Link, ResourceTable, project_table};

pub const HOST: ResourceTable = ResourceTable {
    joined: " LEFT JOIN host_hardware @x ON @x.tenant_id = @.tenant_id AND @x.host_id = @.id",
    labels: Some("@.metadata"),
    tally: Some("host"),
    ..project_table("hosts @", COLUMNS, LINKS)
};

const COLUMNS: &[Column] = &[
    Column::ID,
    Column::new("name", "@.name").folded("@.name_folded"),
    Column::new("desired_state", "@.desired_state"),
    Column::new("current_state", "@.current_state"),
    Column::new("note", "@.note").long(),
    Column::new("serial_number", "@.serial").nullable(),
    Column::uuid("uuid", "@.uuid"),
    Column::new("memory_bytes", "@x.memory_bytes").nullable(),
    Column::new("cpu_model", "@x.cpu_model").nullable(),
    Column::new("cpu_capabilities", "@x.cpu_capabilities")
        .nullable()
        .long(),
    Column::new("cpu_architecture", "@x.cpu_architecture").nullable(),
    Column::new("cpu_topology", "@x.cpu_topology")
        .nullable()
        .long(),
    Column::new("cpu_sockets", "@x.cpu_sockets").nullable(),
    Column::new("cpu_cores", "@x.cpu_cores").nullable(),
    Column::new("cpu_threads", "@x.cpu_threads").nullable(),
    Column::new("bmc_kind", "@x.bmc_kind").nullable(),
    Column::new("bmc_ip", "@x.bmc_ip").nullable(),
    Column::new("hostname", "@.hostname"),
    Column::new("product_name", "@x.product_name").nullable(),
    Column::new("bios_version", "@x.bios_version").nullable(),
    Column::new("bios_release_date", "@x.bios_release_date").nullable(),
    Column::new("bios_vendor", "@x.bios_vendor").nullable(),
    Column::unspecified("desired_power_state"),
    Column::unspecified("current_power_state"),
    Column::unspecified("power_command_policy"),
    Column::never("power_on_time"),
    Column::new("host_status", "@.status").long(),
    Column::new("host_status_indicator", "@.status_indication"),
    Column::new("host_status_timestamp", "@.status_at"),
    Column::new(
        "onboarding_status",
        "CASE WHEN @.current_state = 'onboarded' THEN 'Onboarded' ELSE 'Not Connected' END",
    ),
    Column::new(
        "onboarding_status_indicator",
        "CASE WHEN @.current_state = 'onboarded' THEN 'idle' ELSE 'unspecified' END",
    ),
    Column::never("onboarding_status_timestamp"),
    Column::unknown("registration_status"),
    Column::unspecified("registration_status_indicator"),
    Column::never("registration_status_timestamp"),
    Column::unknown("power_status"),
    Column::unspecified("power_status_indicator"),
    Column::never("power_status_timestamp"),
    Column::unknown("amt_status"),
    Column::unspecified("amt_status_indicator"),
    Column::never("amt_status_timestamp"),
    Column::unspecified("amt_sku"),
    Column::unspecified("desired_amt_state"),
    Column::unspecified("current_amt_state"),
    Column::unspecified("amt_control_mode"),
    Column::empty("amt_dns_suffix"),
    Column::unspecified("desired_kvm_state"),
    Column::unspecified("current_kvm_state"),
    Column::unspecified("kvm_status"),
    Column::empty("kvm_session_status"),
    Column::unspecified("desired_sol_state"),
    Column::unspecified("current_sol_state"),
    Column::unspecified("sol_status"),
    Column::empty("sol_session_status"),
    Column::new("user_lvm_size", "@.user_lvm_size"),
    Column::LABELS.long(),
    Column::CREATED_AT,
    Column::UPDATED_AT,
];

const LINKS: &[Link] = &[
    Link::keyed("site", "#.id = @.site_id", "@.site_id"),
    Link::keyed("provider", "#.id = @.provider_id", "@.provider_id"),
    Link::new("instance", "#.host_id = @.id"),
    Link::new("host_nics", "#h.host_id = @.id"),
    Link::new("host_storages", "#h.host_id = @.id"),
    Link::new("host_usbs", "#h.host_id = @.id"),
    Link::new("host_gpus", "#h.host_id = @.id"),
];
