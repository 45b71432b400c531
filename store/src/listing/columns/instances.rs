//! Instances, with the state that their nodes reported.

use super::{Column, Link, ResourceTable, project_table};

pub const INSTANCE: ResourceTable = ResourceTable {
    joined: " JOIN node_states @x ON @x.tenant_id = @.tenant_id AND @x.instance_id = @.id",
    tally: Some("instance"),
    references: &[
        Column::reference("instance_resource_os", "(@x.os_id::bigint & 4294967295)"),
        Column::reference(
            "instance_resource_localaccount",
            "(@.local_account_id::bigint & 4294967295)",
        ),
    ],
    ..project_table("instances @", COLUMNS, LINKS)
};

const COLUMNS: &[Column] = &[
    Column::ID,
    Column::new("kind", "@.kind"),
    Column::new("name", "@.name").folded("@.name_folded"),
    Column::new("desired_state", "@.desired_state"),
    Column::new("current_state", "@.current_state"),
    Column::new("security_feature", "@.security_feature"),
    Column::new("instance_status", "@x.status").long(),
    Column::new("instance_status_indicator", "@x.status_indication"),
    Column::new("instance_status_timestamp", "@x.status_at"),
    Column::empty("instance_status_detail"),
    Column::new(
        "provisioning_status",
        "CASE WHEN @x.provisioned THEN 'Provisioned' ELSE 'Not Provisioned' END",
    ),
    Column::new(
        "provisioning_status_indicator",
        "CASE WHEN @x.provisioned THEN 'idle' ELSE 'unspecified' END",
    ),
    Column::never("provisioning_status_timestamp"),
    Column::new("update_status", "@x.update_status").long(),
    Column::new("update_status_indicator", "@x.update_status_indication"),
    Column::new("update_status_timestamp", "@x.update_status_at"),
    Column::unknown("trusted_attestation_status"),
    Column::unspecified("trusted_attestation_status_indicator"),
    Column::never("trusted_attestation_status_timestamp"),
    Column::empty("existing_cves"),
    // As in EIM, lists do not contain packages; only the instance itself does.
    Column::empty("runtime_packages"),
    Column::new("os_update_available", "@x.os_update_available").long(),
    Column::new("kernel_release", "@x.kernel_release").nullable().long(),
    Column::new("reboot_required", "@x.reboot_required").nullable(),
    Column::new("package_lists_refreshed_at", "@x.package_lists_refreshed_at").nullable(),
    Column::new("package_lists_error", "@x.package_lists_error").nullable().long(),
    Column::new("security_updates", "@x.security_updates").nullable(),
    Column::new("held_back_updates", "@x.held_back_updates").nullable(),
    Column::new("stale_services", "@x.stale_services").nullable(),
    Column::CREATED_AT,
    Column::UPDATED_AT,
];

const LINKS: &[Link] = &[
    Link::keyed("host", "#.id = @.host_id", "@.host_id"),
    Link::keyed("os", "#.id = @x.os_id", "@x.os_id"),
    Link::keyed("localaccount", "#.id = @.local_account_id", "@.local_account_id"),
    // The policy assigned to this instance, not to a scope that contains it.
    Link::through(
        "update_policy",
        "update_policies # JOIN assignments #a ON #a.tenant_id = #.tenant_id AND #a.policy_id = #.id \
         AND #a.target_kind = 'instance'",
        "#a.target_id = @.id",
    ),
    Link::through(
        "custom_config",
        "custom_configs # JOIN instance_custom_configs #c ON #c.tenant_id = #.tenant_id \
         AND #c.custom_config_id = #.id",
        "#c.instance_id = @.id",
    ),
    Link::new("workload_members", "FALSE"),
];
