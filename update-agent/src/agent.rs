//! The main loop: send pending reports, poll the server, carry out its decision.

mod actions;
mod long_poll;
mod offline;
mod planning_lock;
mod refresh_schedule;
mod reports;
mod shutdown_guard;
mod wait_reports;
mod warnings;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::{Clock, chain};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::durable::FileError;
use crate::engine::Engine;
use crate::facts::FactsReader;
use crate::gate::Gate;
use crate::grants::GrantFile;
use crate::history::HistoryFile;
use crate::journal::{JournalEntry, JournalError, Phase};
use crate::link::{LinkError, ServerLink};
use crate::model::{Action, Decision};
use crate::modules::TryKind;
use crate::node::Node;
use crate::notify::{ServiceManager, ServiceState};
use crate::owner::Owner;
use crate::paths::AgentPaths;
use crate::received_target::TargetFile;
use crate::status::StatusFile;

use self::long_poll::{IdlePeriod, LongPollTerms, PollResult};
use self::refresh_schedule::RefreshSchedule;

pub use self::planning_lock::PlanningLock;
pub use self::shutdown_guard::ShutdownGuard;
pub(crate) use self::warnings::clock_warning;

/// Minimum and maximum delay between polls while the server cannot be reached.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// Intervals of the agent's own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Maximum age of what the modules know about the outside.
    pub refresh_interval: TimeDelta,
    /// Minimum time between two preparations of the same target ahead of its window if there was
    /// nothing to download, and between two attempts whose preparation causes much work if the
    /// first one failed.
    pub fetch_retry_interval: TimeDelta,
    /// Minimum time between two attempts for the same target.
    pub retry_interval: TimeDelta,
    /// Maximum time between two polls, even if the server requests more.
    pub max_poll_interval: Duration,
}

/// Why a round was aborted.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The journal cannot be read or written. The agent changes nothing without it.
    #[error("cannot use the journal")]
    Journal(#[from] JournalError),
    /// The offline grant cannot be removed, so it would be valid again after a restart.
    #[error("cannot remove the offline grant")]
    Grant(#[source] FileError),
    /// A call to the server failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The server accepts a report without acknowledging any of its events.
    #[error("the server does not acknowledge the reported events")]
    NoProgress,
    /// The agent was asked to stop.
    #[error("stopped on request")]
    Stopped,
    /// An attempt failed.
    #[error("the update failed: {0}")]
    Attempt(String),
}

/// What follows after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundOutcome {
    /// Wait for the next poll.
    Wait,
    /// Poll again at once.
    PollAgain,
}

/// The agent: polls the server, acts, and reports.
pub struct Agent {
    engine: Arc<Engine>,
    link: Arc<dyn ServerLink>,
    facts: FactsReader,
    clock: Arc<dyn Clock>,
    paths: AgentPaths,
    intervals: Intervals,
    stop: CancellationToken,
    gate: Gate,
    owner: Arc<Owner>,
    guard: Arc<ShutdownGuard>,
    manager: Arc<dyn ServiceManager>,
    status: StatusFile,
    history: HistoryFile,
    grants: GrantFile,
    refresh_schedule: RefreshSchedule,
    started: DateTime<Utc>,
    target: TargetFile,
    loop_state: LoopState,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// State that is lost when the process ends.
#[derive(Debug, Default)]
struct LoopState {
    /// Digest of the facts that the server has.
    sent_facts_digest: Option<[u8; 32]>,
    /// Last refresh of what the modules know about the outside, successful or not.
    refreshed: Option<DateTime<Utc>>,
    /// When a refresh that failed temporarily is tried again.
    refresh_retry: Option<DateTime<Utc>>,
    /// Key of the target that was last prepared without an attempt, and when.
    last_prepared: Option<(String, DateTime<Utc>)>,
    /// Last decision of the server, as text.
    last_decision: String,
    /// How attempts ended, by the key of their target.
    ended: BTreeMap<String, EndedAttempt>,
    /// Why the node itself delays the prepared change; empty if it does not.
    waiting_reason: String,
    /// The reason in the last poll that the server answered.
    sent_waiting_reason: String,
    /// Whether the plan or the download of this round has to wait. It is tried again at the next poll.
    is_preparation_deferred: bool,
    /// How far the machine's clock was ahead of the server's at the last answer.
    clock_ahead: Option<TimeDelta>,
    /// Whether the service manager was notified that the agent is ready.
    is_ready_sent: bool,
    /// The server's instructions for polling.
    terms: LongPollTerms,
    /// Set if the last round left the agent idle.
    idle: Option<IdlePeriod>,
    /// Whether a long poll followed at once after a regular poll.
    polled_at_once: bool,
    /// Start requests that the server has refused in a row.
    refused_starts: u32,
    /// Delay of the next poll, if the server refused a start request in this round.
    refusal_delay: Option<Duration>,
    /// Since when the server has been overloaded.
    busy_since: Option<Instant>,
}

#[derive(Debug)]
struct EndedAttempt {
    at: DateTime<Utc>,
    problem: Option<String>,
    /// The target is not tried again before this time has passed.
    retry_after: TimeDelta,
}

#[derive(Debug)]
pub struct AgentParts<L> {
    /// Runs attempts.
    pub engine: Engine,
    /// Connection to the server.
    pub link: L,
    /// Reads the facts of the node.
    pub facts: FactsReader,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// The managed root and the agent's files.
    pub paths: AgentPaths,
    /// Intervals of the agent's own work.
    pub intervals: Intervals,
    /// Cancelled when the agent must stop.
    pub stop: CancellationToken,
    /// Checks of the node itself before a change.
    pub gate: Gate,
    /// Limits of the machine's owner.
    pub owner: Arc<Owner>,
    /// Prevents a shutdown during a change.
    pub guard: Arc<ShutdownGuard>,
    /// The service manager that is notified of the agent's state.
    pub manager: Arc<dyn ServiceManager>,
}

impl Agent {
    /// Creates an agent from its parts.
    pub fn new<L: ServerLink + 'static>(parts: AgentParts<L>) -> Self {
        let status = StatusFile::load(&parts.paths.status());
        let history = HistoryFile::new(parts.paths.history());
        let grants = GrantFile::load(&parts.paths.grant());
        let uuid = Node::load(&parts.paths).ok().map(|node| node.uuid);
        let target = TargetFile::load(&parts.paths.target());
        Self {
            refresh_schedule: RefreshSchedule::new(parts.intervals.refresh_interval, uuid),
            started: parts.clock.now(),
            engine: Arc::new(parts.engine),
            link: Arc::new(parts.link),
            facts: parts.facts,
            clock: parts.clock,
            paths: parts.paths,
            intervals: parts.intervals,
            stop: parts.stop,
            gate: parts.gate,
            owner: parts.owner,
            guard: parts.guard,
            manager: parts.manager,
            status,
            history,
            grants,
            target,
            loop_state: LoopState::default(),
        }
    }

    /// Does everything that can be done now. Fails if the server cannot be reached, an attempt
    /// failed, or the agent was asked to stop.
    pub async fn run_once(&mut self) -> Result<(), AgentError> {
        loop {
            // A round resumes an attempt, and reboots the node, even if the agent must stop.
            if self.stop.is_cancelled() {
                return Err(AgentError::Stopped);
            }
            let (outcome, _) = self.run_round(true).await?;
            if outcome == RoundOutcome::Wait {
                break;
            }
        }
        // An attempt that reboots the node is continued after the reboot.
        let why = self.engine.open_reason();
        if !why.is_empty() {
            let reason = format!("the update has begun and is not finished: {why}");
            return Err(AgentError::Attempt(reason));
        }
        if self.loop_state.is_preparation_deferred {
            return Err(AgentError::Attempt(self.loop_state.waiting_reason.clone()));
        }
        let problem = self.loop_state.ended.values().find_map(|e| e.problem.clone());
        problem.map_or(Ok(()), |problem| Err(AgentError::Attempt(problem)))
    }

    /// Runs until the agent is asked to stop.
    pub async fn run(&mut self) {
        let new_backoff = || {
            ExponentialBuilder::new()
                .with_min_delay(BACKOFF.0)
                .with_max_delay(BACKOFF.1)
                .with_jitter()
                .without_max_times()
                .build()
        };
        let mut backoff = new_backoff();
        let mut last_error = String::new();
        while !self.stop.is_cancelled() {
            let wait = match self.run_round(false).await {
                Ok((outcome, next_poll)) => {
                    if !last_error.is_empty() {
                        tracing::info!(was = last_error, "recovered from the error");
                    }
                    last_error.clear();
                    backoff = new_backoff();
                    match outcome {
                        RoundOutcome::PollAgain => Duration::ZERO,
                        RoundOutcome::Wait => next_poll.min(self.intervals.max_poll_interval),
                    }
                }
                Err(AgentError::Stopped) => break,
                Err(error) => {
                    self.record_error(&error, &mut last_error);
                    let wait = backoff.next().unwrap_or(BACKOFF.1);
                    self.retry_delay(&error, wait)
                }
            };
            // What delays a reboot is checked more often than the server is polled.
            let reboot_check = self.engine.take_reboot_check_delay();
            let wait = reboot_check.map_or(wait, |delay| delay.min(wait));
            self.notify_status(&last_error);
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        tracing::info!("stopped");
    }

    /// Logs an error once and not in every round.
    fn record_error(&mut self, error: &AgentError, last_error: &mut String) {
        let text = chain(error).to_string();
        if text == *last_error {
            tracing::debug!(error = text, "the same error again");
        } else {
            tracing::warn!(error = text, "the round failed, trying again");
        }
        self.status.update(|status| status.error.clone_from(&text));
        *last_error = text;
    }

    /// Notifies the service manager once that the agent is ready. This happens before the first
    /// call to the server: that call and the update after it may take longer than the manager's
    /// start timeout, and it would kill the agent.
    fn notify_ready(&mut self) {
        if !self.loop_state.is_ready_sent {
            self.loop_state.is_ready_sent = true;
            self.manager.notify(ServiceState::Ready);
        }
    }

    /// Shows the state of the agent in the service manager, in one line.
    fn notify_status(&self, error: &str) {
        let line = match (error, self.loop_state.waiting_reason.as_str()) {
            ("", "") => self.loop_state.last_decision.clone(),
            ("", waiting) => {
                format!("{}; the node delays the update: {waiting}", self.loop_state.last_decision)
            }
            (error, _) => format!("error: {error}"),
        };
        self.manager.notify(ServiceState::Status(&line));
    }

    /// One round with the server, or offline if the server cannot be reached.
    async fn run_round(&mut self, once: bool) -> Result<(RoundOutcome, Duration), AgentError> {
        self.notify_ready();
        match Box::pin(self.round_with_server(once)).await {
            Err(AgentError::Link(error)) => {
                if self.is_server_unreachable(&error) {
                    self.run_offline().await?;
                }
                Err(error.into())
            }
            other => other,
        }
    }

    /// Finishes what has begun, sends pending reports, polls the server and carries out its
    /// decision.
    async fn round_with_server(
        &mut self,
        once: bool,
    ) -> Result<(RoundOutcome, Duration), AgentError> {
        // Set only by a round that was completed.
        let rest = self.loop_state.idle.take().filter(|_| !once);
        self.loop_state.is_preparation_deferred = false;
        let mut entry = self.engine.open_attempt()?;
        if let Some(open) = entry.take() {
            entry = self.resume_attempt(open).await?;
        }
        let awaits_reboot = entry.as_ref().is_some_and(JournalEntry::awaits_first_reboot);
        if awaits_reboot && self.engine.open_reason().is_empty() {
            // The prepared change would be applied by any reset. The supervised reboot must not
            // wait for a poll. With a reason, the change is being cancelled and must be tried again
            // later.
            return Ok((RoundOutcome::PollAgain, Duration::ZERO));
        }
        if entry.is_none() {
            // If the journal was lost, a change that it had prepared is still pending and must be
            // cancelled.
            self.engine.cancel_pending_changes().await;
            self.refresh_if_due(once).await?;
        } else {
            // The open attempt has what it needs; the refresh of the package lists can wait.
            let now = self.clock.now();
            self.loop_state.refreshed.get_or_insert(now);
        }
        let (answer, way) = match self.poll(entry.as_ref(), rest).await? {
            PollResult::Answer(answer, way) => (answer, way),
            PollResult::Interrupted => return Ok((RoundOutcome::PollAgain, Duration::ZERO)),
            PollResult::Disconnected => return Ok((RoundOutcome::Wait, self.reconnect_delay())),
        };
        let decision = answer.decision;
        self.log_decision(&decision);
        let (now, ahead) = (self.clock.now(), self.loop_state.clock_ahead);
        self.status.update(|status| {
            status.last_contact = Some(now);
            status.reason.clone_from(&decision.reason);
            status.next = decision.next_change;
            status.clock_ahead_seconds = ahead.map(|ahead| ahead.num_seconds());
            status.error.clear();
        });
        if let Action::Fetch(target) | Action::Apply { target, .. } = &decision.action {
            self.target.store(target, now);
        }
        let has_begun = entry.as_ref().is_some_and(JournalEntry::has_begun);
        let (act, is_prepared) = (decision.action.clone(), entry.is_some());
        let outcome = Box::pin(self.perform_action(decision.action, entry, once)).await?;
        if outcome == RoundOutcome::Wait {
            self.report_new_waiting_reason().await?;
        }
        if outcome == RoundOutcome::Wait && !has_begun && !self.loop_state.is_preparation_deferred {
            self.loop_state.idle = self.idle_period_after(&act, is_prepared);
        }
        Ok((outcome, self.time_until_next_poll(way, answer.next_poll)))
    }

    /// Changes the node, or continues a change, while a lock prevents a shutdown. A pending reboot
    /// is not blocked.
    async fn run_attempt(
        &mut self,
        entry: JournalEntry,
        trying: TryKind,
    ) -> Result<JournalEntry, AgentError> {
        self.manager.notify(ServiceState::Status("changing this node"));
        if entry.phase != Phase::Rebooting {
            self.guard.acquire("an update is being carried out");
        }
        let (engine, open) = (Arc::clone(&self.engine), entry.clone());
        let work = engine.run_attempt(entry, trying);
        let result = self.with_wait_reports(Some(&open), work).await;
        self.guard.release().await;
        Ok(result?)
    }

    /// Logs a decision once and not at every poll.
    fn log_decision(&mut self, decision: &Decision) {
        let message = format!("{}: {}", action_name(&decision.action), decision.reason);
        if message == self.loop_state.last_decision {
            tracing::debug!(decision = message, "the server decided as before");
        } else {
            tracing::info!(decision = message, "the server decided");
        }
        self.loop_state.last_decision = message;
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, AgentError> {
        run_unless_stopped(&self.stop, work).await
    }
}

/// Runs work that may be aborted when the agent is asked to stop. Never used around a change of the
/// node.
async fn run_unless_stopped<T>(
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, AgentError> {
    tokio::select! {
        biased;
        () = stop.cancelled() => Err(AgentError::Stopped),
        done = work => Ok(done),
    }
}

fn action_name(act: &Action) -> &'static str {
    match act {
        Action::Idle => "idle",
        Action::Fetch(_) => "fetch",
        Action::Apply { .. } => "apply",
        Action::Continue => "continue",
        Action::Cancel { .. } => "cancel",
    }
}
