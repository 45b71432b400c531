//! `evenkeel`: the command line of the operator.
//!
//! [`args::Cli`] is the parsed command line. Running it sends requests to the server and writes to
//! the streams of a [`System`], so tests pass a line and compare the output.

pub mod args;
mod certificate;
mod client;
mod commands;
pub mod contexts;
mod degrees;
mod dispatch;
mod event_stream;
mod excerpt;
pub mod failure;
mod http;
mod labels;
mod listing;
pub mod login;
mod options;
mod output;
mod page;
mod requests;
mod resource;
mod system;
mod table;
mod time;
mod tree;

pub use failure::Failure;
pub use page::sanitize_text;
pub use system::{Ending, Environment, System};
