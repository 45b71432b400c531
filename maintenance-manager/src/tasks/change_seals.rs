//! Seals the change log.

use std::time::Duration;

use evenkeel_store::change_seals::{ChangeSealer, SealingPass};
use evenkeel_store::{Store, StoreError};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;

/// The interval of passes. An idle pass is one short statement.
const SEAL_INTERVAL: Duration = Duration::from_secs(5);

/// Seals changes of all projects, each within about ten seconds after its commit, unless a writer of the change log stays
/// open for longer. Several replicas may run passes at the same time.
#[derive(Debug)]
pub struct ChangeSealing {
    sealer: ChangeSealer,
    unsealed_age: UnsealedAge,
}

/// Age of the oldest change that is not sealed.
#[derive(Clone, Copy, Debug)]
struct UnsealedAge {
    read_at: Instant,
    age: Duration,
}

impl UnsealedAge {
    /// The age as it was read now.
    fn new(age: Duration) -> Self {
        Self { read_at: Instant::now(), age }
    }

    /// The highest age that is possible now, if no pass has succeeded since.
    fn grown(self) -> Duration {
        self.age + self.read_at.elapsed()
    }
}

impl ChangeSealing {
    #[must_use]
    pub fn new(store: Store) -> Self {
        let unsealed_age = UnsealedAge::new(Duration::ZERO);
        Self { sealer: ChangeSealer::new(store), unsealed_age }
    }

    /// Runs passes until it is stopped.
    pub(crate) async fn run(mut self, outage: &Outage, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(SEAL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            // A failed pass does not end the task: the next pass retries.
            let result = self.pass().await;
            outage.note_pass("change seals", &result);
            if result.is_ok_and(|pass| pass.has_more) {
                ticks.reset_immediately();
            }
        }
    }

    /// Runs one pass and records its metrics.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn pass(&mut self) -> Result<SealingPass, StoreError> {
        let passed = self.sealer.pass().await;
        let age = match &passed {
            Ok(pass) => {
                metrics::counter!("evenkeel_change_seals_total").increment(pass.seals);
                metrics::counter!("evenkeel_sealed_changes_total").increment(pass.changes);
                self.unsealed_age = UnsealedAge::new(pass.oldest_unsealed);
                pass.oldest_unsealed
            }
            // The last age would stay, and no alert would notice that nothing seals.
            Err(_) => self.unsealed_age.grown(),
        };
        metrics::gauge!("evenkeel_unsealed_changes_age_seconds").set(age);
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_age_grows_until_a_pass_succeeds() {
        let age = UnsealedAge::new(Duration::from_secs(2));
        assert_eq!(age.grown(), Duration::from_secs(2));
        tokio::time::advance(Duration::from_secs(70)).await;
        assert_eq!(age.grown(), Duration::from_secs(72));
    }
}
