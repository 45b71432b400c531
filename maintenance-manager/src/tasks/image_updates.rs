//! Updates the available images of image-based nodes when an image series changes.
//!
//! Polls do not do this: a change of the catalogue concerns every node of the series at once and
//! would send each of them through a transaction of its own.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain::chain;
use evenkeel_store::image_series::{self, ImageSeries};
use evenkeel_store::{Store, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::durations::loop_interval;
use crate::outage::Outage;
use crate::settings::Settings;

/// The maximum number of image series in a pass.
const MAX_SERIES_PER_PASS: u32 = 1_000;

/// The maximum number of nodes in a transaction.
const NODES_PER_TRANSACTION: u32 = 500;

/// The minimum interval between passes.
const MIN_PASS_INTERVAL: Duration = Duration::from_secs(1);

/// Updates the nodes of changed image series. A pass needs no input: its work follows from the
/// database alone. It skips a series that another replica is updating, so several replicas may run
/// passes at the same time.
#[derive(Clone, Debug)]
pub struct ImageWatch {
    store: Store,
    check_interval: Duration,
    outage: Arc<Outage>,
}

struct PassResult {
    /// The number of series that were out of date at the start.
    stale_series: usize,
    /// The number of nodes whose available image changed.
    changed_nodes: u64,
}

impl ImageWatch {
    #[must_use]
    pub fn new(store: Store, settings: &Settings) -> Self {
        Self {
            store,
            check_interval: loop_interval(settings.image_check_interval),
            outage: Arc::default(),
        }
    }

    /// Shares the outage tracking with other tasks.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Runs passes until it is stopped: when images may have changed, and at an interval. After a
    /// pass with series that were out of date, the next pass follows soon, because it may have
    /// skipped some.
    pub async fn run(self, image_changes: Arc<Notify>, stopping: CancellationToken) {
        loop {
            let next_pass = Instant::now() + MIN_PASS_INTERVAL.min(self.check_interval);
            let result = self.pass_until(&stopping).await;
            self.outage.note_pass("images", &result);
            let mut is_behind = true;
            if let Ok(PassResult { stale_series, changed_nodes }) = result {
                is_behind = stale_series > 0;
                if changed_nodes > 0 {
                    tracing::info!(changed_nodes, "updated the available images of nodes");
                }
            }
            let rest = async {
                if !is_behind {
                    // Changes are announced only by the change log, which may not be followed.
                    timeout(self.check_interval, image_changes.notified()).await.ok();
                }
                sleep_until(next_pass).await;
            };
            tokio::select! {
                () = stopping.cancelled() => return,
                () = rest => {}
            }
        }
    }

    /// Runs one pass. Returns the number of nodes whose available image changed. A series that
    /// fails for another reason than an unreachable database is left for the next pass.
    pub async fn pass(&self) -> Result<u64, StoreError> {
        let result = self.pass_until(&CancellationToken::new()).await?;
        Ok(result.changed_nodes)
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<PassResult, StoreError> {
        let tx = self.store.fleet().await?;
        let behind = image_series::list_outdated(&tx, MAX_SERIES_PER_PASS).await?;
        drop(tx);
        let (stale_series, mut changed_nodes) = (behind.len(), 0);
        for series in behind {
            if stopping.is_cancelled() {
                break;
            }
            match self.update_series(&series, stopping).await {
                Ok(more) => changed_nodes += more,
                Err(error @ StoreError::Unreachable(_)) => return Err(error),
                Err(error) => tracing::warn!(
                    profile = series.profile_name,
                    error = %chain(&error),
                    "cannot update the available images of a series; the next pass retries"
                ),
            }
        }
        Ok(PassResult { stale_series, changed_nodes })
    }

    /// Updates the nodes of a series in batches. An interrupted update starts again from the
    /// beginning.
    async fn update_series(
        &self,
        series: &ImageSeries,
        stopping: &CancellationToken,
    ) -> Result<u64, StoreError> {
        let (mut after, mut changed_nodes) = (None, 0);
        while !stopping.is_cancelled() {
            let tx = self.store.tenant(series.tenant).await?;
            let Some(step) =
                image_series::update_nodes(&tx, series, after, NODES_PER_TRANSACTION).await?
            else {
                break;
            };
            tx.commit().await?;
            changed_nodes += step.changed_nodes;
            metrics::counter!("evenkeel_image_changes_total").increment(step.changed_nodes);
            after = step.last.or(after);
            if step.checked_nodes < u64::from(NODES_PER_TRANSACTION) {
                // The series is locked after the nodes. Removing a project locks in the opposite
                // order.
                let tx = self.store.tenant(series.tenant).await?;
                image_series::mark_followed(&tx, series).await?;
                tx.commit().await?;
                break;
            }
        }
        Ok(changed_nodes)
    }
}
