//! Tests with real nodes: Debian roots, booted containers and emulated machines.
//!
//! They are one program, because they share a fleet, roots and releases. Most of the time they wait,
//! so several run at the same time.

mod booted;
mod booted_package;
mod booted_server;
mod cut;
mod image_cut;
mod kill;
mod kill_at_random;
mod lab;
mod mirror;
mod packages;
mod rauc_bundles;
mod rauc_cut;
mod slot_mount;
mod update;
mod vm;
