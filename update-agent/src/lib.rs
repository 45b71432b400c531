//! `evenkeel-agent` keeps one node up to date.
//!
//! The server decides what a node should do and when. The agent carries that out, survives being
//! killed at any moment, and reports what really happened. [`agent`] is the main loop (poll, act,
//! report), [`engine`] runs one attempt from the plan to the outcome and writes everything to the
//! [`journal`] first, [`modules`] know how to change one kind of thing, and [`link`] connects to
//! the server. Before a change begins, the [`gate`] checks the node itself, and the limits of its
//! [`owner`] take precedence over the server. [`probes`] run scripts that report groups and facts of
//! the node. All other programs are started by the [`runner`].

pub mod agent;
pub mod agent_lock;
pub mod cli;
pub mod commands;
pub mod config;
pub mod configuration;
pub mod durable;
pub mod engine;
pub mod facts;
#[cfg(test)]
#[path = "../../domain/tests/fuzz/driver.rs"]
mod fuzz_driver;
pub mod gate;
pub mod grants;
#[cfg(feature = "halt-points")]
pub mod halt;
pub mod health;
pub mod history;
pub mod hooks;
pub mod identity;
pub mod inhibitor;
pub mod journal;
pub mod kernel_history;
pub mod link;
pub mod model;
pub mod module_registry;
pub mod modules;
pub mod needrestart;
pub mod node;
pub mod notify;
pub mod os;
pub mod other_updaters;
pub mod owner;
pub mod paths;
pub mod probes;
pub mod reboot;
pub mod received_target;
pub mod runner;
pub mod status;
pub mod text;
pub mod trial;
