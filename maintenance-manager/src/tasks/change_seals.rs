//! Seals the change log.

use std::time::Duration;

use evenkeel_store::change_seals::{ChangeSealer, SealingPass};
use evenkeel_store::{Store, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;

/// The interval of passes. An idle pass is one short statement.
const SEAL_INTERVAL: Duration = Duration::from_secs(1);

/// Seals changes of all projects, each within about two seconds after its commit. Several replicas may run passes at the
/// same time.
#[derive(Debug)]
pub struct ChangeSealing {
    sealer: ChangeSealer,
}

impl ChangeSealing {
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { sealer: ChangeSealer::new(store) }
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
        }
    }

    /// Runs one pass and records its metrics.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn pass(&mut self) -> Result<SealingPass, StoreError> {
        let pass = self.sealer.pass().await?;
        metrics::counter!("evenkeel_change_seals_total").increment(pass.seals);
        metrics::counter!("evenkeel_sealed_changes_total").increment(pass.changes);
        metrics::gauge!("evenkeel_unsealed_changes_age_seconds")
            .set(pass.oldest_unsealed.as_secs_f64());
        Ok(pass)
    }
}
