//! Operating systems and update policies.

use super::{Column, Link, ResourceTable, project_table};

pub const OS: ResourceTable = project_table(
    "os_profiles @",
    &[
        Column::ID,
        Column::new("name", "@.name"),
        Column::new("architecture", "@.architecture"),
        Column::new("image_url", "@.image_url").long(),
        Column::new("image_id", "@.image_id").long(),
        Column::new("sha256", "@.sha256"),
        Column::new("profile_name", "@.profile_name"),
        Column::empty("profile_version"),
        Column::new("description", "@.description").long(),
        Column::empty("installed_packages"),
        Column::new("installed_packages_url", "@.installed_packages_url").long(),
        Column::new("security_feature", "@.security_feature"),
        Column::new("os_type", "@.kind"),
        Column::new("os_provider", "@.provider"),
        Column::empty("platform_bundle"),
        Column::new("metadata", "@.metadata").long(),
        Column::new("tls_ca_cert", "@.tls_ca_cert").long(),
        Column::new("existing_cves_url", "@.existing_cves_url").long(),
        Column::empty("existing_cves"),
        Column::new("fixed_cves_url", "@.fixed_cves_url").long(),
        Column::empty("fixed_cves"),
        Column::new("repo_url", "@.repo_url").long(),
        Column::CREATED_AT,
        Column::UPDATED_AT,
    ],
    &[],
);

pub const POLICY: ResourceTable = ResourceTable {
    references: &[Column::reference(
        "os_update_policy_resource_target_os",
        "(@.target_os_id::bigint & 4294967295)",
    )],
    ..project_table(
        "update_policies @",
        &[
            Column::ID,
            Column::new("name", "@.name"),
            Column::new("description", "@.description").long(),
            Column::new("update_policy", "@.mode"),
            Column::new("update_packages", "@.packages").long(),
            Column::new("update_sources", "array_to_string(@.sources, '|')").long(),
            Column::new("update_kernel_command", "@.kernel_command").long(),
            Column::new("allow_downgrade", "@.allow_downgrade"),
            Column::new("offline_days", "@.offline_days"),
            Column::CREATED_AT,
            // A policy is never changed.
            Column::new("updated_at", "@.created_at"),
        ],
        &[Link::keyed("target_os", "#.id = @.target_os_id", "@.target_os_id")],
    )
};
