//! What a node should do now: the gRPC services for agents, and the loops that go with them.
//!
//! There are two doors on one engine: `evenkeel.agent.v1` for our own agent and `maintmgr.v1` for the ancestor's, with
//! `hostmgr_southbound_proto` beside it for the signs of life of the latter's nodes. A report is one transaction: lock the node, bring the events to the run, keep what is now known, commit, answer.
//! Nothing is answered OK that was not committed.

mod agent;
mod bonds;
mod caller;
mod contacts;
mod derived;
mod eim;
mod hostmgr;
mod housekeeping;
mod manager;
mod outage;
mod peer;
mod progress;
mod settings;
mod silence;
mod status;
mod tracker;

pub use housekeeping::{Housekeeping, Swept};
pub use manager::MaintenanceManager;
pub use peer::FloodSettings;
pub use settings::{PatienceSettings, Settings};
pub use silence::SilenceWatch;
pub use tracker::Tracker;
