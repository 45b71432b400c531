//! The OS resource manager as a whole: when registries are asked.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_kit::Calendar;
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::lifecycle::Lifecycle;
use evenkeel_store::{Store, StoreError, os_catalogue};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::apply::Applier;
use crate::cycle::{Cycle, LEASE};
use crate::settings::{BadSettings, Settings};
use crate::sources::Sources;

/// How often it is looked whether somebody wishes something.
const EVERY: Duration = Duration::from_secs(2);

/// How often it is looked how old everything is.
const WATCHED_EVERY: Duration = Duration::from_mins(1);

/// Who starts within this time of the last cycle makes no new one: of several processes one is enough.
const AT_START: TimeDelta = TimeDelta::minutes(1);

/// The clocks of processes that keep the same calendar differ by less than this.
const BY_CALENDAR: TimeDelta = TimeDelta::seconds(30);

/// When a registry is asked again that could not be asked.
const AFTER_FAILURE: TimeDelta = TimeDelta::minutes(10);

/// Keeps the catalogues of all registries, and what projects take of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OsResourceManager(Arc<Engine>);

/// What a cycle needs.
#[derive(Debug)]
pub(crate) struct Engine {
    pub store: Store,
    pub clock: Arc<dyn Clock>,
    pub settings: Settings,
    calendar: Calendar,
    pub applier: Applier,
    sources: Arc<Sources>,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Into how many projects without a report something was brought that was known already.
    pub projects: u64,
    /// How many registries were asked.
    pub cycles: u64,
}

impl OsResourceManager {
    /// One on a store. No registry is asked yet.
    ///
    /// # Errors
    /// Names the first setting that cannot be kept.
    pub fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Self, BadSettings> {
        settings.check()?;
        let calendar = settings.calendar.parse();
        let calendar = calendar.map_err(|error| BadSettings::new("calendar", error))?;
        let sources = Arc::new(Sources::open(&settings.registries)?);
        let server = settings.wish();
        Ok(Self(Arc::new(Engine {
            applier: Applier::new(
                store.clone(),
                Arc::clone(&clock),
                server,
                Arc::clone(&sources),
            ),
            store,
            clock,
            settings,
            calendar,
            sources,
        })))
    }

    /// The registries by their names.
    #[must_use]
    pub fn sources(&self) -> Arc<Sources> {
        Arc::clone(&self.0.sources)
    }

    /// Starts the loops: one that brings what is known into new projects, one that keeps the calendar, and one for each
    /// registry, so that a slow one does not keep the others waiting. Without a registry there are none. They may go
    /// on in any number of processes on one database.
    pub fn start_loops(&self, life: &Lifecycle) {
        let names: Vec<String> = self.0.sources.names().map(str::to_owned).collect();
        if names.is_empty() {
            return;
        }
        let (engine, stopping) = (Arc::clone(&self.0), life.stopping());
        life.spawn("projects without a sync", async move {
            engine.care_for_projects(stopping).await;
            Ok(())
        });
        let (engine, stopping) = (Arc::clone(&self.0), life.stopping());
        life.spawn("calendar of registries", async move {
            engine.keep_calendar(stopping).await;
            Ok(())
        });
        for name in names {
            let (engine, stopping) = (Arc::clone(&self.0), life.stopping());
            life.spawn("sync of a registry", async move {
                engine.care_for_registry(&name, stopping).await;
                Ok(())
            });
        }
    }

    /// One pass: brings what is known into projects that have no report, then asks each registry for which somebody
    /// wished it.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn pass(&self) -> Result<Passed, StoreError> {
        let projects = self.0.applier.missing().await?;
        let mut cycles = 0;
        let never = CancellationToken::new();
        let names: Vec<&str> = self.0.sources.names().collect();
        for name in names {
            cycles += u64::from(self.0.cycle(name, &never).await?);
        }
        Ok(Passed { projects, cycles })
    }
}

impl Engine {
    /// Brings what is known into new projects until it is asked to stop.
    async fn care_for_projects(&self, stopping: CancellationToken) {
        let mut telling = Telling::of("projects without a sync");
        let mut ticks = every(EVERY);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let passed = tokio::select! {
                () = stopping.cancelled() => return,
                passed = Box::pin(self.applier.missing()) => passed,
            };
            telling.note(&passed);
        }
    }

    /// Wishes that registries be asked when the calendar says so, until it is asked to stop. A wish that cannot be
    /// written is written later.
    async fn keep_calendar(&self, stopping: CancellationToken) {
        let mut calendar = self.calendar.clone().strikes(Arc::clone(&self.clock));
        let mut telling = Telling::of("calendar of registries");
        let mut ticks = every(EVERY);
        let mut due = self.settings.at_start.then_some(AT_START);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = calendar.strike() => due = Some(BY_CALENDAR),
                _ = ticks.tick(), if due.is_some() => {}
            }
            if let Some(within) = due {
                let struck = self.strike(within).await;
                telling.note(&struck);
                due = due.filter(|_| struck.is_err());
            }
        }
    }

    /// Wishes that all registries be asked that were not within a time.
    async fn strike(&self, within: TimeDelta) -> Result<(), StoreError> {
        for name in self.sources.names() {
            let tx = self.store.fleet().await?;
            os_catalogue::strike(&tx, name, within).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Asks a registry whenever somebody wishes it, until it is asked to stop.
    async fn care_for_registry(&self, name: &str, stopping: CancellationToken) {
        let mut telling = Telling::of("sync of a registry");
        let (mut ticks, mut watch) = (every(EVERY), every(WATCHED_EVERY));
        loop {
            let passed = tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => self.cycle(name, &stopping).await.map(|_| ()),
                _ = watch.tick() => self.watch(name).await,
            };
            telling.note(&passed);
        }
    }

    /// Asks a registry if somebody wished it. Says whether it was asked, and to the end.
    pub(crate) async fn cycle(
        &self,
        name: &str,
        stopping: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let tx = self.store.fleet().await?;
        let claim = os_catalogue::claim(&tx, name, Uuid::new_v4(), LEASE).await?;
        tx.commit().await?;
        let (Some(claim), Some(source)) = (claim, self.sources.refresh(name)) else {
            return Ok(false);
        };
        Box::pin(Cycle::new(self, claim, source).run(stopping)).await
    }

    /// Tells how old everything is, and wishes that a registry be asked again that could not be asked.
    async fn watch(&self, name: &str) -> Result<(), StoreError> {
        let tx = self.store.fleet().await?;
        let Some(state) = os_catalogue::state(&tx, name).await? else {
            return Ok(());
        };
        if state.outcome == Some(CycleOutcome::Failed) && state.wanted == state.done {
            os_catalogue::strike(&tx, name, AFTER_FAILURE).await?;
        }
        tx.commit().await?;
        if let Some(good) = state.good_at {
            let age = (self.clock.now() - good).as_seconds_f64().max(0.0);
            let labels = [("registry", name.to_owned())];
            metrics::gauge!("evenkeel_os_last_good_seconds", &labels).set(age);
        }
        Ok(())
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Says once that a loop fails, and once that it works again.
#[derive(Debug)]
struct Telling {
    pass: &'static str,
    failures: u64,
}

impl Telling {
    const fn of(pass: &'static str) -> Self {
        Self { pass, failures: 0 }
    }

    fn note<T>(&mut self, passed: &Result<T, StoreError>) {
        let pass = self.pass;
        match passed {
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
    fn a_pass_that_fails_is_counted_until_it_works_again() {
        let mut telling = Telling::of("a pass");
        let fails = || Err::<(), _>(StoreError::NotFound { what: "project" });
        telling.note(&fails());
        telling.note(&fails());
        assert_eq!(telling.failures, 2);
        telling.note(&Ok(()));
        assert_eq!(telling.failures, 0);
    }
}
