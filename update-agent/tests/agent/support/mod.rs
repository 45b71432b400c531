//! What stands in for the world.

pub mod journal;
pub mod link;
pub mod node;
pub mod server;
pub mod system;
