//! Shows which nodes have fallen silent. A node that speaks again shows itself: see [`crate::status::RUNNING`].

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::clock::Clock;
use evenkeel_store::{Store, StoreError, nodes};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;
use crate::settings::{Settings, period};

/// How many nodes one statement takes.
const BATCH: u32 = 1_000;

/// A pass takes no input: what it does follows from the database alone. A node that is just reporting, or that another
/// replica has in hand, is left out, so passes on several replicas do no harm.
#[derive(Clone, Debug)]
pub struct SilenceWatch {
    store: Store,
    clock: Arc<dyn Clock>,
    every: Duration,
    after: TimeDelta,
    outage: Arc<Outage>,
}

impl SilenceWatch {
    /// A watch on a store. A node that was told to wait longer than usual is due later, and is given until then.
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>, settings: &Settings) -> Self {
        Self {
            store,
            clock,
            every: period(settings.silent_every),
            after: settings.silence(),
            outage: Arc::default(),
        }
    }

    /// One that tells of an outage together with others.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Makes passes until it is asked to stop. As long as nodes could not be heard, because this process has just
    /// started or the database was away, nobody is called silent.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listening_since = None;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let now = self.clock.now();
            let since = *listening_since.get_or_insert(now);
            let passed = if now < since + self.after {
                self.store.ping().await.map(|()| 0)
            } else {
                self.pass_until(&stopping).await
            };
            self.outage.note_pass("silent nodes", &passed);
            match passed {
                Ok(0) => {}
                Ok(silent) => tracing::info!(silent, "nodes have fallen silent"),
                Err(_) => listening_since = None,
            }
        }
    }

    /// One pass. Returns how many nodes have fallen silent since the last one. Hosts of invalidated instances do not
    /// count, and what is left of more than a batch of them is for the next pass.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn pass(&self) -> Result<usize, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<usize, StoreError> {
        let mut found = 0;
        loop {
            let now = self.clock.now();
            let tx = self.store.fleet().await?;
            let silent = nodes::silence(&tx, now - self.after, now, BATCH).await?;
            tx.commit().await?;
            found += silent.len();
            if silent.is_empty() || stopping.is_cancelled() {
                metrics::counter!("evenkeel_silent_nodes_total").increment(found as u64);
                return Ok(found);
            }
        }
    }
}
