//! What is thrown away now and then: runs whose time is over, contents that nobody refers to, slots that nobody holds,
//! versions of packages that no node tells of any more, tokens of nodes that have expired, changes that are logged long
//! enough, tallies that are added up.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_kit::Calendar;
use evenkeel_kit::calendar::BadCalendar;
use evenkeel_kit::clock::Clock;
use evenkeel_store::{
    Store, StoreError, brake, contents, log, node_tokens, runs, tallies, versions,
};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;
use crate::settings::{Settings, delta};

/// How many rows one transaction removes: none lasts long, and other replicas take others.
const BATCH: u32 = 1_000;

/// How long after its end a token is remembered: clocks differ.
const AFTERWARDS: TimeDelta = TimeDelta::hours(1);

/// How often tallies are added up besides: every list without a filter reads all of them.
const ADDED_UP_EVERY: Duration = Duration::from_mins(1);

/// A pass takes no input: what it does follows from the database alone. Rows that another replica is removing are
/// skipped, so passes on several replicas do no harm.
#[derive(Clone, Debug)]
pub struct Housekeeping {
    store: Store,
    clock: Arc<dyn Clock>,
    when: String,
    retention_days: u32,
    /// None keeps the log for ever.
    log_kept: Option<TimeDelta>,
    outage: Arc<Outage>,
}

/// How much a pass removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs, with their history.
    pub runs: u64,
    /// Contents.
    pub contents: u64,
    /// Slots of assignments.
    pub slots: u64,
    /// Versions of packages.
    pub versions: u64,
    /// Tokens of nodes.
    pub tokens: u64,
    /// Changes in the log.
    pub changes: u64,
    /// Tallies that their sum took the place of.
    pub tallies: u64,
}

/// The calendar cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("the calendar in maintenance_manager.housekeeping cannot be kept")]
pub(crate) struct NoCalendar(#[from] BadCalendar);

impl Housekeeping {
    /// Housekeeping on a store.
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>, settings: &Settings) -> Self {
        Self {
            store,
            clock,
            when: settings.housekeeping.clone(),
            retention_days: settings.retention_days(),
            log_kept: (!settings.log_kept.is_zero()).then(|| delta(settings.log_kept)),
            outage: Arc::default(),
        }
    }

    /// One that tells of an outage together with others.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Makes passes by the calendar until it is asked to stop. What comes while a pass goes on is one pass, after it.
    pub(crate) async fn run(self, stopping: CancellationToken) -> Result<(), NoCalendar> {
        let calendar: Calendar = self.when.parse()?;
        let mut calendar = calendar.strikes(Arc::clone(&self.clock));
        let mut minutes = tokio::time::interval(ADDED_UP_EVERY);
        minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = minutes.tick() => {
                    self.outage.note_pass("tallies", &self.add_up().await);
                    continue;
                }
                () = calendar.strike() => {}
            }
            // A failed pass is not a failed process: the next one is the retry.
            let passed = self.pass_until(&stopping).await;
            self.outage.note_pass("housekeeping", &passed);
            if let Ok(swept) = passed
                && swept != Swept::default()
            {
                tracing::info!(
                    runs = swept.runs,
                    contents = swept.contents,
                    slots = swept.slots,
                    versions = swept.versions,
                    tokens = swept.tokens,
                    changes = swept.changes,
                    tallies = swept.tallies,
                    "threw away what is not needed any more"
                );
            }
        }
    }

    /// One pass. Says how much it removed.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn pass(&self) -> Result<Swept, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        while !stopping.is_cancelled() {
            let batch = self.batch().await?;
            swept.runs += batch.runs;
            swept.contents += batch.contents;
            swept.slots += batch.slots;
            swept.versions += batch.versions;
            swept.tokens += batch.tokens;
            swept.changes += batch.changes;
            swept.tallies += batch.tallies;
            if batch == Swept::default() {
                break;
            }
        }
        for (what, count) in [
            ("runs", swept.runs),
            ("contents", swept.contents),
            ("slots", swept.slots),
            ("versions", swept.versions),
            ("tokens", swept.tokens),
            ("changes", swept.changes),
        ] {
            note(what, count);
        }
        Ok(swept)
    }

    /// A part of the work, in transactions of its own.
    async fn batch(&self) -> Result<Swept, StoreError> {
        let now = self.clock.now();
        let tx = self.store.fleet().await?;
        let runs = runs::expire(&tx, self.retention_days, now, BATCH).await?;
        tx.commit().await?;
        let tx = self.store.fleet().await?;
        let contents = contents::clean(&tx, now, BATCH).await?;
        let slots = brake::clean(&tx, now, BATCH).await?;
        tx.commit().await?;
        let tx = self.store.fleet().await?;
        let versions = versions::clean(&tx, now, BATCH).await?;
        let tokens = node_tokens::clean(&tx, now - AFTERWARDS, BATCH).await?;
        tx.commit().await?;
        Ok(Swept {
            runs,
            contents,
            slots,
            versions,
            tokens,
            changes: self.forget_changes(now).await?,
            tallies: self.add_up().await?,
        })
    }

    /// Removes changes that are logged long enough. Says how many.
    async fn forget_changes(&self, now: Time) -> Result<u64, StoreError> {
        let Some(kept) = self.log_kept else {
            return Ok(0);
        };
        let tx = self.store.fleet().await?;
        let changes = log::prune(&tx, now - kept, BATCH).await?;
        tx.commit().await?;
        Ok(changes)
    }

    /// Adds up tallies. Says how many.
    async fn add_up(&self) -> Result<u64, StoreError> {
        let tx = self.store.fleet().await?;
        let tallies = tallies::fold(&tx).await?;
        tx.commit().await?;
        note("tallies", tallies);
        Ok(tallies)
    }
}

/// Notes how much of something was thrown away.
fn note(what: &'static str, count: u64) {
    metrics::counter!("evenkeel_swept_total", "what" => what).increment(count);
}
