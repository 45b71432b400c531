//! How a process behaves: lifecycle, telemetry, clock, beat, calendar, secrets, error chains.
//!
//! Both the server and the agent are built on this crate, so it stays small and knows nothing about either.
//!
//! | module | what it is the only door to |
//! | --- | --- |
//! | [`beat`] | when loops are due |
//! | [`mod@calendar`] | work that is due by a calendar, with the feature `calendar` |
//! | [`clock`] | the current time |
//! | [`lifecycle`] | starting tasks and ending the process |
//! | [`telemetry`] | the log |
//! | [`secret`] | values that must not be shown |
//! | [`mod@chain`] | printing an error with its causes |

pub mod beat;
#[cfg(feature = "calendar")]
pub mod calendar;
pub mod chain;
pub mod clock;
pub mod lifecycle;
pub mod secret;
pub mod telemetry;

#[cfg(feature = "calendar")]
pub use calendar::Calendar;
pub use chain::chain;
pub use clock::{Clock, SystemClock, TestClock};
pub use lifecycle::Lifecycle;
pub use secret::Secret;
