//! A lab: real Debian roots with real apt, real signed repositories, and a real server.
//!
//! A node of the lab is an overlay over a Debian root in its own namespaces (`tests/lab/in-root`). Creating one is
//! fast, and killing it ends everything that it started. The lab needs root and overlayfs, which are not available
//! everywhere: where the lab is impossible, [`Lab::open`] prints one line and the test ends there. With
//! `EVENKEEL_REQUIRE_OS_TESTS=1` the test fails instead.

mod binaries;
mod boot;
mod containers;
mod disk;
mod fleet;
mod machine;
mod member;
mod mirror;
mod node;
mod packages;
mod registry;
mod repository;
mod rest;
mod server;
mod slow_connection;
mod suite;
mod sweeper;
mod unclean_disk;
pub mod vm;
mod web;

pub use binaries::Binaries;
pub use boot::BootedNode;
pub use containers::{Containers, IMAGE_NAMES, build_images, container_name, read_archive};
pub use disk::{Disk, Emulator, remove_as_root, strip};
pub use fleet::{Agent, Fleet};
pub use machine::{Lab, describe_output, until};
pub use member::{Member, events, package, reason};
pub use mirror::find_debian_sources;
pub use node::{DpkgStatus, Node, Running, is_older};
pub use packages::{
    PackageSet, build_debian_package, check_release, configure_server, make_bill_of_materials,
    run_lintian,
};
pub use registry::Registry;
pub use repository::Repository;
pub use rest::Rest;
pub use server::Server;
pub use slow_connection::SlowConnection;
pub use suite::Suite;
pub use unclean_disk::UncleanDisk;
pub use web::{Web, WebRequest};
