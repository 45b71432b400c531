//! What stands in for the world.

// The server whose answers are written down to the byte, as the tests beside the agent's own client have it.
#[path = "../../../src/modules/image/web/testing.rs"]
pub mod file_server;
pub mod image_files;
pub mod image_node;
pub mod journal;
pub mod link;
pub mod machine;
pub mod manager;
pub mod node;
pub mod os;
pub mod proxy;
pub mod server;
pub mod slots;
pub mod system;
