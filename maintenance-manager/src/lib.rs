//! The maintenance manager: the gRPC services for agents, and the periodic tasks that belong to
//! them.
//!
//! Two services share one engine: `evenkeel.agent.v1` for our own agent and `maintmgr.v1` for EIM's
//! agents. `hostmgr_southbound_proto` serves the heartbeats of EIM's nodes. A report is one
//! transaction: lock the node, apply the events to the run, store the node state, commit, answer.
//! OK is answered only after the commit.
//!
//! Most polls need no write. They are answered from memory without the database (`answer_cache`).
//! Polls that are not cached are evaluated in batches without locks or writes (`poll_batch`). A
//! poll of our own agent may wait until its answer changes (`long_poll`). Under overload nodes are
//! asked to poll less often, and calls are refused before they are read (`load`, `admission`).

mod admission;
mod agent;
mod answer_cache;
mod caller;
mod connection;
mod contacts;
mod derived_state;
mod eim;
mod hostmgr;
mod housekeeping;
mod image_watch;
mod incoming_body;
mod load;
mod long_poll;
mod manager;
mod memory;
mod node_transaction;
mod outage;
mod peer;
mod poll_batch;
mod run_reaper;
mod settings;
mod silent_nodes;
mod status;
mod token_bindings;

pub use answer_cache::{AnswerCacheSettings, CacheSizes};
pub use connection::ConnectionState;
pub use housekeeping::{Housekeeping, RemovedRows};
pub use image_watch::ImageWatch;
pub use load::LoadSettings;
pub use long_poll::LongPollSettings;
pub use manager::{MAX_MESSAGE_BYTES, MaintenanceManager};
pub use memory::{MemoryPressure, OutOfMemory};
pub use peer::RateLimitSettings;
pub use poll_batch::PollBatchSettings;
pub use run_reaper::RunReaper;
pub use settings::{RunTimeoutSettings, Settings};
pub use silent_nodes::SilentNodeWatch;
