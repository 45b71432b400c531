//! Bounds of configured durations.

use std::time::Duration;

use chrono::TimeDelta;

/// Converts a duration, limited to a century so that date arithmetic does not overflow.
pub fn to_time_delta(length: Duration) -> TimeDelta {
    let century = TimeDelta::days(36_525);
    TimeDelta::from_std(length).map_or(century, |length| length.min(century))
}

/// The interval of a periodic task, at least 100 ms so that it does not spin.
pub fn loop_interval(interval: Duration) -> Duration {
    interval.max(Duration::from_millis(100))
}
