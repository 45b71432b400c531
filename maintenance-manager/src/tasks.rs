//! The periodic tasks of the maintenance manager.

pub mod change_seals;
pub mod cleanup;
pub mod image_updates;
mod node_marks;
pub mod notification_deliveries;
pub mod outdated_lists;
mod pass_ticks;
pub mod run_timeouts;
pub mod stale_nodes;
