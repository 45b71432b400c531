//! The tables as sea-orm sees them. Private and dull: what a row means is said in the file of its aggregate.
//! The columns are described in the migrations.

pub mod assignment;
pub mod change;
pub mod custom_config;
pub mod host;
pub mod host_hardware;
pub mod instance;
pub mod join_token;
pub mod local_account;
pub mod node_state;
pub mod node_token;
pub mod os_profile;
pub mod pause;
pub mod project;
pub mod project_settings;
pub mod provider;
pub mod region;
pub mod repeated_schedule;
pub mod run_event;
pub mod single_schedule;
pub mod site;
pub mod update_order;
pub mod update_policy;
pub mod update_run;

use crate::error::StoreError;

/// A value of the domain that a column names. What it cannot mean is reported, never guessed.
pub fn named<T>(
    found: Option<T>,
    table: &'static str,
    row: i32,
    column: &'static str,
) -> Result<T, StoreError> {
    found.ok_or(StoreError::Corrupt { table, row, column })
}
