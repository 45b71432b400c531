//! Support for the tests of the whole system: architecture rules ([`architecture`]), a lab with real Debian roots, real
//! repositories and a real server ([`lab`], [`node_setup`]), power cuts ([`cut`]), the state of a node after them
//! ([`node_state`]) and what a machine would boot then ([`boot`]), the state of a whole root ([`root_state`]), and servers
//! that are killed while simulated nodes use them ([`history`]). [`monitoring`] reads the queries of the alerts and the
//! dashboard. [`next_release`] is the release after this one.

pub mod architecture;
pub mod boot;
pub mod cut;
pub mod history;
pub mod lab;
pub mod monitoring;
pub mod next_release;
pub mod node_setup;
pub mod node_state;
mod programs;
pub mod root_state;

pub use programs::{newest_postgres, run_program};
