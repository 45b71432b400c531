//! How fast is fetched, and how long is waited after a failure.

use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder, ExponentialBuilder};
use tokio::time::Instant;

/// The shortest wait, before chance adds up to as much again.
const SHORTEST: Duration = Duration::from_secs(5);

/// The longest, before chance adds up to as much again: in all no more than 10 min.
const LONGEST: Duration = Duration::from_mins(5);

/// A server that names a later time is asked after this one.
const LONGEST_ASKED: Duration = Duration::from_hours(1);

/// So much may come at once after a silence, in the time that it takes at the given rate.
const BURST: Duration = Duration::from_secs(1);

/// How long to wait after so many failures in a row, at least one.
pub fn after_failures(failures: u32) -> Duration {
    let waits = ExponentialBuilder::new()
        .with_min_delay(SHORTEST)
        .with_max_delay(LONGEST)
        .without_max_times()
        .with_jitter();
    // Further on nothing grows any more.
    let before = failures.saturating_sub(1).min(16) as usize;
    waits.build().nth(before).unwrap_or(LONGEST)
}

/// How long to wait if the server asks for it: not less, unless that is unreasonable, and not all nodes at once.
pub fn as_asked(after: Duration) -> Duration {
    let after = after.clamp(SHORTEST, LONGEST_ASKED);
    let tenth = ConstantBuilder::new().with_delay(after / 10).with_jitter();
    after + tenth.build().next().unwrap_or_default()
}

/// A token bucket: bytes that came are owed, and while something is owed nothing is taken from the line. The server's
/// own sending is then held back by TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    rate: u64,
    /// When nothing is owed any more.
    settled: Instant,
}

impl Bucket {
    /// A full bucket of so many bytes per second; 0 for no limit.
    pub fn new(rate: u64, now: Instant) -> Self {
        let settled = now.checked_sub(BURST).unwrap_or(now);
        Self { rate, settled }
    }

    /// Bytes per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Takes note of bytes that came.
    pub fn take(&mut self, bytes: usize, now: Instant) {
        if self.rate == 0 {
            return;
        }
        let full = now.checked_sub(BURST).unwrap_or(now);
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / self.rate;
        let owed = Duration::from_nanos(nanos);
        let from = self.settled.max(full);
        self.settled = from.checked_add(owed).unwrap_or(from);
    }

    /// For how long nothing may be taken.
    pub fn owed(&self, now: Instant) -> Duration {
        self.settled.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_seconds_to_minutes_and_no_further() {
        for failures in [0, 1, 2, 5, 10, 1_000, u32::MAX] {
            let wait = after_failures(failures);
            assert!(wait >= SHORTEST, "{failures}: {wait:?}");
            assert!(wait <= Duration::from_mins(10), "{failures}: {wait:?}");
        }
        assert!(after_failures(1) <= SHORTEST * 2);
        assert!(after_failures(20) >= LONGEST);
        let waits: Vec<_> = (0..50).map(|_| after_failures(20)).collect();
        assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    }

    #[test]
    fn a_server_is_not_asked_before_the_time_that_it_named() {
        for (asked, least) in [
            (Duration::ZERO, SHORTEST),
            (Duration::from_secs(90), Duration::from_secs(90)),
            (Duration::MAX, LONGEST_ASKED),
        ] {
            let wait = as_asked(asked);
            assert!(wait >= least && wait <= least * 2, "{asked:?}: {wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_come_no_faster_than_they_may_and_a_short_burst_is_free() {
        let begun = Instant::now() + Duration::from_mins(1);
        let mut bucket = Bucket::new(1_000, begun);
        bucket.take(1_000, begun);
        assert_eq!(bucket.owed(begun), Duration::ZERO, "the burst");
        bucket.take(500, begun);
        assert_eq!(bucket.owed(begun), Duration::from_millis(500));
        let later = begun + Duration::from_millis(400);
        assert_eq!(bucket.owed(later), Duration::from_millis(100));

        // A long silence saves up no more than one burst.
        let much_later = begun + Duration::from_hours(1);
        bucket.take(3_000, much_later);
        assert_eq!(bucket.owed(much_later), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_is_ever_owed() {
        let now = Instant::now();
        let mut bucket = Bucket::new(0, now);
        bucket.take(usize::MAX, now);
        assert_eq!(bucket.owed(now), Duration::ZERO);
        let mut slow = Bucket::new(1, now);
        slow.take(usize::MAX, now);
        assert!(slow.owed(now) > Duration::from_hours(1), "and no overflow");
    }
}
