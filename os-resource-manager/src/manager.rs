//! The OS resource manager: decides when registries are synced.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_kit::JobSchedule;
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::job_schedule::SchedulerError;
use evenkeel_kit::lifecycle::Lifecycle;
use evenkeel_store::os_catalogue::{CycleClaim, CycleResult};
use evenkeel_store::{Store, StoreError, os_catalogue};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::apply::Applier;
use crate::cycle::{Cycle, LEASE};
use crate::settings::{InvalidSettings, Settings};
use crate::sources::Sources;

/// How often requests for a sync are looked for.
const REQUEST_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// How often the age of the last sync is checked.
const AGE_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// A process requests a sync at its start only if the last one is older, because one of several replicas is enough.
const MIN_AGE_AT_START: TimeDelta = TimeDelta::minutes(1);

/// The same for the schedule. The clocks of replicas differ by less than this.
const MIN_AGE_ON_SCHEDULE: TimeDelta = TimeDelta::seconds(30);

/// When a failed sync is tried again.
const FAILURE_RETRY_INTERVAL: TimeDelta = TimeDelta::minutes(10);

/// Syncs all registries, and applies the result to projects. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OsResourceManager(Arc<Engine>);

/// The state that cycles share.
#[derive(Debug)]
pub(crate) struct Engine {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub settings: Settings,
    schedule: JobSchedule,
    pub applier: Applier,
    sources: Arc<Sources>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassResult {
    /// Projects without a report to which known content was applied.
    pub projects: u64,
    /// Completed cycles.
    pub cycles: u64,
}

impl OsResourceManager {
    /// Creates the manager. It contacts no registry yet.
    ///
    /// # Errors
    /// Names the first invalid setting that does not concern a single registry.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Self, InvalidSettings> {
        let schedule = settings.check()?;
        let sources = Arc::new(Sources::open(&settings.registries));
        for problem in sources.problems() {
            tracing::error!(%problem, "a registry is disabled until this setting is right");
        }
        let defaults = settings.default_selection();
        Ok(Self(Arc::new(Engine {
            applier: Applier::new(store.clone(), defaults, Arc::clone(&sources)),
            store,
            clock,
            settings,
            schedule,
            sources,
        })))
    }

    /// The configured registries by name.
    #[must_use]
    pub fn sources(&self) -> Arc<Sources> {
        Arc::clone(&self.0.sources)
    }

    /// Starts the loops: one for projects without a report, one for the schedule, and one per registry, so that a slow
    /// registry does not block the others. Does nothing if no registry is configured. Any number of processes may run
    /// the loops on one database.
    pub fn start_loops(&self, life: &Lifecycle) {
        let names: Vec<String> = self.0.sources.names().map(str::to_owned).collect();
        if names.is_empty() {
            return;
        }
        let (engine, stopping) = (Arc::clone(&self.0), life.stopping());
        life.spawn("unsynced projects", async move {
            engine.run_unsynced_projects(stopping).await;
            Ok(())
        });
        let (engine, stopping) = (Arc::clone(&self.0), life.stopping());
        life.spawn("registry sync schedule", async move {
            engine.run_schedule(stopping).await?;
            Ok(())
        });
        for name in names {
            let (engine, stopping) = (Arc::clone(&self.0), life.stopping());
            life.spawn("registry sync", async move {
                engine.run_registry(&name, stopping).await;
                Ok(())
            });
        }
    }

    /// One pass: applies known content to projects without a report, then runs the requested cycle of each registry.
    ///
    /// # Errors
    /// The database is unreachable.
    pub async fn run_pass(&self) -> Result<PassResult, StoreError> {
        let projects = self.0.applier.apply_to_unsynced().await?;
        let mut cycles = 0;
        let never = CancellationToken::new();
        let names: Vec<&str> = self.0.sources.names().collect();
        for name in names {
            cycles += u64::from(self.0.run_cycle(name, &never).await?);
        }
        Ok(PassResult { projects, cycles })
    }
}

impl Engine {
    /// Applies known content to projects without a report until it is stopped.
    async fn run_unsynced_projects(&self, stopping: CancellationToken) {
        let mut pass_log = PassLog::new("unsynced projects");
        let mut ticks = ticker(REQUEST_CHECK_INTERVAL);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let result = tokio::select! {
                () = stopping.cancelled() => return,
                result = Box::pin(self.applier.apply_to_unsynced()) => result,
            };
            pass_log.record(&result);
        }
    }

    /// Requests cycles by schedule until it is stopped. A request that cannot be written is tried again.
    async fn run_schedule(&self, stopping: CancellationToken) -> Result<(), SchedulerError> {
        let schedule = self.schedule.clone();
        let mut occurrences = schedule.start(Arc::clone(&self.clock)).await?;
        let mut pass_log = PassLog::new("registry sync schedule");
        let mut ticks = ticker(REQUEST_CHECK_INTERVAL);
        let mut due = self.settings.at_start.then_some(MIN_AGE_AT_START);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return Ok(()),
                occurrence = occurrences.wait_next() => {
                    occurrence?;
                    due = Some(MIN_AGE_ON_SCHEDULE);
                }
                _ = ticks.tick(), if due.is_some() => {}
            }
            if let Some(min_age) = due {
                let result = self.request_due_cycles(min_age).await;
                pass_log.record(&result);
                due = due.filter(|_| result.is_err());
            }
        }
    }

    /// Requests a cycle of each registry whose last cycle is older than `min_age`.
    async fn request_due_cycles(&self, min_age: TimeDelta) -> Result<(), StoreError> {
        for name in self.sources.names() {
            let tx = self.store.fleet().await?;
            os_catalogue::request_if_due(&tx, name, min_age).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Runs the requested cycles of a registry until it is stopped.
    async fn run_registry(&self, name: &str, stopping: CancellationToken) {
        let mut pass_log = PassLog::new("registry sync");
        let (mut ticks, mut age_ticks) =
            (ticker(REQUEST_CHECK_INTERVAL), ticker(AGE_CHECK_INTERVAL));
        loop {
            let result = tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => self.run_cycle(name, &stopping).await.map(|_| ()),
                _ = age_ticks.tick() => self.check_registry(name).await,
            };
            pass_log.record(&result);
        }
    }

    /// Runs a cycle if one is requested. Returns whether a cycle has ended.
    pub(crate) async fn run_cycle(
        &self,
        name: &str,
        stopping: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let tx = self.store.fleet().await?;
        let claim = os_catalogue::claim(&tx, name, Uuid::new_v4(), LEASE).await?;
        tx.commit().await?;
        let Some(claim) = claim else {
            return Ok(false);
        };
        match self.sources.refresh(name) {
            Some(source) => Box::pin(Cycle::new(self, claim, source).run(stopping)).await,
            None => self.fail_disabled(&claim).await,
        }
    }

    /// Ends the cycle of a disabled registry. Returns whether it has ended.
    async fn fail_disabled(&self, claim: &CycleClaim) -> Result<bool, StoreError> {
        let problem = self.sources.problem(&claim.registry);
        let problem = problem.map(|problem| problem.to_string()).unwrap_or_default();
        let message = format!("the registry is disabled: {problem}");
        let result = CycleResult {
            outcome: CycleOutcome::Failed,
            message: evenkeel_domain::text::cut(&message, 1_000),
            not_before: None,
        };
        let tx = self.store.fleet().await?;
        let is_held = os_catalogue::finish(&tx, claim, &result).await?;
        tx.commit().await?;
        Ok(is_held)
    }

    /// Records the age of the last good cycle, and requests another one after a failure.
    async fn check_registry(&self, name: &str) -> Result<(), StoreError> {
        let tx = self.store.fleet().await?;
        let Some(state) = os_catalogue::state(&tx, name).await? else {
            return Ok(());
        };
        if state.outcome == Some(CycleOutcome::Failed) && state.requested == state.done {
            os_catalogue::request_if_due(&tx, name, FAILURE_RETRY_INTERVAL).await?;
        }
        tx.commit().await?;
        if let Some(last_success) = state.last_success_at {
            let age = (self.clock.now() - last_success).as_seconds_f64().max(0.0);
            let labels = [("registry", name.to_owned())];
            metrics::gauge!("evenkeel_os_last_good_seconds", &labels).set(age);
        }
        Ok(())
    }
}

fn ticker(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Logs once when a loop starts to fail, and once when it works again.
#[derive(Debug)]
struct PassLog {
    name: &'static str,
    failures: u64,
}

impl PassLog {
    const fn new(name: &'static str) -> Self {
        Self { name, failures: 0 }
    }

    fn record<T>(&mut self, result: &Result<T, StoreError>) {
        let pass = self.name;
        match result {
            Ok(_) if self.failures == 0 => {}
            Ok(_) => {
                let failures = std::mem::take(&mut self.failures);
                tracing::info!(pass, failures, "a pass works again");
            }
            Err(error) => {
                if self.failures == 0 {
                    tracing::warn!(pass, error = %chain(error), "a pass failed");
                }
                self.failures += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_until_a_pass_succeeds() {
        let mut pass_log = PassLog::new("a pass");
        let fails = || Err::<(), _>(StoreError::NotFound { what: "project" });
        pass_log.record(&fails());
        pass_log.record(&fails());
        assert_eq!(pass_log.failures, 2);
        pass_log.record(&Ok(()));
        assert_eq!(pass_log.failures, 0);
    }
}
