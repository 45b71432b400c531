//! What a node should do now: the gRPC services for agents, and the loops that go with them.
//!
//! There are two doors on one engine: `evenkeel.agent.v1` for our own agent and `maintmgr.v1` for the ancestor's. A
//! report is one transaction: lock the node, bring the events to the run, keep what is now known, commit, answer.
//! Nothing is answered OK that was not committed.

mod agent;
mod caller;
mod contacts;
mod eim;
mod manager;
mod progress;
mod settings;
mod status;
mod tracker;

pub use manager::MaintenanceManager;
pub use settings::Settings;
pub use tracker::Tracker;
