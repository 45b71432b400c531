//! Time limit of hooks: with `0s` no hook could end, and a limit of years is none.

use std::time::Duration;

use serde::{Deserializer, de};

pub use humantime_serde::serialize;

/// Shortest time limit of a hook.
const SHORTEST: Duration = Duration::from_secs(1);

/// Longest time limit of a hook.
const LONGEST: Duration = Duration::from_hours(24);

/// Reads a time limit within the bounds.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let timeout: Duration = humantime_serde::deserialize(deserializer)?;
    if (SHORTEST..=LONGEST).contains(&timeout) {
        return Ok(timeout);
    }
    Err(de::Error::custom("must be from 1s to 24h"))
}
