//! Ends the runs whose time has come: those that nothing was heard of for too long, and those that were fetched for a
//! window that will not come.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::decide::Act;
use evenkeel_domain::policy::PolicySpec;
use evenkeel_domain::run::{Happening, Patience, RunEvent, UpdateRun};
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_store::decisions::{self, Horizon, Reading};
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::runs::{self, Quiet, Subject};
use evenkeel_store::{Store, StoreError, contacts};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::settings::{Settings, period};

/// How many runs are read at once.
const BATCH: u32 = 1_000;

/// How much later than it happened a contact may be written.
const CONTACTS_LAG: TimeDelta = TimeDelta::minutes(5);

/// A pass takes no input: what it does follows from the database alone, and each run is judged again under the lock of
/// its node, so passes on several replicas do no harm.
#[derive(Clone, Debug)]
pub struct Tracker {
    store: Store,
    clock: Arc<dyn Clock>,
    every: Duration,
    horizon: Horizon,
    patience: Patience,
}

impl Tracker {
    /// A tracker on a store.
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>, settings: &Settings) -> Self {
        Self {
            store,
            clock,
            every: period(settings.track_every),
            horizon: settings.horizon(),
            patience: settings.patience(),
        }
    }

    /// Makes passes until it is asked to stop.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            // A failed pass is not a failed process: the next pass is the retry.
            match self.pass_until(&stopping).await {
                Ok(0) => {}
                Ok(ended) => tracing::info!(ended, "ended runs whose time had come"),
                Err(error) => tracing::warn!(error = %chain(&error), "tracker pass failed"),
            }
        }
    }

    /// One pass. Returns how many runs it ended.
    ///
    /// # Errors
    /// The database cannot be reached. One run that cannot be judged does not stop the others.
    pub async fn pass(&self) -> Result<usize, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<usize, StoreError> {
        // A node that polls tells us sooner; only what has been quiet for a while is looked at.
        let before = self.clock.now() - TimeDelta::minutes(1);
        let (mut ended, mut last) = (0, None);
        loop {
            let tx = self.store.fleet().await?;
            let quiet = runs::quiet_since(&tx, before, last, BATCH).await?;
            drop(tx);
            for one in &quiet {
                if stopping.is_cancelled() {
                    return Ok(ended);
                }
                match self.judge(*one).await {
                    Ok(true) => ended += 1,
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(run.id = %one.run, error = %chain(&error), "not judged");
                    }
                }
            }
            last = quiet.last().copied();
            if last.is_none() {
                return Ok(ended);
            }
        }
    }

    /// Ends a run if its time has come. A node that can be reached is told by its poll to give up, and says so itself.
    async fn judge(&self, quiet: Quiet) -> Result<bool, StoreError> {
        let tx = self.store.tenant(quiet.tenant).await?;
        tx.judge_wanted().await?;
        let (host, mut node) = nodes::lock_with_host(&tx, Machine::Host(quiet.host)).await?;
        let now = self.clock.now();
        let reading = Reading::Look(now);
        let world = decisions::world(&tx, &host, &node, &self.horizon, reading).await?;
        let Some(run) = world.run.as_ref().filter(|run| run.id == quiet.run) else {
            return Ok(false);
        };
        let event = if self.patience.with(run).is_over(&run.state, now) {
            RunEvent::TimedOut
        } else if run.granted_at.is_some() || run.attempt.is_none() {
            // It may have begun without our having heard of it yet; an agent that makes no attempts asks nobody.
            return Ok(false);
        } else if let Act::Cancel { cause, .. } = world.decide(now).act {
            let heard = contacts::last(&tx, node.instance).await?;
            if may_hold_leave(run, heard, now) {
                return Ok(false);
            }
            RunEvent::Cancelled(cause)
        } else {
            return Ok(false);
        };
        let happening = Happening::of(event);
        let run = runs::advance(&tx, Subject::Run(run.id), &happening, &self.patience, now).await?;
        node.reflect(&run, now);
        nodes::save(&tx, &node).await?;
        tx.commit().await?;
        Ok(true)
    }
}

/// Whether leave that was given ahead may still let a node begin without our hearing of it: it was given with an answer,
/// so it lasts for as long as the policy says after the node was heard last.
fn may_hold_leave(run: &UpdateRun, heard: Option<Time>, now: Time) -> bool {
    let days = run
        .origin
        .policy
        .as_ref()
        .map_or(PolicySpec::default_offline_days(), |policy| {
            policy.spec.offline_days
        });
    let since = run.state.since();
    let heard = heard.map_or(since, |heard| heard.max(since));
    days > 0 && now < heard + TimeDelta::days(i64::from(days)) + CONTACTS_LAG
}
