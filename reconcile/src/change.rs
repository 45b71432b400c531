//! Changes the machine: one file per component.
//!
//! The functions make one change, and can be repeated after a kill: they do what is left. The
//! module [`run`](crate::run) decides which changes are made, and in which order.

mod accounts;
mod actions;
mod packages;
mod programs;
mod sysctl;
mod units;

pub(crate) use accounts::{change_group, change_user, remove_group, remove_user};
pub(crate) use actions::run_action;
pub use actions::{ActionPolicy, NoActions};
pub use packages::{NoPackages, PackageFailure, PackageInstaller, PackageRequest, PackageTarget};
pub(crate) use sysctl::{read_running_value, render_settings, set_running_value};
pub(crate) use units::{UnitOperation, query_unit, run_systemctl};
