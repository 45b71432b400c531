//! Spreads the retries of refused queries: each gets the next turn, at the rate at which calls are
//! served. With one common delay, a large number of nodes would keep the server busy refusing them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::pressure::SMOOTHING_FACTOR;

/// The time to serve a reconnecting node in an idle server, including the handshake.
pub(super) const MIN_SERVICE_TIME: Duration = Duration::from_micros(200);

/// The maximum service time. A low rate may be temporary, or due to few calls.
pub(super) const MAX_SERVICE_TIME: Duration = Duration::from_millis(1);

/// The minimum and the maximum retry delay. With jitter and the delays that nodes add, it must be
/// shorter than the time after which a node is shown as silent.
pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
pub(super) const MAX_RETRY_DELAY: Duration = Duration::from_mins(2);

/// The turns of refused queries. Time alone advances it.
#[derive(Debug)]
pub(super) struct RetryQueue {
    started: Instant,
    /// The turn of the last refused query, in nanoseconds since `started`.
    last_turn_nanos: AtomicU64,
    /// The time between two turns, in nanoseconds.
    service_time_nanos: AtomicU64,
}

impl RetryQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            last_turn_nanos: AtomicU64::new(0),
            service_time_nanos: AtomicU64::new(nanos(MIN_SERVICE_TIME)),
        }
    }

    /// The delay until the turn of a query that is refused now.
    pub fn enqueue(&self, now: Instant) -> Duration {
        let now = nanos(now.saturating_duration_since(self.started));
        let service_time = self.service_time_nanos.load(Ordering::Relaxed);
        let turn = |last: u64| (last.max(now) + service_time).min(now + nanos(MAX_RETRY_DELAY));
        let join = |last| Some(turn(last));
        let before = self.last_turn_nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, join);
        let (Ok(last) | Err(last)) = before;
        Duration::from_nanos(turn(last) - now).max(MIN_RETRY_DELAY)
    }

    /// Adjusts the service time to the number of calls served in a time span.
    pub fn record_turns(&self, turns: u32, within: Duration) {
        let service_time = self.service_time_nanos.load(Ordering::Relaxed);
        let before = 1.0 / Duration::from_nanos(service_time).as_secs_f64();
        let rate = before + SMOOTHING_FACTOR * (f64::from(turns) / within.as_secs_f64() - before);
        let service_time = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(MAX_SERVICE_TIME);
        let service_time = nanos(service_time.clamp(MIN_SERVICE_TIME, MAX_SERVICE_TIME));
        self.service_time_nanos.store(service_time, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}
