//! The database layer: all reads, all writes and all SQL.
//!
//! A bare [`Store`] cannot read or write: [`Store::enter`], [`Store::tenant`], [`Store::snapshot`]
//! and [`Store::fleet`] open a transaction with a scope, and every query starts from that scope.
//! Row-level security is the second barrier.
//!
//! There is one file per aggregate. Lists of all resources are in [`listing`], the resources that
//! they refer to in [`related`]. Lock order: the project's advisory lock, the node's state, the
//! assignment, the run.

mod address;
mod bounded;
mod cancellation;
mod chain;
mod check;
mod clock_check;
mod error;
mod fields;
mod grants;
mod ids;
mod keyed;
mod lease;
mod migration;
mod pending_begin;
mod pool;
mod pools;
mod rows;
mod session;
mod shares;
mod tx;
mod unreadable_log;

pub mod assignments;
pub mod change_seals;
pub mod changes;
pub mod contacts;
pub mod contents;
pub mod custom_configs;
pub mod daily_usage;
pub mod decisions;
pub mod diagnosis;
pub mod fleet_counts;
pub mod hardware;
pub mod hosts;
pub mod image_series;
pub mod instances;
pub mod join_tokens;
pub mod limit_usage;
pub mod listing;
pub mod local_accounts;
pub mod log;
pub mod logins;
pub mod node_tokens;
pub mod nodes;
pub mod notification_targets;
pub mod notifications;
pub mod oldest_rows;
pub mod operator_tokens;
pub mod orders;
pub mod os_catalogue;
pub mod os_details;
pub mod os_profiles;
pub mod os_reports;
pub mod os_settings;
pub mod package_versions;
pub mod pauses;
pub mod policies;
pub mod projects;
pub mod providers;
pub mod regions;
pub mod related;
pub mod runs;
pub mod schedules;
pub mod sequence_usage;
pub mod server_keys;
pub mod settings;
pub mod sites;
pub mod tallies;
pub mod task_passes;
#[cfg(feature = "testing")]
pub mod testing;
pub mod users;

pub use address::{InvalidDatabaseUrl, check_database_url, find_database_role, find_tls_file};
pub use chain::ScopeChain;
pub use check::{IncompatibleDatabase, SchemaCheck};
pub use clock_check::{ClockAgreement, ClockReading};
pub use error::{Conflict, StoreError};
pub use lease::Lease;
pub use migration::{DEFAULT_MIGRATION_TIMEOUT, newest_schema_step, release_version};
pub use pool::{Store, StoreOptions};
pub use pools::{PoolUsage, SPARE_CONNECTIONS};
pub use shares::{ConnectionShare, ShareLimit, ShareSizes, ShareUsage};
pub use tx::{Actor, FleetTx, ProjectKey, TransactionMode, Tx};
