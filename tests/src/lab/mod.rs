//! A lab: real Debian roots with real apt, real signed repositories, and a real server beside them.
//!
//! A node of the lab is an overlay over a Debian root in namespaces of its own (`tests/lab/in-root`): made in no time,
//! and gone with everything it started when it is killed. What is needed for that, root and overlayfs, is not everywhere,
//! so a test begins with [`Lab::open`] and ends there, with one line, where the lab cannot be. With
//! `EVENKEEL_REQUIRE_OS_TESTS=1` it fails instead.

mod binaries;
mod boot;
mod disk;
mod fleet;
mod line;
mod machine;
mod member;
mod node;
mod registry;
mod repository;
mod rest;
mod server;
mod suite;
mod sweeper;
pub mod vm;
mod web;

pub use binaries::Binaries;
pub use boot::{Booted, debian_package};
pub use disk::{Disk, Emulator, discard, stripped};
pub use fleet::{Agent, Fleet};
pub use line::SlowLine;
pub use machine::{Lab, told, until};
pub use member::{Member, events, package, reason};
pub use node::{Found, Node, Running, is_older};
pub use registry::Registry;
pub use repository::Repository;
pub use rest::Rest;
pub use server::Server;
pub use suite::Suite;
pub use web::{Asked, Web};
