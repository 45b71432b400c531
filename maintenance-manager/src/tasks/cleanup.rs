//! Periodic removal of data that is no longer needed: expired runs, unreferenced contents, slots
//! without a holder, package versions that no node reports any more, expired tokens and logins, used
//! up daily limits that are full again, old entries of the change log, tallies that are folded into
//! their sum, and deleted projects.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::change_seal::ChangeRetention;
use evenkeel_kit::JobSchedule;
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::job_schedule::SchedulerError;
use evenkeel_store::log::{self, RemovalLimits};
use evenkeel_store::{
    ClockAgreement, FleetTx, Store, StoreError, contacts, contents, daily_usage, limit_usage,
    logins, node_tokens, oldest_rows, operator_tokens, package_versions, projects, runs,
    sequence_usage, tallies,
};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;
use crate::settings::Settings;

/// The maximum number of rows that one transaction removes. Short transactions let other replicas
/// work at the same time.
const BATCH_SIZE: u32 = 1_000;

/// The maximum number of batches of one step in a pass. It bounds what a pass can lose if a setting
/// or a clock is wrong.
const MAX_BATCHES_PER_STEP: u32 = 250;

/// The used part of the numbers of a kind of id above which the log has a warning.
const USED_NUMBERS_WARNING: f64 = 0.8;

/// How long a token is kept after it expires, because clocks differ.
const TOKEN_GRACE_PERIOD: TimeDelta = TimeDelta::hours(1);

/// How often tallies are folded and deleted projects are removed in addition. Every unfiltered list
/// reads all tallies.
const FREQUENT_STEP_INTERVAL: Duration = Duration::from_mins(1);

/// Removes data on a schedule. A pass needs no input: its work follows from the database alone. It
/// skips rows that another replica is removing, so several replicas may run passes at the same
/// time. Ages count by the time of the database, and nothing is removed while the clock of the
/// process differs from it.
#[derive(Clone, Debug)]
pub struct Housekeeping {
    store: Store,
    clock: Arc<dyn Clock>,
    retention_days: u32,
    change_retention: ChangeRetention,
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
    /// Tokens of nodes and operators, and logins.
    pub tokens: u64,
    /// Buckets of daily limits that are full again.
    pub daily_usage: u64,
    /// Contacts in the future, which were set to the current time.
    pub contacts: u64,
    /// Changes in the log.
    pub changes: u64,
    /// Tallies that were folded into their sum.
    pub tallies: u64,
    /// Rows of deleted projects.
    pub projects: u64,
}

impl RemovedRows {
    fn count_mut(&mut self, step: CleanupStep) -> &mut u64 {
        match step {
            CleanupStep::Runs => &mut self.runs,
            CleanupStep::Contents => &mut self.contents,
            CleanupStep::Slots => &mut self.slots,
            CleanupStep::Versions => &mut self.versions,
            CleanupStep::Tokens => &mut self.tokens,
            CleanupStep::DailyUsage => &mut self.daily_usage,
            CleanupStep::Contacts => &mut self.contacts,
            CleanupStep::Changes => &mut self.changes,
            CleanupStep::Tallies => &mut self.tallies,
            CleanupStep::Projects => &mut self.projects,
        }
    }
}

/// One kind of data that a pass removes. A step that fails does not stop the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CleanupStep {
    Runs,
    Contents,
    Slots,
    Versions,
    Tokens,
    DailyUsage,
    Contacts,
    Changes,
    Tallies,
    Projects,
}

impl CleanupStep {
    /// In the order of a pass: runs refer to contents.
    const ALL: [Self; 10] = [
        Self::Runs,
        Self::Contents,
        Self::Slots,
        Self::Versions,
        Self::Tokens,
        Self::DailyUsage,
        Self::Contacts,
        Self::Changes,
        Self::Tallies,
        Self::Projects,
    ];

    /// Steps that run between the passes as well.
    const FREQUENT: [Self; 2] = [Self::Tallies, Self::Projects];

    /// The name in metrics and in the log.
    const fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Contents => "contents",
            Self::Slots => "slots",
            Self::Versions => "versions",
            Self::Tokens => "tokens",
            Self::DailyUsage => "daily_usage",
            Self::Contacts => "contacts",
            Self::Changes => "changes",
            Self::Tallies => "tallies",
            Self::Projects => "projects",
        }
    }
}

impl Housekeeping {
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>, settings: &Settings) -> Self {
        Self {
            store,
            clock,
            retention_days: settings.retention_days(),
            change_retention: settings.change_retention(),
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
        let mut frequent_ticks = tokio::time::interval(FREQUENT_STEP_INTERVAL);
        frequent_ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                _ = frequent_ticks.tick() => {
                    let result = self.run_steps(&CleanupStep::FREQUENT, &stopping).await;
                    if result.is_err() {
                        self.outage.note_pass("housekeeping", &result);
                    }
                    continue;
                }
                due = occurrences.wait_next() => due?,
            }
            // A failed pass does not end the task: the next pass retries.
            let result = self.pass_until(&stopping).await;
            if result.is_err() {
                self.outage.note_pass("housekeeping", &result);
            }
            if let Ok(removed) = result
                && removed != RemovedRows::default()
            {
                tracing::info!(
                    runs = removed.runs,
                    contents = removed.contents,
                    slots = removed.slots,
                    versions = removed.versions,
                    tokens = removed.tokens,
                    daily_usage = removed.daily_usage,
                    contacts = removed.contacts,
                    changes = removed.changes,
                    tallies = removed.tallies,
                    projects = removed.projects,
                    "removed data that is no longer needed"
                );
            }
        }
    }

    /// Runs one pass. Returns the number of removed rows. A step that fails is logged and counted.
    ///
    /// # Errors
    /// The time of the database cannot be read.
    pub async fn pass(&self) -> Result<RemovedRows, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    /// Runs the steps that run between the passes as well. Returns the number of removed rows.
    ///
    /// # Errors
    /// The time of the database cannot be read.
    pub async fn frequent_pass(&self) -> Result<RemovedRows, StoreError> {
        let (removed, _) =
            self.run_steps(&CleanupStep::FREQUENT, &CancellationToken::new()).await?;
        Ok(removed)
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<RemovedRows, StoreError> {
        let (removed, now) = self.run_steps(&CleanupStep::ALL, stopping).await?;
        self.note_step("oldest rows", &self.record_oldest_rows(now).await);
        self.note_step("id numbers", &self.record_used_numbers().await);
        Ok(removed)
    }

    /// Runs steps, unless the clocks differ. Returns the number of removed rows and the time of the
    /// database.
    async fn run_steps(
        &self,
        steps: &[CleanupStep],
        stopping: &CancellationToken,
    ) -> Result<(RemovedRows, Time), StoreError> {
        let mut removed = RemovedRows::default();
        let clocks = self.store.read_clocks(&*self.clock).await?;
        if clocks.agreement() == ClockAgreement::Agrees {
            for step in steps {
                self.run_step(*step, clocks.database, &mut removed, stopping).await;
            }
        }
        Ok((removed, clocks.database))
    }

    /// Runs a step. A failure is logged and counted, and stops no other step.
    async fn run_step(
        &self,
        step: CleanupStep,
        now: Time,
        removed: &mut RemovedRows,
        stopping: &CancellationToken,
    ) {
        let result = self.remove_batches(step, now, removed.count_mut(step), stopping).await;
        self.note_step(step.name(), &result);
    }

    /// Removes the rows of a step in batches, each in a transaction of its own.
    async fn remove_batches(
        &self,
        step: CleanupStep,
        now: Time,
        removed: &mut u64,
        stopping: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut size = BATCH_SIZE;
        for _ in 0..MAX_BATCHES_PER_STEP {
            if stopping.is_cancelled() {
                return Ok(());
            }
            match self.remove_batch(step, now, size).await {
                Ok(0) => return Ok(()),
                Ok(count) => *removed += count,
                // Rows differ in size: a run may have a thousand long events.
                Err(StoreError::Busy(_)) if size > 1 => size /= 2,
                Err(error) => return Err(error),
            }
        }
        tracing::info!(
            step = step.name(),
            removed = *removed,
            "housekeeping has reached its limit per pass; the next pass continues"
        );
        Ok(())
    }

    /// Removes at most `size` rows of a step.
    async fn remove_batch(
        &self,
        step: CleanupStep,
        now: Time,
        size: u32,
    ) -> Result<u64, StoreError> {
        let tx = self.store.fleet().await?;
        let count = match self.remove_rows(&tx, step, now, size).await {
            Ok(count) => count,
            Err(error) => {
                // The next batch skips locked rows, so this one must not leave its locks.
                tx.rollback().await?;
                return Err(error);
            }
        };
        tx.commit().await?;
        metrics::counter!("evenkeel_housekeeping_removed_rows_total", "kind" => step.name())
            .increment(count);
        Ok(count)
    }

    async fn remove_rows(
        &self,
        tx: &FleetTx,
        step: CleanupStep,
        now: Time,
        size: u32,
    ) -> Result<u64, StoreError> {
        match step {
            CleanupStep::Runs => runs::delete_expired(tx, self.retention_days, now, size).await,
            CleanupStep::Contents => contents::delete_unused(tx, now, size).await,
            CleanupStep::Slots => limit_usage::delete_expired_slots(tx, now, size).await,
            CleanupStep::Versions => package_versions::delete_expired(tx, now, size).await,
            CleanupStep::Tokens => {
                let expired_before = now - TOKEN_GRACE_PERIOD;
                let of_nodes = node_tokens::delete_expired(tx, expired_before, size).await?;
                let of_operators =
                    operator_tokens::delete_expired(tx, expired_before, size).await?;
                let of_logins = logins::delete_expired(tx, expired_before, size).await?;
                Ok(of_nodes + of_operators + of_logins)
            }
            CleanupStep::DailyUsage => daily_usage::delete_expired(tx, now, size).await,
            CleanupStep::Contacts => contacts::correct_future_contacts(tx, now, size).await,
            CleanupStep::Changes => {
                let retention = self.change_retention;
                log::prune(tx, RemovalLimits { retention, now, max_changes: size }).await
            }
            CleanupStep::Tallies => tallies::fold(tx).await,
            CleanupStep::Projects => projects::remove_batch(tx, size).await,
        }
    }

    /// Counts and logs the failure of a step. An unreachable database is logged once per outage.
    fn note_step(&self, step: &'static str, result: &Result<(), StoreError>) {
        if let Err(error) = result {
            metrics::counter!("evenkeel_housekeeping_failures_total", "kind" => step).increment(1);
            if !matches!(error, StoreError::Unreachable(_)) {
                tracing::warn!(step, error = %chain(error), "a step of housekeeping failed; the next pass retries");
                return;
            }
        }
        self.outage.note_pass("housekeeping", result);
    }

    /// Records how far the sequences of ids are used up. Without a free number no resource of the
    /// kind can be created any more, in any project.
    async fn record_used_numbers(&self) -> Result<(), StoreError> {
        let tx = self.store.fleet().await?;
        for (kind, used) in sequence_usage::read(&tx).await? {
            if used > USED_NUMBERS_WARNING {
                let percent = used * 100.0;
                tracing::warn!(
                    kind,
                    "{percent:.0} % of the numbers for ids are used up; without a free one no resource of the kind can be created"
                );
            }
            metrics::gauge!("evenkeel_id_numbers_used_ratio", "kind" => kind).set(used);
        }
        Ok(())
    }

    /// Records the age of the oldest row of each table that housekeeping cleans.
    async fn record_oldest_rows(&self, now: Time) -> Result<(), StoreError> {
        let tx = self.store.fleet().await?;
        for (kind, oldest) in oldest_rows::read(&tx).await? {
            let age = oldest.map_or(0.0, |oldest| (now - oldest).as_seconds_f64().max(0.0));
            metrics::gauge!("evenkeel_housekeeping_oldest_row_seconds", "kind" => kind).set(age);
        }
        Ok(())
    }
}
