//! Providers, configurations for first starts, and local accounts.

use super::{Column, ResourceTable, project_table};

pub const PROVIDER: ResourceTable = project_table(
    "providers @",
    &[
        Column::ID,
        Column::new("provider_kind", "@.kind"),
        Column::new("provider_vendor", "@.vendor"),
        Column::new("name", "@.name"),
        Column::new("api_endpoint", "@.api_endpoint").long(),
        Column::new("config", "@.config").long(),
        Column::CREATED_AT,
        Column::UPDATED_AT,
    ],
    &[],
);

pub const CUSTOM_CONFIG: ResourceTable = project_table(
    "custom_configs @",
    &[
        Column::ID,
        Column::new("name", "@.name"),
        Column::new("description", "@.description").long(),
        Column::new("config", "@.config").long(),
        Column::CREATED_AT,
        Column::UPDATED_AT,
    ],
    &[],
);

pub const LOCAL_ACCOUNT: ResourceTable = project_table(
    "local_accounts @",
    &[
        Column::ID,
        Column::new("username", "@.username"),
        Column::new("ssh_key", "@.ssh_key").long(),
        Column::CREATED_AT,
        Column::UPDATED_AT,
    ],
    &[],
);
