//! One beat for the loops of a process, so that those that are due at about the same time wake it once. To wake costs an
//! idle process more than most of what its loops do then: nothing of it is in the processor's caches. And the runtime wakes
//! twice for each time that lies apart, because its timers of more than 64 ms are sorted anew on the way.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Ticks on whole multiples of a period since the process first asked for one: the first one comes within a period. What is
/// missed is left out.
///
/// # Panics
/// The period is 0.
#[must_use]
pub fn ticks(every: Duration) -> Interval {
    let mut ticks = interval_at(next(every), every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// The next instant that is a whole multiple of a period away from when the process first asked for one; a period of 0 is
/// over at once.
#[must_use]
pub fn next(every: Duration) -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = *FIRST.get_or_init(Instant::now);
    let now = Instant::now();
    let rest = |time: Duration| {
        time.as_nanos()
            .checked_rem(every.as_nanos())
            .unwrap_or_default()
    };
    // A test may turn its clock back.
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
    async fn each_beat_of_a_long_period_is_one_of_a_short_period() {
        let (second, quarter) = (Duration::from_secs(1), Duration::from_millis(250));
        for millis in [0, 1, 249, 250, 333, 1_000, 100_001] {
            tokio::time::advance(Duration::from_millis(millis)).await;
            let now = Instant::now();
            let (slow, quick) = (next(second), next(quarter));
            assert!(now < quick && quick <= now + quarter && slow <= now + second);
            assert_eq!((slow - quick).as_nanos() % quarter.as_nanos(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_late_is_in_step_again() {
        let every = Duration::from_secs(1);
        let mut ticks = ticks(every);
        let first = ticks.tick().await;
        tokio::time::advance(Duration::from_millis(2_700)).await;
        ticks.tick().await;
        assert_eq!(ticks.tick().await - first, every * 3);
        assert_eq!(next(every) - first, every * 4);
        assert!(next(Duration::ZERO) <= Instant::now());
    }
}
