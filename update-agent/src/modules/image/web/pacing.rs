//! Download rate and delays after failures.

use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder, ExponentialBuilder};
use tokio::time::Instant;

/// The shortest delay. Jitter adds up to as much again.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The longest delay. Jitter adds up to as much again: 10 min in total.
const MAX_RETRY_DELAY: Duration = Duration::from_mins(5);

/// A server that names a longer delay is contacted after this one.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Time whose bytes may come at once after a pause.
const BURST_DURATION: Duration = Duration::from_secs(1);

/// Delay after this many failures in a row, at least one.
pub fn retry_delay(failures: u32) -> Duration {
    let waits = ExponentialBuilder::new()
        .with_min_delay(MIN_RETRY_DELAY)
        .with_max_delay(MAX_RETRY_DELAY)
        .without_max_times()
        .with_jitter();
    // The delay does not grow any more.
    let before = failures.saturating_sub(1).min(16) as usize;
    waits.build().nth(before).unwrap_or(MAX_RETRY_DELAY)
}

/// Delay for a server that names one: not shorter, within limits, and with jitter so that nodes do
/// not return at once.
pub fn retry_after_delay(after: Duration) -> Duration {
    let after = after.clamp(MIN_RETRY_DELAY, MAX_RETRY_AFTER);
    let tenth = ConstantBuilder::new().with_delay(after / 10).with_jitter();
    after + tenth.build().next().unwrap_or_default()
}

/// A token bucket: received bytes are a debt, and while there is a debt nothing is read from the
/// body. TCP then slows the server down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: u64,
    /// When the debt is paid.
    paid_at: Instant,
}

impl TokenBucket {
    /// A full bucket for this many bytes per second; 0 for no limit.
    pub fn new(rate: u64, now: Instant) -> Self {
        let settled = now.checked_sub(BURST_DURATION).unwrap_or(now);
        Self { rate, paid_at: settled }
    }

    /// Bytes per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Adds received bytes to the debt.
    pub fn consume(&mut self, bytes: usize, now: Instant) {
        if self.rate == 0 {
            return;
        }
        let full = now.checked_sub(BURST_DURATION).unwrap_or(now);
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / self.rate;
        let debt = Duration::from_nanos(nanos);
        let from = self.paid_at.max(full);
        self.paid_at = from.checked_add(debt).unwrap_or(from);
    }

    /// For how long nothing may be read.
    pub fn delay(&self, now: Instant) -> Duration {
        self.paid_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_grow_from_seconds_to_minutes() {
        for failures in [0, 1, 2, 5, 10, 1_000, u32::MAX] {
            let wait = retry_delay(failures);
            assert!(wait >= MIN_RETRY_DELAY, "{failures}: {wait:?}");
            assert!(wait <= Duration::from_mins(10), "{failures}: {wait:?}");
        }
        assert!(retry_delay(1) <= MIN_RETRY_DELAY * 2);
        assert!(retry_delay(20) >= MAX_RETRY_DELAY);
        let waits: Vec<_> = (0..50).map(|_| retry_delay(20)).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }

    #[test]
    fn a_retry_time_of_the_server_is_a_minimum() {
        for (requested, least) in [
            (Duration::ZERO, MIN_RETRY_DELAY),
            (Duration::from_secs(90), Duration::from_secs(90)),
            (Duration::MAX, MAX_RETRY_AFTER),
        ] {
            let wait = retry_after_delay(requested);
            assert!(wait >= least && wait <= least * 2, "{requested:?}: {wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_limited_and_a_short_burst_is_free() {
        let started = Instant::now() + Duration::from_mins(1);
        let mut bucket = TokenBucket::new(1_000, started);
        bucket.consume(1_000, started);
        assert_eq!(bucket.delay(started), Duration::ZERO, "the burst");
        bucket.consume(500, started);
        assert_eq!(bucket.delay(started), Duration::from_millis(500));
        let later = started + Duration::from_millis(400);
        assert_eq!(bucket.delay(later), Duration::from_millis(100));

        // A long pause saves no more than one burst.
        let much_later = started + Duration::from_hours(1);
        bucket.consume(3_000, much_later);
        assert_eq!(bucket.delay(much_later), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_there_is_no_delay() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(0, now);
        bucket.consume(usize::MAX, now);
        assert_eq!(bucket.delay(now), Duration::ZERO);
        let mut slow = TokenBucket::new(1, now);
        slow.consume(usize::MAX, now);
        assert!(slow.delay(now) > Duration::from_hours(1), "and no overflow");
    }
}
