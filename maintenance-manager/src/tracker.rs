//! Ends the runs whose time has come: those that nothing was heard of for too long, and those that were fetched for a
//! window that will not come.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::decide::Act;
use evenkeel_domain::host::Host;
use evenkeel_domain::policy::PolicySpec;
use evenkeel_domain::run::{Happening, Patience, RunEvent, UpdateRun};
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_store::decisions::{self, Horizon, Reading};
use evenkeel_store::nodes::{self, Machine, NodeState};
use evenkeel_store::runs::{self, Quiet, Subject};
use evenkeel_store::{Store, StoreError, Tx, contacts};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::outage::Outage;
use crate::settings::{Settings, delta, period};

/// How many runs are read at once.
const BATCH: u32 = 1_000;

/// How much later than it happened a contact may be written. While a poll is held, that is when it came.
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
    /// How much later than its last contact a node may have been answered.
    lag: TimeDelta,
    outage: Arc<Outage>,
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
            lag: CONTACTS_LAG + delta(settings.holds.longest),
            outage: Arc::default(),
        }
    }

    /// One that tells of an outage together with others.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
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
            let passed = self.pass_until(&stopping).await;
            self.outage.note_pass("tracker", &passed);
            if let Ok(ended @ 1..) = passed {
                tracing::info!(ended, "ended runs whose time had come");
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
                    // What cannot be reached for one cannot be reached for the others. One that others hold is.
                    Err(error @ StoreError::Unreachable(_)) => return Err(error),
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

    /// Ends a run if its time has come. Nearly always it has not: that is seen without a lock, which would hold up the
    /// node's reports.
    async fn judge(&self, quiet: Quiet) -> Result<bool, StoreError> {
        let tx = self.store.tenant(quiet.tenant).await?;
        let (host, node) = nodes::read(&tx, Machine::Host(quiet.host)).await?;
        if self.due(&tx, quiet, &host, &node).await?.is_none() {
            return Ok(false);
        }
        drop(tx);
        let tx = self.store.tenant(quiet.tenant).await?;
        tx.judge_wanted().await?;
        let (host, mut node) = nodes::lock_with_host(&tx, Machine::Host(quiet.host)).await?;
        let Some(due) = self.due(&tx, quiet, &host, &node).await? else {
            return Ok(false);
        };
        let happening = Happening::of(due.event);
        let run = Subject::Run(quiet.run);
        let run = runs::advance(&tx, run, &happening, &due.patience, due.now).await?;
        node.reflect(&run, due.now);
        nodes::save(&tx, &node).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// What ends a run now, if its time has come. A node that can be reached is told by its poll to give up, and says so
    /// itself.
    async fn due(
        &self,
        tx: &Tx,
        quiet: Quiet,
        host: &Host,
        node: &NodeState,
    ) -> Result<Option<Due>, StoreError> {
        let now = self.clock.now();
        let reading = Reading::Look(now);
        let world = decisions::world(tx, host, node, &self.horizon, reading).await?;
        let Some(run) = world.run.as_ref().filter(|run| run.id == quiet.run) else {
            return Ok(None);
        };
        let patience = self.patience(run, node);
        let event = if let Some((_, cause)) = world.outlived(now) {
            RunEvent::Cancelled(cause)
        } else if patience.with(run).is_over(&run.state, now) {
            RunEvent::TimedOut
        } else if run.granted_at.is_some() || run.attempt.is_none() {
            // It may have begun without our having heard of it yet; an agent that makes no attempts asks nobody.
            return Ok(None);
        } else if let Act::Cancel { cause, .. } = world.decide(now).act {
            let heard = contacts::last(tx, node.instance).await?;
            if may_hold_leave(run, heard.map(|heard| heard + self.lag), now) {
                return Ok(None);
            }
            RunEvent::Cancelled(cause)
        } else {
            return Ok(None);
        };
        Ok(Some(Due {
            event,
            patience,
            now,
        }))
    }

    /// The patience with a run: less where the agent that began it was replaced by ours.
    fn patience(&self, run: &UpdateRun, node: &NodeState) -> Patience {
        let last_word = node.delivered.last_word;
        let limit = last_word.and_then(|last_word| run.outlived_at(last_word));
        limit.map_or(self.patience, |limit| self.patience.until(run, limit))
    }
}

/// What ends a run, and when that was judged.
struct Due {
    event: RunEvent,
    patience: Patience,
    now: Time,
}

/// Whether leave that was given ahead may still let a node begin without our hearing of it: it was given with an answer,
/// so it lasts for as long as the policy says after the node can have been answered last.
fn may_hold_leave(run: &UpdateRun, answered: Option<Time>, now: Time) -> bool {
    let days = run
        .origin
        .policy
        .as_ref()
        .map_or(PolicySpec::default_offline_days(), |policy| {
            policy.spec.offline_days
        });
    let since = run.state.since();
    let answered = answered.map_or(since, |answered| answered.max(since));
    days > 0 && now < answered + TimeDelta::days(i64::from(days))
}
