//! `evenkeel-agent configuration` as a process.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod apply;
mod check;
mod image_root;
mod images;
#[path = "../agent/support/skipping.rs"]
mod skipping;
