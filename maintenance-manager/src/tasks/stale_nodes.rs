//! Marks silent nodes. A node that makes contact again is shown as running: see
//! [`crate::status::RUNNING`].

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_kit::clock::Clock;
use evenkeel_store::{FleetTx, Store, StoreError, nodes};
use tokio_util::sync::CancellationToken;

use super::node_marks::{BATCH_SIZE, NodeMarker, mark_all};
use super::pass_ticks::PassTicks;
use crate::durations::loop_interval;
use crate::outage::Outage;
use crate::settings::Settings;

/// Marks silent nodes. A pass needs no input: its work follows from the database alone. It skips a
/// node that is just reporting or that another replica is updating, so several replicas may run
/// passes at the same time.
#[derive(Clone, Debug)]
pub struct SilentNodeWatch {
    store: Store,
    clock: Arc<dyn Clock>,
    check_interval: Duration,
    silence_timeout: TimeDelta,
    outage: Arc<Outage>,
}

impl SilentNodeWatch {
    /// A watch on a store. A node that was asked to wait longer than usual is not silent before its
    /// deadline.
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>, settings: &Settings) -> Self {
        Self {
            store,
            clock,
            check_interval: loop_interval(settings.silence_check_interval),
            silence_timeout: settings.effective_silence_timeout(),
            outage: Arc::default(),
        }
    }

    /// Shares the outage tracking with other tasks.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Runs passes until it is stopped. No node is marked until the server was able to receive
    /// contacts for the whole timeout, since its start or since the end of an outage.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = PassTicks::new(self.check_interval, &stopping);
        let mut listening_since = None;
        while ticks.wait_next().await {
            let result = self.check(&mut listening_since, &stopping).await;
            self.outage.note_pass("silent nodes", &result);
            match result {
                Ok(0) => {}
                Ok(silent) => tracing::info!(silent, "nodes have fallen silent"),
                Err(_) => listening_since = None,
            }
        }
    }

    /// Runs a pass if the server was able to receive contacts for the whole timeout.
    async fn check(
        &self,
        listening_since: &mut Option<Time>,
        stopping: &CancellationToken,
    ) -> Result<usize, StoreError> {
        let Some(now) = self.store.trusted_time(&*self.clock).await? else {
            *listening_since = None;
            return Ok(0);
        };
        let since = *listening_since.get_or_insert(now);
        if now < since + self.silence_timeout {
            return Ok(0);
        }
        self.pass_until(stopping).await
    }

    /// Runs one pass. Returns the number of nodes that became silent. Hosts of invalidated
    /// instances do not count, and more than a batch of them is left for the next pass. Does nothing
    /// while the clock of the process differs from the clock of the database.
    pub async fn pass(&self) -> Result<usize, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<usize, StoreError> {
        let total = mark_all(self, &self.store, &*self.clock, stopping).await?;
        metrics::counter!("evenkeel_silent_nodes_total").increment(total as u64);
        Ok(total)
    }
}

impl NodeMarker for SilentNodeWatch {
    async fn mark_batch(&self, tx: &FleetTx, now: Time) -> Result<usize, StoreError> {
        let heard_before = now - self.silence_timeout;
        let silent = nodes::mark_silent_nodes(tx, heard_before, now, BATCH_SIZE).await?;
        Ok(silent.len())
    }
}
