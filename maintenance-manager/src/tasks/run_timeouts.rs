//! Ends open runs that timed out, or that were downloaded for a window that will not come.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::decide::Act;
use evenkeel_domain::host::Host;
use evenkeel_domain::policy::PolicySpec;
use evenkeel_domain::run::{RunEvent, RunEventRecord, RunTimeouts, UpdateRun};
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_kit::spans;
use evenkeel_store::decisions::{self, PlanningLimits, ReadMode};
use evenkeel_store::nodes::{self, MachineKey, NodeState};
use evenkeel_store::runs::{self, StalledRun, Subject};
use evenkeel_store::task_passes::{self, SharedTask};
use evenkeel_store::{FleetTx, Lease, Store, StoreError, Tx, contacts};
use tokio_util::sync::CancellationToken;

use super::pass_ticks::PassTicks;
use crate::durations::{loop_interval, to_time_delta};
use crate::outage::Outage;
use crate::run_spans;
use crate::settings::Settings;

/// The number of runs that are read at once.
const PAGE_SIZE: u32 = 100;

/// The number of open runs in which one statement looks for those that no agent reports.
const SEARCHED_RUNS: u32 = 500;

/// The maximum delay with which a contact is written. For a long poll, the contact is its arrival.
const MAX_CONTACT_LAG: TimeDelta = TimeDelta::minutes(5);

/// How often one of the replicas looks for runs that no agent reports any more. The search reads all
/// open runs, and nothing waits for its result.
const UNATTENDED_CHECK_INTERVAL: TimeDelta = TimeDelta::minutes(10);

/// Ends runs that timed out. A pass needs no input: its work follows from the database alone. One
/// replica at a time runs a pass, and each run is checked again under the lock of its node.
#[derive(Clone, Debug)]
pub struct RunReaper {
    store: Store,
    clock: Arc<dyn Clock>,
    check_interval: Duration,
    planning_limits: PlanningLimits,
    timeouts: RunTimeouts,
    /// How much later than its last contact a node may have received an answer.
    contact_lag: TimeDelta,
    outage: Arc<Outage>,
}

impl RunReaper {
    #[must_use]
    pub fn new(store: Store, clock: Arc<dyn Clock>, settings: &Settings) -> Self {
        Self {
            store,
            clock,
            check_interval: loop_interval(settings.run_check_interval),
            planning_limits: settings.planning_limits(),
            timeouts: settings.run_timeouts(),
            contact_lag: MAX_CONTACT_LAG + to_time_delta(settings.long_poll.max_duration),
            outage: Arc::default(),
        }
    }

    /// Shares the outage tracking with other tasks.
    #[must_use]
    pub(crate) fn with_outage(mut self, outage: &Arc<Outage>) -> Self {
        self.outage = Arc::clone(outage);
        self
    }

    /// Runs passes until it is stopped.
    pub async fn run(self, stopping: CancellationToken) {
        let mut ticks = PassTicks::new(self.check_interval, &stopping);
        while ticks.wait_next().await {
            // A failed pass does not end the task: the next pass retries.
            let result = self.pass_until(&stopping).await;
            self.outage.note_pass("run reaper", &result);
            if let Ok(ended @ 1..) = result {
                tracing::info!(ended, "ended runs that timed out or missed their window");
            }
        }
    }

    /// Runs one pass. Returns the number of ended runs. A run that cannot be checked does not stop
    /// the others. Does nothing while another replica runs a pass, or while the clock of the
    /// process differs from the clock of the database.
    pub async fn pass(&self) -> Result<usize, StoreError> {
        self.pass_until(&CancellationToken::new()).await
    }

    async fn pass_until(&self, stopping: &CancellationToken) -> Result<usize, StoreError> {
        let Some(now) = self.store.trusted_time(&*self.clock).await? else {
            return Ok(0);
        };
        let Some(lease) = self.store.try_lease(Lease::RunTimeouts).await? else {
            return Ok(0);
        };
        let mut ended = self.end_timed_out(&lease, now, stopping).await?;
        let last_check = task_passes::find_last(&lease, SharedTask::UnattendedRuns).await?;
        if last_check.is_none_or(|last| (now - last).abs() >= UNATTENDED_CHECK_INTERVAL) {
            ended += self.end_unattended(&lease, now, stopping).await?;
            if !stopping.is_cancelled() {
                task_passes::record(&lease, SharedTask::UnattendedRuns, now).await?;
            }
        }
        // A dropped transaction ends only when its connection is used again.
        lease.commit().await?;
        Ok(ended)
    }

    /// Ends the runs that timed out. Reading a page keeps the lease.
    async fn end_timed_out(
        &self,
        lease: &FleetTx,
        now: Time,
        stopping: &CancellationToken,
    ) -> Result<usize, StoreError> {
        let (mut ended, mut last) = (0, None);
        loop {
            let page = (last, PAGE_SIZE);
            let due = runs::list_timed_out(lease, &self.timeouts, now, page).await?;
            ended += self.end_runs(&due, RunSearch::TimedOut, now, stopping).await?;
            last = due.last().copied();
            if last.is_none() || stopping.is_cancelled() {
                return Ok(ended);
            }
        }
    }

    /// Ends the runs that no agent reports any more. Reading a part of the open runs keeps the lease.
    async fn end_unattended(
        &self,
        lease: &FleetTx,
        now: Time,
        stopping: &CancellationToken,
    ) -> Result<usize, StoreError> {
        let (mut ended, mut last) = (0, None);
        loop {
            let part = (last, SEARCHED_RUNS);
            let found = runs::list_unattended(lease, self.contact_lag, now, part).await?;
            ended += self.end_runs(&found.due, RunSearch::Unattended, now, stopping).await?;
            last = found.last;
            if last.is_none() || stopping.is_cancelled() {
                return Ok(ended);
            }
        }
    }

    /// Ends those of these runs that are due.
    async fn end_runs(
        &self,
        candidates: &[StalledRun],
        search: RunSearch,
        now: Time,
        stopping: &CancellationToken,
    ) -> Result<usize, StoreError> {
        let mut ended = 0;
        for candidate in candidates {
            if stopping.is_cancelled() {
                return Ok(ended);
            }
            match self.end_if_due(*candidate, search, now).await {
                Ok(true) => ended += 1,
                Ok(false) => {}
                // An unreachable database fails all runs; a locked node fails only its own.
                Err(error @ StoreError::Unreachable(_)) => return Err(error),
                Err(error) => {
                    tracing::warn!(run.id = %candidate.run, error = %chain(&error), "cannot check a run");
                }
            }
        }
        Ok(ended)
    }

    /// Ends a run if it is due. Of the runs that no agent reports most are not due, so they are
    /// checked without a lock first, because a lock would block the reports of their nodes.
    async fn end_if_due(
        &self,
        candidate: StalledRun,
        search: RunSearch,
        now: Time,
    ) -> Result<bool, StoreError> {
        if search == RunSearch::Unattended {
            let tx = self.store.tenant(candidate.tenant).await?;
            let (host, node) = nodes::find_with_host(&tx, MachineKey::Host(candidate.host)).await?;
            if self.find_ending(&tx, candidate, (&host, &node), now).await?.is_none() {
                return Ok(false);
            }
        }
        let tx = self.store.tenant(candidate.tenant).await?;
        tx.lock_for_decision().await?;
        let (host, mut node) = nodes::lock_with_host(&tx, MachineKey::Host(candidate.host)).await?;
        let Some(ending) = self.find_ending(&tx, candidate, (&host, &node), now).await? else {
            return Ok(false);
        };
        let record = RunEventRecord::from_event(ending.event);
        let run = Subject::Run(candidate.run);
        let run = runs::advance(&tx, run, &record, &ending.timeouts, now).await?;
        let before = node.clone();
        node.reflect(&run, now);
        nodes::save_changes(&tx, &before, &node).await?;
        let collected = run_spans::collect_spans(&tx, &host, &run).await?;
        tx.commit().await?;
        collected.into_iter().for_each(spans::send);
        Ok(true)
    }

    /// How the run ends now, if it is due. A node that polls is asked to cancel and reports that
    /// itself.
    async fn find_ending(
        &self,
        tx: &Tx,
        candidate: StalledRun,
        (host, node): (&Host, &NodeState),
        now: Time,
    ) -> Result<Option<RunEnding>, StoreError> {
        let reading = ReadMode::Preview(now);
        let input =
            decisions::load_decision_input(tx, host, node, &self.planning_limits, reading).await?;
        let Some(run) = input.run.as_ref().filter(|run| run.id == candidate.run) else {
            return Ok(None);
        };
        let timeouts = self.timeouts_for(run, node);
        let event = if let Some((_, cause)) = input.superseded_run(now) {
            RunEvent::Cancelled(cause)
        } else if timeouts.for_run(run).is_expired(&run.state, now) {
            RunEvent::TimedOut
        } else if run.granted_at.is_some() || run.attempt.is_none() {
            // The node may have begun without having reported it; EIM's agents never ask for
            // permission.
            return Ok(None);
        } else if let Act::Cancel { cause, .. } = input.decide(now).act {
            let last_contact = contacts::last_contact(tx, node.instance).await?;
            if may_hold_offline_grant(
                run,
                last_contact.map(|last_contact| last_contact + self.contact_lag),
                now,
            ) {
                return Ok(None);
            }
            RunEvent::Cancelled(cause)
        } else {
            return Ok(None);
        };
        Ok(Some(RunEnding { event, timeouts }))
    }

    /// The timeouts of a run; shorter if our agent has replaced the agent that began it.
    fn timeouts_for(&self, run: &UpdateRun, node: &NodeState) -> RunTimeouts {
        let last_report = node.delivered.last_heard_at;
        let limit = last_report.and_then(|last_report| run.orphaned_at(last_report));
        limit.map_or(self.timeouts, |limit| self.timeouts.capped_at(run, limit))
    }
}

/// Which runs a pass looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunSearch {
    TimedOut,
    Unattended,
}

/// How a run ends.
struct RunEnding {
    event: RunEvent,
    timeouts: RunTimeouts,
}

/// Whether the node may still hold an offline grant and begin without reporting it. The grant was
/// sent with an answer, so it lasts for the days of the policy after the last possible answer.
fn may_hold_offline_grant(run: &UpdateRun, answered: Option<Time>, now: Time) -> bool {
    let days = run
        .origin
        .policy
        .as_ref()
        .map_or(PolicySpec::default_offline_days(), |policy| policy.spec.offline_days);
    let since = run.state.since();
    let answered = answered.map_or(since, |answered| answered.max(since));
    days > 0 && now < answered + TimeDelta::days(i64::from(days))
}
