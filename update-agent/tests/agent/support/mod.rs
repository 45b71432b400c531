//! What stands in for the world.

pub mod image_node;
pub mod journal;
pub mod link;
pub mod machine;
pub mod manager;
pub mod node;
pub mod proxy;
pub mod server;
pub mod slots;
pub mod system;
