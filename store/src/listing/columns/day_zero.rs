//! Providers, configurations of first starts, and accounts that may log in.

use super::{Column, Table, rows_of};

pub const PROVIDER: Table = rows_of(
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

pub const CUSTOM_CONFIG: Table = rows_of(
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

pub const LOCAL_ACCOUNT: Table = rows_of(
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
