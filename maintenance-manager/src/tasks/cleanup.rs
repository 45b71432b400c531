//! Periodic removal of data that is no longer needed: expired runs, unreferenced contents, slots
//! without a holder, package versions that no node reports any more, expired node tokens, old
//! entries of the change log, and tallies that are folded into their sum.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_kit::JobSchedule;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::job_schedule::SchedulerError;
use evenkeel_store::{
    Store, StoreError, contents, limit_usage, log, node_tokens, package_versions, runs, tallies,
};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::durations::to_time_delta;
use crate::outage::Outage;
use crate::settings::Settings;

/// The maximum number of rows that one transaction removes. Short transactions let other replicas
/// work at the same time.
const BATCH_SIZE: u32 = 1_000;

/// How long a token is kept after it expires, because clocks differ.
const TOKEN_GRACE_PERIOD: TimeDelta = TimeDelta::hours(1);

/// How often tallies are folded in addition. Every unfiltered list reads all of them.
const TALLY_INTERVAL: Duration = Duration::from_mins(1);

/// Removes data on a schedule. A pass needs no input: its work follows from the database alone. It
/// skips rows that another replica is removing, so several replicas may run passes at the same
/// time.
#[derive(Clone, Debug)]
pub struct Housekeeping {
    store: Store,
    clock: Arc<dyn Clock>,
    retention_days: u32,
    /// How long the change log is kept; `None` keeps it forever.
    change_log_retention: Option<TimeDelta>,
    outage: Arc<Outage>,
}

/// The number of removed rows of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedRows {
    /// Runs with their history.
    pub runs: u64,
    pub contents: u64,
    /// Slots of assignments.
    pub slots: u64,
    /// Versions of packages.
    pub versions: u64,
    /// Tokens of nodes.
    pub tokens: u64,
    /// Changes in the log.
    pub changes: u64,
    /// Tallies that were folded into their sum.
    pub tallies: u64,
}

impl Housekeeping {
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>, settings: &Settings) -> Self {
        Self {
            store,
            clock,
            retention_days: settings.retention_days(),
            change_log_retention: (!settings.change_log_retention.is_zero())
                .then(|| to_time_delta(settings.change_log_retention)),
            outage: Arc::default(),
        }
    }

    /// Shares the outage tracking with other tasks.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Runs passes on the schedule until it is stopped. Occurrences during a pass collapse into
    /// one.
    pub(crate) async fn run(
        self,
        schedule: JobSchedule,
        stopping: CancellationToken,
    ) -> Result<(), SchedulerError> {
        let mut occurrences = schedule.start(Arc::clone(&self.clock)).await?;
        let mut tally_ticks = tokio::time::interval(TALLY_INTERVAL);
        tally_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = tally_ticks.tick() => {
                    self.outage.note_pass("tallies", &self.fold_tallies().await);
                    continue;
                }
                due = occurrences.wait_next() => due?,
            }
            // A failed pass does not end the task: the next pass retries.
            let result = self.pass_until(&stopping).await;
            self.outage.note_pass("housekeeping", &result);
            if let Ok(removed) = result
                && removed != RemovedRows::default()
            {
                tracing::info!(
                    runs = removed.runs,
                    contents = removed.contents,
                    slots = removed.slots,
                    versions = removed.versions,
                    tokens = removed.tokens,
                    changes = removed.changes,
                    tallies = removed.tallies,
                    "removed data that is no longer needed"
                );
            }
        }
    }

    /// Runs one pass. Returns the number of removed rows.
    pub async fn pass(&self) -> Result<RemovedRows, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<RemovedRows, StoreError> {
        let mut removed = RemovedRows::default();
        while !stopping.is_cancelled() {
            let batch = self.remove_batch().await?;
            removed.runs += batch.runs;
            removed.contents += batch.contents;
            removed.slots += batch.slots;
            removed.versions += batch.versions;
            removed.tokens += batch.tokens;
            removed.changes += batch.changes;
            removed.tallies += batch.tallies;
            if batch == RemovedRows::default() {
                break;
            }
        }
        for (kind, count) in [
            ("runs", removed.runs),
            ("contents", removed.contents),
            ("slots", removed.slots),
            ("versions", removed.versions),
            ("tokens", removed.tokens),
            ("changes", removed.changes),
        ] {
            count_removed(kind, count);
        }
        Ok(removed)
    }

    /// Removes one batch, in transactions of its own.
    async fn remove_batch(&self) -> Result<RemovedRows, StoreError> {
        let now = self.clock.now();
        let tx = self.store.fleet().await?;
        let runs = runs::delete_expired(&tx, self.retention_days, now, BATCH_SIZE).await?;
        tx.commit().await?;
        let tx = self.store.fleet().await?;
        let contents = contents::delete_unused(&tx, now, BATCH_SIZE).await?;
        let slots = limit_usage::delete_expired_slots(&tx, now, BATCH_SIZE).await?;
        tx.commit().await?;
        let tx = self.store.fleet().await?;
        let versions = package_versions::delete_expired(&tx, now, BATCH_SIZE).await?;
        let tokens = node_tokens::delete_expired(&tx, now - TOKEN_GRACE_PERIOD, BATCH_SIZE).await?;
        tx.commit().await?;
        Ok(RemovedRows {
            runs,
            contents,
            slots,
            versions,
            tokens,
            changes: self.prune_change_log(now).await?,
            tallies: self.fold_tallies().await?,
        })
    }

    /// Removes old entries of the change log. Returns their number.
    async fn prune_change_log(&self, now: Time) -> Result<u64, StoreError> {
        let Some(retention) = self.change_log_retention else {
            return Ok(0);
        };
        let tx = self.store.fleet().await?;
        let changes = log::prune(&tx, now - retention, BATCH_SIZE).await?;
        tx.commit().await?;
        Ok(changes)
    }

    /// Folds tallies into their sum. Returns their number.
    async fn fold_tallies(&self) -> Result<u64, StoreError> {
        let tx = self.store.fleet().await?;
        let tallies = tallies::fold(&tx).await?;
        tx.commit().await?;
        count_removed("tallies", tallies);
        Ok(tallies)
    }
}

/// Counts removed rows.
fn count_removed(kind: &'static str, count: u64) {
    metrics::counter!("evenkeel_housekeeping_removed_rows_total", "kind" => kind).increment(count);
}
