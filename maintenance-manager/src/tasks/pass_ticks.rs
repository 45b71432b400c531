//! When the passes of a periodic task begin.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Ticks for the passes of a task. The first one comes at once. A pass that takes longer than the
/// interval delays the next one.
#[derive(Debug)]
pub(super) struct PassTicks {
    ticks: Interval,
    stopping: CancellationToken,
}

impl PassTicks {
    /// Ticks until the task is stopped.
    pub(super) fn new(interval: Duration, stopping: &CancellationToken) -> Self {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, stopping: stopping.clone() }
    }

    /// Waits until the next pass is due. Returns false if the task is stopped.
    pub(super) async fn wait_next(&mut self) -> bool {
        tokio::select! {
            () = self.stopping.cancelled() => false,
            _ = self.ticks.tick() => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn passes_begin_at_the_interval_until_the_task_is_stopped() {
        let (interval, stopping) = (Duration::from_mins(10), CancellationToken::new());
        let mut ticks = PassTicks::new(interval, &stopping);
        let start = Instant::now();
        assert!(ticks.wait_next().await);
        assert_eq!(start.elapsed(), Duration::ZERO, "the first pass begins at once");
        // A pass that takes 25 minutes.
        tokio::time::advance(interval * 5 / 2).await;
        assert!(ticks.wait_next().await);
        assert!(ticks.wait_next().await);
        assert_eq!(start.elapsed(), interval * 7 / 2, "no missed pass is made up for");
        stopping.cancel();
        assert!(!ticks.wait_next().await);
    }
}
