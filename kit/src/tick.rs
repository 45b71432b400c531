//! Aligned ticks for the loops of a process: loops that are due at about the same time wake the process once. A wake-up of an
//! idle process costs more than most of the work that the loops do then, because the processor's caches are cold. And the
//! runtime wakes twice for each separate deadline, because it re-sorts timers of more than 64 ms on the way.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// An interval that ticks at whole multiples of a period since the first call in this process. The first tick comes within
/// one period. Missed ticks are skipped.
///
/// # Panics
/// The period is 0.
#[must_use]
pub fn aligned_interval(every: Duration) -> Interval {
    let mut ticks = interval_at(next_tick(every), every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// The next instant that is a whole multiple of a period after the first call in this process; now, if the period is 0.
#[must_use]
pub fn next_tick(every: Duration) -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = *FIRST.get_or_init(Instant::now);
    let now = Instant::now();
    let rest = |time: Duration| time.as_nanos().checked_rem(every.as_nanos()).unwrap_or_default();
    // A test may turn its clock back, so `now` can be before `first`.
    let left = match rest(first.saturating_duration_since(now)) {
        0 => every.as_nanos() - rest(now.saturating_duration_since(first)),
        before => before,
    };
    now + u64::try_from(left).map_or(every, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_tick_of_a_long_period_is_a_tick_of_a_short_period() {
        let (second, quarter) = (Duration::from_secs(1), Duration::from_millis(250));
        for millis in [0, 1, 249, 250, 333, 1_000, 100_001] {
            tokio::time::advance(Duration::from_millis(millis)).await;
            let now = Instant::now();
            let (slow, quick) = (next_tick(second), next_tick(quarter));
            assert!(now < quick && quick <= now + quarter && slow <= now + second);
            assert_eq!((slow - quick).as_nanos() % quarter.as_nanos(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_loop_returns_to_the_aligned_ticks() {
        let every = Duration::from_secs(1);
        let mut ticks = aligned_interval(every);
        let first = ticks.tick().await;
        tokio::time::advance(Duration::from_millis(2_700)).await;
        ticks.tick().await;
        assert_eq!(ticks.tick().await - first, every * 3);
        assert_eq!(next_tick(every) - first, every * 4);
        assert!(next_tick(Duration::ZERO) <= Instant::now());
    }
}
