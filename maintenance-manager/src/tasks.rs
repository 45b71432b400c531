//! The periodic tasks of the maintenance manager.

pub mod cleanup;
pub mod image_updates;
pub mod run_timeouts;
pub mod stale_nodes;
