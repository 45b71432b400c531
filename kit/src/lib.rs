//! Runtime basics of a process: lifecycle, telemetry, clock, aligned ticks, job schedules, secrets, error chains.
//!
//! Both the server and the agent are built on this crate, so it stays small and knows nothing about either.
//!
//! | module | the only access to |
//! | --- | --- |
//! | [`tick`] | aligned intervals for loops |
//! | [`mod@job_schedule`] | jobs in cron syntax, with the feature `job-schedule` |
//! | [`clock`] | the current time |
//! | [`lifecycle`] | starting tasks and stopping the process |
//! | [`keyed_semaphore`] | limits per project, caller or address |
//! | [`mod@offload`] | long work outside of the threads that run tasks |
//! | [`telemetry`] | the log |
//! | [`spans`] | spans of traces, with the feature `spans` |
//! | [`setting_type`] | what a setting expects, in the words of its users |
//! | [`secret`] | values that must not appear in logs |
//! | [`mod@chain`] | printing an error with its causes |

#![warn(missing_docs)]

pub mod chain;
pub mod clock;
#[cfg(feature = "job-schedule")]
pub mod job_schedule;
pub mod keyed_semaphore;
pub mod lifecycle;
pub mod offload;
pub mod secret;
pub mod setting_type;
#[cfg(feature = "spans")]
pub mod spans;
pub mod telemetry;
pub mod tick;

pub use chain::chain;
pub use clock::{Clock, SystemClock, TestClock};
#[cfg(feature = "job-schedule")]
pub use job_schedule::JobSchedule;
pub use keyed_semaphore::{KeyedPermit, KeyedSemaphore, max_per_project};
pub use lifecycle::Lifecycle;
pub use offload::{OffloadShare, offload, offload_now};
pub use secret::Secret;
pub use setting_type::describe_setting_type;
