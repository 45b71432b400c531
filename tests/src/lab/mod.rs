//! A lab: real Debian roots with real apt, real signed repositories, and a real server beside them.
//!
//! A node of the lab is an overlay over a Debian root in namespaces of its own (`tests/lab/in-root`): made in no time,
//! and gone with everything it started when it is killed. What is needed for that, root and overlayfs, is not everywhere,
//! so a test begins with [`Lab::open`] and ends there, with one line, where the lab cannot be. With
//! `EVENKEEL_REQUIRE_OS_TESTS=1` it fails instead.

mod binaries;
mod fleet;
mod line;
mod machine;
mod node;
mod repository;
mod rest;

mod server;

pub use binaries::Binaries;
pub use fleet::{Agent, Fleet, Member, events};
pub use line::SlowLine;
pub use machine::{Lab, until};
pub use node::{Node, Running, is_older};
pub use repository::Repository;
pub use rest::Rest;
pub use server::Server;
