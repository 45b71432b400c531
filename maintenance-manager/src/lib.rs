//! The maintenance manager: the gRPC services for agents, and the periodic tasks that belong to
//! them.
//!
//! Two services share one engine: `evenkeel.agent.v1` for our own agent and `maintmgr.v1` for EIM's
//! agents. `hostmgr_southbound_proto` serves the heartbeats of EIM's nodes. A report is one
//! transaction: lock the node, apply the events to the run, store the node state, commit, answer.
//! OK is answered only after the commit.
//!
//! Most polls need no write. They are answered from memory without the database (`poll::cache`).
//! Polls that are not cached are evaluated in batches without locks or writes (`poll::batch`). A
//! poll of our own agent may wait until its answer changes (`poll::long_poll`). Under overload nodes are
//! asked to poll less often, and calls are refused before they are read (`admission`).

mod admission;
mod contacts;
mod derived_state;
mod durations;
mod evaluate;
mod grpc;
mod manager;
mod memory;
mod node_transaction;
mod notifications;
mod outage;
mod poll;
mod run_spans;
mod settings;
mod status;
mod tasks;
mod token_bindings;
mod wire;

pub use admission::concurrency::LoadSettings;
pub use admission::connection::ConnectionState;
pub use admission::daily_limits::DailyLimitSettings;
pub use admission::rate_limit::RateLimitSettings;
pub use manager::{MAX_MESSAGE_BYTES, MaintenanceManager};
pub use memory::{MemoryPressure, OutOfMemory};
pub use poll::batch::PollBatchSettings;
pub use poll::cache::{AnswerCacheSettings, CacheSizes};
pub use poll::long_poll::LongPollSettings;
pub use settings::{
    InvalidSettings, InvalidSmtpSettings, NotificationSettings, RunTimeoutSettings, Settings,
    SmtpSettings, SmtpTls,
};
pub use tasks::change_seals::ChangeSealing;
pub use tasks::cleanup::{Housekeeping, RemovedRows};
pub use tasks::image_updates::ImageWatch;
pub use tasks::notification_deliveries::NotificationDeliveries;
pub use tasks::outdated_lists::OutdatedListsWatch;
pub use tasks::run_timeouts::RunReaper;
pub use tasks::stale_nodes::SilentNodeWatch;
