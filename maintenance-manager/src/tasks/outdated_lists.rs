//! Marks nodes whose package lists have become outdated. Facts set the condition as well, but a
//! node whose lists age sends none: nothing in them changes.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_kit::clock::Clock;
use evenkeel_store::{FleetTx, Store, StoreError, nodes};
use tokio_util::sync::CancellationToken;

use super::node_marks::{BATCH_SIZE, NodeMarker, mark_all};
use super::pass_ticks::PassTicks;
use crate::outage::Outage;

/// The interval of passes. Lists are outdated after days.
const CHECK_INTERVAL: Duration = Duration::from_mins(10);

/// Marks nodes whose package lists are outdated, by the time of the database. Several replicas may
/// run passes at the same time.
#[derive(Clone, Debug)]
pub struct OutdatedListsWatch {
    store: Store,
    clock: Arc<dyn Clock>,
    outage: Arc<Outage>,
}

impl OutdatedListsWatch {
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, outage: Arc::default() }
    }

    /// Shares the outage tracking with other tasks.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Runs passes until it is stopped.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = PassTicks::new(CHECK_INTERVAL, &stopping);
        while ticks.wait_next().await {
            let result = self.pass_until(&stopping).await;
            self.outage.note_pass("outdated package lists", &result);
        }
    }

    /// Runs one pass. Returns the number of nodes that were marked. Does nothing while the clock of
    /// the process differs from the clock of the database.
    pub async fn pass(&self) -> Result<usize, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<usize, StoreError> {
        mark_all(self, &self.store, &*self.clock, stopping).await
    }
}

impl NodeMarker for OutdatedListsWatch {
    async fn mark_batch(&self, tx: &FleetTx, now: Time) -> Result<usize, StoreError> {
        nodes::mark_outdated_lists(tx, now, BATCH_SIZE).await
    }
}
