//! Histories: what servers recorded, compared with what simulated nodes really did.
//!
//! [`Replicas`] are real servers on one Postgres that are killed all the time, a [`ShiftedServer`] has a wrong clock,
//! [`SimulatedFleet`] has nodes of both protocols, and [`Operator`] creates windows and changes assignments meanwhile and
//! logs this in an [`OperatorLog`]. [`check`] compares.

pub mod check;
mod database;
mod image_catalog;
mod operator;
mod operator_client;
mod operator_log;
mod registrar;
mod repeated_schedules;
mod replicas;
mod run_records;
mod scripted_node;
mod shifted_clock;
mod shifted_server;
mod simulated_fleet;
mod timeline;

pub use image_catalog::ImageCatalog;
pub use operator::Operator;
pub use operator_client::{CallError, OperatorClient};
pub use operator_log::{
    Action, AssignmentRecord, DesiredImage, ImageRecord, OperatorLog, PauseRecord, ScheduleRecord,
    Scope, SimulatedMember, Validity, WindowRecord,
};
pub use registrar::NodeRegistrar;
pub use replicas::{Replicas, machine_time, server_program};
pub use run_records::{Run, RunEntry, read_runs};
pub use scripted_node::ScriptedNode;
pub use shifted_server::ShiftedServer;
pub use simulated_fleet::{FleetSettings, GroundTruth, SimulatedFleet};
pub use timeline::render_timeline;

use std::io::Write as _;

use chrono::TimeDelta;

/// Maximum age of cached answers: `maintenance_manager.answer_cache.max_staleness` of the servers.
pub const MAX_CACHE_AGE: TimeDelta = TimeDelta::seconds(2);

/// Prints the progress of a long test.
///
/// # Panics
/// Standard error cannot be written.
pub fn print_progress(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("a line on standard error");
}

/// Reads a number from an environment variable.
///
/// # Panics
/// The value is not a number.
#[expect(clippy::disallowed_methods, reason = "the switches of these tests")]
pub fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name);
    value.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}: not a number")))
}
