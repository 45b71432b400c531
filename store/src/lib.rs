//! How it is kept: everything that is read from and written to the database. All SQL is here.
//!
//! There is no reading or writing on a bare [`Store`]: [`Store::enter`], [`Store::tenant`], [`Store::snapshot`] and
//! [`Store::fleet`] open a transaction with a scope, every query starts from that scope, and row-level security is the
//! second wall behind it.
//!
//! One file per aggregate; lists of all of them are in [`listing`], what they refer to is in [`related`]. Locks are taken
//! in one order: the project's advisory lock, the node's state, the assignment, the run.

mod bounded;
mod chain;
mod check;
mod error;
mod fields;
mod ids;
mod keyed;
mod pool;
mod rows;
mod tx;

pub mod assignments;
pub mod brake;
pub mod changes;
pub mod contacts;
pub mod contents;
pub mod custom_configs;
pub mod decisions;
pub mod hardware;
pub mod hosts;
pub mod image_lines;
pub mod instances;
pub mod join_tokens;
pub mod listing;
pub mod local_accounts;
pub mod log;
pub mod node_tokens;
pub mod nodes;
pub mod orders;
pub mod os_catalogue;
pub mod os_inside;
pub mod os_profiles;
pub mod os_reports;
pub mod os_settings;
pub mod pauses;
pub mod policies;
pub mod projects;
pub mod providers;
pub mod regions;
pub mod related;
pub mod runs;
pub mod schedules;
pub mod settings;
pub mod sites;
pub mod tallies;
#[cfg(feature = "testing")]
pub mod testing;
pub mod versions;

pub use chain::Chain;
pub use check::{Misfit, Schema};
pub use error::{Conflict, StoreError};
pub use pool::{Store, StoreOptions};
pub use tx::{Actor, Entry, FleetTx, ProjectKey, Tx};
