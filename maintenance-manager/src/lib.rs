//! What a node should do now: the gRPC services for agents, and the loops that go with them.
//!
//! There are two doors on one engine: `evenkeel.agent.v1` for our own agent and `maintmgr.v1` for the ancestor's, with
//! `hostmgr_southbound_proto` beside it for the signs of life of the latter's nodes. A report is one transaction: lock the
//! node, bring the events to the run, keep what is now known, commit, answer. Nothing is answered OK that was not committed.
//!
//! Most polls say nothing new. They are answered from memory (`view`), without the database; what is not remembered is
//! looked at for many nodes at once (`desk`), without locking or writing. A poll of our own agent may be kept open until
//! there is something new to say (`holds`). When there is more to do than can be borne, nodes are asked to come less often,
//! and calls are refused before they are read (`load`, `admission`).

mod admission;
mod agent;
mod arriving;
mod bonds;
mod caller;
mod carried;
mod contacts;
mod derived;
mod desk;
mod eim;
mod holds;
mod hostmgr;
mod housekeeping;
mod images;
mod load;
mod manager;
mod memory;
mod outage;
mod peer;
mod progress;
mod settings;
mod silence;
mod status;
mod tracker;
mod view;

pub use carried::Carried;
pub use desk::DeskSettings;
pub use holds::HoldSettings;
pub use housekeeping::{Housekeeping, Swept};
pub use images::ImageWatch;
pub use load::LoadSettings;
pub use manager::{MAX_MESSAGE, MaintenanceManager};
pub use memory::{Memory, TurnedAway};
pub use peer::FloodSettings;
pub use settings::{PatienceSettings, Settings};
pub use silence::SilenceWatch;
pub use tracker::Tracker;
pub use view::{Sizes, ViewSettings};
