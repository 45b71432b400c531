//! Test doubles, and helpers for the real machine.

pub mod authority;
// A file server with exact control over its responses, shared with the unit tests of the agent's HTTP client.
#[path = "../../src/modules/image/web/testing.rs"]
pub mod file_server;
pub mod image_files;
pub mod image_node;
pub mod journal;
pub mod link;
pub mod lock;
pub mod machine;
pub mod manager;
pub mod node;
pub mod os;
pub mod proxy;
pub mod server;
pub mod skipping;
pub mod slots;
pub mod system;
pub mod tool_output;
