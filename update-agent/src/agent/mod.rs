//! The loop: tell what is not told yet, ask what to do, do it.

mod acts;
mod alone;
mod guard;
mod hold;
mod planning;
mod reports;
mod troubles;

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
use crate::journal::{Entry, JournalError, Phase};
use crate::link::{Link, LinkError};
use crate::model::{Act, Decision};
use crate::modules::Try;
use crate::notify::{Manager, Sign};
use crate::owner::Owner;
use crate::place::Place;
use crate::status::StatusFile;

use self::hold::{Heard, Rest, Terms};

pub use self::guard::Guard;
pub use self::planning::Planning;
pub(crate) use self::troubles::of_clock;

/// Between polls of a server that cannot be reached: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// How often things are done that nobody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Lists of packages are made current at least this often.
    pub refresh_every: TimeDelta,
    /// The same wish is not prepared again ahead of its window before this time, if there was nothing to fetch; an image is
    /// not fetched again before it, if that failed.
    pub fetch_again_after: TimeDelta,
    /// The same wish is not seen through again before this time, however else it ended.
    pub retry_after: TimeDelta,
    /// The server is asked at least this often, even if it named a later time.
    pub poll_at_least_every: Duration,
}

/// What stops a round.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The journal. Nothing goes on without it.
    #[error("the journal does not work")]
    Journal(#[from] JournalError),
    /// What was withdrawn would still stand after a restart.
    #[error("a grant that the server gave ahead cannot be taken away")]
    Grant(#[source] FileError),
    /// The server.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The server takes a report and acknowledges nothing of it.
    #[error("the server does not acknowledge what it is told")]
    NoProgress,
    /// Somebody asked the agent to stop.
    #[error("asked to stop")]
    Stopped,
    /// An attempt did not end well.
    #[error("the update did not end well: {0}")]
    Attempt(String),
}

/// Whether a round moved something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    /// There is nothing to do but to wait.
    Nothing,
    /// The server should be asked again at once.
    Something,
}

/// Polls, acts, reports.
pub struct Agent {
    engine: Engine,
    link: Arc<dyn Link>,
    facts: FactsReader,
    clock: Arc<dyn Clock>,
    place: Place,
    pace: Pace,
    stop: CancellationToken,
    gate: Gate,
    owner: Arc<Owner>,
    guard: Arc<Guard>,
    manager: Arc<dyn Manager>,
    status: StatusFile,
    history: HistoryFile,
    grants: GrantFile,
    memory: Memory,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

/// What need not survive the process.
#[derive(Debug, Default)]
struct Memory {
    /// Digest of the facts that the server has.
    told: Option<[u8; 32]>,
    /// When the lists of packages were last made current, or that was last tried.
    refreshed: Option<DateTime<Utc>>,
    /// The name of the wish that was last prepared in vain, and when.
    fetched: Option<(String, DateTime<Utc>)>,
    /// What the server said last.
    said: String,
    /// How attempts ended, by the name of their wish.
    ended: BTreeMap<String, Ended>,
    /// Why the node itself did not let the prepared change begin when that was last asked; empty if it did.
    waiting: String,
    /// Whether what was to be fetched in this round waits for something: it is tried again at the next poll.
    later: bool,
    /// How far this machine's clock was ahead of the server's at the last answer.
    ahead: Option<TimeDelta>,
    /// Whether the service manager was told that the agent is up.
    up: bool,
    /// How the server wants to be asked.
    terms: Terms,
    /// There if the last round left nothing to do but to hear of news.
    rest: Option<Rest>,
    /// Whether a poll that might have been held followed at once on one that was not.
    hurried: bool,
    /// Since when the server has too much to do to answer.
    busy: Option<Instant>,
}

#[derive(Debug)]
struct Ended {
    at: DateTime<Utc>,
    trouble: Option<String>,
    /// The wish is left alone so long.
    again_after: TimeDelta,
}

/// What an agent is made of.
#[derive(Debug)]
pub struct Parts<L> {
    /// Carries attempts out.
    pub engine: Engine,
    /// The way to the server.
    pub link: L,
    /// Looks at the node.
    pub facts: FactsReader,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Where things are.
    pub place: Place,
    /// How often things are done.
    pub pace: Pace,
    /// Asks the agent to stop.
    pub stop: CancellationToken,
    /// Asks the node itself whether a change may begin.
    pub gate: Gate,
    /// What the machine's owner allows.
    pub owner: Arc<Owner>,
    /// Keeps the system up while it is being changed.
    pub guard: Arc<Guard>,
    /// Is told how the agent is.
    pub manager: Arc<dyn Manager>,
}

impl Agent {
    /// An agent of its parts.
    pub fn new<L: Link + 'static>(parts: Parts<L>) -> Self {
        let status = StatusFile::open(&parts.place.status());
        let history = HistoryFile::at(parts.place.history());
        let grants = GrantFile::open(&parts.place.grant());
        Self {
            engine: parts.engine,
            link: Arc::new(parts.link),
            facts: parts.facts,
            clock: parts.clock,
            place: parts.place,
            pace: parts.pace,
            stop: parts.stop,
            gate: parts.gate,
            owner: parts.owner,
            guard: parts.guard,
            manager: parts.manager,
            status,
            history,
            grants,
            memory: Memory::default(),
        }
    }

    /// Does everything that can be done now. Fails if the server was not reached or an attempt did not end well.
    pub async fn run_once(&mut self) -> Result<(), AgentError> {
        loop {
            let (did, _) = self.round(true).await?;
            if did == Did::Nothing {
                break;
            }
        }
        // What reboots the node is gone on with after that.
        let why = self.engine.why_open();
        if !why.is_empty() {
            let reason = format!("it has begun and is not over: {why}");
            return Err(AgentError::Attempt(reason));
        }
        if self.memory.later {
            return Err(AgentError::Attempt(self.memory.waiting.clone()));
        }
        let trouble = self.memory.ended.values().find_map(|e| e.trouble.clone());
        trouble.map_or(Ok(()), |trouble| Err(AgentError::Attempt(trouble)))
    }

    /// Goes on until it is asked to stop.
    pub async fn run(&mut self) {
        let calm = || {
            ExponentialBuilder::new()
                .with_min_delay(BACKOFF.0)
                .with_max_delay(BACKOFF.1)
                .with_jitter()
                .without_max_times()
                .build()
        };
        let mut backoff = calm();
        let mut trouble = String::new();
        while !self.stop.is_cancelled() {
            let wait = match self.round(false).await {
                Ok((did, next_poll)) => {
                    if !trouble.is_empty() {
                        tracing::info!(was = trouble, "the trouble has passed");
                    }
                    trouble.clear();
                    backoff = calm();
                    match did {
                        Did::Something => Duration::ZERO,
                        Did::Nothing => next_poll.min(self.pace.poll_at_least_every),
                    }
                }
                Err(AgentError::Stopped) => break,
                Err(error) => {
                    self.is_in_trouble(&error, &mut trouble);
                    let wait = backoff.next().unwrap_or(BACKOFF.1);
                    self.until_next_try(&error, wait)
                }
            };
            self.show(&trouble);
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        tracing::info!("stopped");
    }

    /// Says what does not work, once and not with every round.
    fn is_in_trouble(&mut self, error: &AgentError, known: &mut String) {
        let text = chain(error).to_string();
        if text == *known {
            tracing::debug!(error = text, "still in trouble");
        } else {
            tracing::warn!(error = text, "trouble, trying again");
        }
        self.status
            .change(|status| status.trouble.clone_from(&text));
        *known = text;
    }

    /// Tells the service manager once that the agent works. Before the first word with the server: that, and what the
    /// server then wants, may take longer than the manager waits for a start, and it would end the agent in the middle.
    fn is_up(&mut self) {
        if !self.memory.up {
            self.memory.up = true;
            self.manager.tell(Sign::Ready);
        }
    }

    /// Shows the service manager in one line what the agent is at.
    fn show(&self, trouble: &str) {
        let line = match (trouble, self.memory.waiting.as_str()) {
            ("", "") => self.memory.said.clone(),
            ("", waiting) => format!("{}; the node waits: {waiting}", self.memory.said),
            (trouble, _) => format!("in trouble: {trouble}"),
        };
        self.manager.tell(Sign::Status(&line));
    }

    /// A round with the server, or without it if it cannot be reached.
    async fn round(&mut self, once: bool) -> Result<(Did, Duration), AgentError> {
        self.is_up();
        match Box::pin(self.round_with_server(once)).await {
            Err(AgentError::Link(error)) => {
                if self.is_left_alone(&error) {
                    self.go_alone().await?;
                }
                Err(error.into())
            }
            other => other,
        }
    }

    /// Finishes what was begun, tells what is not told, asks what to do and does it.
    async fn round_with_server(&mut self, once: bool) -> Result<(Did, Duration), AgentError> {
        // Only after a round that came to its end.
        let rest = self.memory.rest.take().filter(|_| !once);
        self.memory.later = false;
        let mut entry = self.engine.open()?;
        if let Some(open) = entry.take() {
            entry = self.go_on(open).await?;
        }
        if entry.as_ref().is_some_and(Entry::is_about_to_boot) {
            // What is armed boots with any reset: the one that is watched is not put off by a poll.
            return Ok((Did::Something, Duration::ZERO));
        }
        if entry.is_none() {
            // A journal may have been lost, and with it what would have taken back what it had got ready.
            self.engine.stand_down().await;
            self.refresh_if_due(once).await?;
        } else {
            // What the open attempt needs is settled; the rest of the lists can wait for their turn.
            let now = self.clock.now();
            self.memory.refreshed.get_or_insert(now);
        }
        let (answer, way) = match self.poll(entry.as_ref(), rest).await? {
            Heard::Answer(answer, way) => (answer, way),
            Heard::Woken => return Ok((Did::Something, Duration::ZERO)),
            Heard::CutOff => return Ok((Did::Nothing, self.until_back())),
        };
        let decision = answer.decision;
        self.hear(&decision);
        let (now, ahead) = (self.clock.now(), self.memory.ahead);
        self.status.change(|status| {
            status.last_contact = Some(now);
            status.reason.clone_from(&decision.reason);
            status.next = decision.next;
            status.clock_ahead_seconds = ahead.map(|ahead| ahead.num_seconds());
            status.trouble.clear();
        });
        let has_begun = entry.as_ref().is_some_and(Entry::has_begun);
        let (act, is_prepared) = (decision.act.clone(), entry.is_some());
        let did = Box::pin(self.act(decision.act, entry, once)).await?;
        if did == Did::Nothing && !has_begun && !self.memory.later {
            self.memory.rest = self.rest_after(&act, is_prepared);
        }
        Ok((did, self.until_next_poll(way, answer.next_poll)))
    }

    /// Changes the node, or goes on with that, and keeps the system up meanwhile. A node that is to reboot is not held up.
    async fn carry_out(&mut self, entry: Entry, trying: Try) -> Result<Entry, AgentError> {
        self.manager.tell(Sign::Status("changing this node"));
        if entry.phase != Phase::Rebooting {
            self.guard.take("an update is being carried out");
        }
        let carried = self.engine.carry_out(entry, trying).await;
        self.guard.release().await;
        Ok(carried?)
    }

    /// Logs a decision once, not with every poll.
    fn hear(&mut self, decision: &Decision) {
        let said = format!("{}: {}", name(&decision.act), decision.reason);
        if said == self.memory.said {
            tracing::debug!(decision = said, "the server decided as before");
        } else {
            tracing::info!(decision = said, "the server decided");
        }
        self.memory.said = said;
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Result<T, AgentError> {
        unless(&self.stop, work).await
    }
}

/// Gives up what may be given up when the agent is asked to stop. Never used around a change of the node.
async fn unless<T>(
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> Result<T, AgentError> {
    tokio::select! {
        biased;
        () = stop.cancelled() => Err(AgentError::Stopped),
        done = work => Ok(done),
    }
}

fn name(act: &Act) -> &'static str {
    match act {
        Act::Idle => "idle",
        Act::Fetch(_) => "fetch",
        Act::Apply { .. } => "apply",
        Act::Continue => "continue",
        Act::Cancel { .. } => "cancel",
    }
}
