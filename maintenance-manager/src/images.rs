//! What is new for nodes of images: when the images of a line change, what could be updated on its nodes follows.
//!
//! Polls do not look for that. A change of the catalogue concerns every node of its line at once, and would send each
//! of them through a transaction of its own.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain::chain;
use evenkeel_store::image_lines::{self, Line};
use evenkeel_store::{Store, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;
use crate::settings::{Settings, period};

/// How many lines a pass takes.
const LINES: u32 = 1_000;

/// How many nodes one transaction looks at.
const BATCH: u32 = 500;

/// How soon there is another pass after one, at the earliest.
const SOON: Duration = Duration::from_secs(1);

/// A pass takes no input: what it does follows from the database alone. A line that another replica has in hand is left
/// to that one, so passes on several replicas do no harm.
#[derive(Clone, Debug)]
pub struct ImageWatch {
    store: Store,
    every: Duration,
    outage: Arc<Outage>,
}

/// What a pass did.
struct Passed {
    /// So many lines were behind when it began.
    lines: usize,
    /// For so many nodes something else is new.
    changed: u64,
}

impl ImageWatch {
    /// A watch on a store.
    #[must_use]
    pub fn new(store: Store, settings: &Settings) -> Self {
        Self {
            store,
            every: period(settings.images_every),
            outage: Arc::default(),
        }
    }

    /// One that tells of an outage together with others.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Makes passes until it is asked to stop: when it is told that images may have changed, and from time to time. A line
    /// that was behind is looked at once more soon: what held it up, or was left, may be over.
    pub async fn run(self, hinted: Arc<Notify>, stopping: CancellationToken) {
        loop {
            let soon = Instant::now() + SOON.min(self.every);
            let passed = self.pass_until(&stopping).await;
            self.outage.note_pass("images", &passed);
            let mut is_behind = true;
            if let Ok(Passed { lines, changed }) = passed {
                is_behind = lines > 0;
                if changed > 0 {
                    tracing::info!(changed, "nodes were told what is new for them");
                }
            }
            let rested = async {
                if !is_behind {
                    // Nobody tells of the change of a line but the log, and it may not be followed.
                    timeout(self.every, hinted.notified()).await.ok();
                }
                sleep_until(soon).await;
            };
            tokio::select! {
                () = stopping.cancelled() => return,
                () = rested => {}
            }
        }
    }

    /// One pass. Returns for how many nodes something else could be updated than before.
    ///
    /// # Errors
    /// The database cannot be reached. A line that cannot be followed for another reason is left for the next pass.
    pub async fn pass(&self) -> Result<u64, StoreError> {
        let passed = self.pass_until(&CancellationToken::new()).await?;
        Ok(passed.changed)
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<Passed, StoreError> {
        let tx = self.store.fleet().await?;
        let behind = image_lines::behind(&tx, LINES).await?;
        drop(tx);
        let (lines, mut changed) = (behind.len(), 0);
        for line in behind {
            if stopping.is_cancelled() {
                break;
            }
            match self.follow(&line, stopping).await {
                Ok(more) => changed += more,
                Err(error @ StoreError::Unreachable(_)) => return Err(error),
                Err(error) => tracing::warn!(
                    profile = line.profile_name,
                    error = %chain(&error),
                    "nodes wait to be told what is new for them"
                ),
            }
        }
        Ok(Passed { lines, changed })
    }

    /// Brings the nodes of a line up to date, some at a time. What was begun and not ended is begun anew.
    async fn follow(&self, line: &Line, stopping: &CancellationToken) -> Result<u64, StoreError> {
        let (mut after, mut changed) = (None, 0);
        while !stopping.is_cancelled() {
            let tx = self.store.tenant(line.tenant).await?;
            let Some(followed) = image_lines::follow(&tx, line, after, BATCH).await? else {
                break;
            };
            tx.commit().await?;
            changed += followed.changed;
            metrics::counter!("evenkeel_image_news_total").increment(followed.changed);
            after = followed.last.or(after);
            if followed.looked < u64::from(BATCH) {
                // Nobody holds a line while nodes are locked: who removes a project takes them the other way round.
                let tx = self.store.tenant(line.tenant).await?;
                image_lines::done(&tx, line).await?;
                tx.commit().await?;
                break;
            }
        }
        Ok(changed)
    }
}
