//! `evenkeel-agent` keeps one node up to date.
//!
//! The server decides what a node should do and when; the agent does it, survives being killed at any moment, and tells
//! truthfully what happened. [`agent`] is the loop (poll, act, report), [`engine`] carries one attempt from plan to
//! verdict with everything written to the [`journal`] first, [`modules`] know how to change one kind of thing, and
//! [`link`] speaks to the server. Before anything begins the [`gate`] asks the node itself, and its [`owner`] has the
//! last word. Other programs are started by the one [`runner`].

pub mod agent;
pub mod boot;
pub mod cli;
pub mod commands;
pub mod config;
pub mod durable;
pub mod engine;
pub mod facts;
pub mod gate;
pub mod grants;
#[cfg(feature = "halt-points")]
pub mod halt;
pub mod history;
pub mod hooks;
pub mod identity;
pub mod inhibitor;
pub mod journal;
pub mod link;
pub mod lock;
pub mod model;
pub mod modules;
pub mod node;
pub mod notify;
pub mod os;
pub mod owner;
pub mod place;
pub mod runner;
pub mod status;
pub mod trial;
