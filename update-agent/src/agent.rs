//! The loop: tell what is not told yet, ask what to do, do it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::{Clock, chain};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::facts::{Facts, FactsReader};
use crate::journal::{Entry, JournalError, Phase};
use crate::link::{Answer, Leave, Link, LinkError, facts_digest};
use crate::model::{Act, Failure, News, Target};
use crate::modules::{Ready, Try};
use crate::node::save_credential;
use crate::place::Place;
use crate::status::{End, StatusFile};

/// A server that acknowledges less than it is told, so often in a row, is given a rest.
const MOST_REWINDS: u32 = 3;
/// News of a beginning may take so long; then the work begins without its being told.
const BRIEFLY: Duration = Duration::from_secs(5);
/// Between polls of a server that cannot be reached: at first, and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

/// How often things are done that nobody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Lists of packages are made current at least this often.
    pub refresh_every: TimeDelta,
    /// The same wish is not prepared again ahead of its window before this time, if there was nothing to fetch.
    pub fetch_again_after: TimeDelta,
    /// The same wish is not tried again before this time, if it failed.
    pub retry_after: TimeDelta,
}

/// What stops a round.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The journal. Nothing goes on without it.
    #[error("the journal does not work")]
    Journal(#[from] JournalError),
    /// The server.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The server takes a report and acknowledges nothing of it.
    #[error("the server does not acknowledge what it is told")]
    NoProgress,
    /// The node cannot be looked at.
    #[error("the node cannot be looked at: {0}")]
    Facts(Failure),
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
    status: StatusFile,
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
    /// The wish that was last prepared in vain, and when.
    fetched: Option<(String, DateTime<Utc>)>,
    /// How attempts ended, by the digest of their target.
    ended: BTreeMap<String, Ended>,
}

#[derive(Debug)]
struct Ended {
    at: DateTime<Utc>,
    trouble: Option<String>,
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
}

impl Agent {
    /// An agent of its parts.
    pub fn new<L: Link + 'static>(parts: Parts<L>) -> Self {
        let status = StatusFile::open(&parts.place.status());
        Self {
            engine: parts.engine,
            link: Arc::new(parts.link),
            facts: parts.facts,
            clock: parts.clock,
            place: parts.place,
            pace: parts.pace,
            stop: parts.stop,
            status,
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
                        Did::Nothing => next_poll,
                    }
                }
                Err(AgentError::Stopped) => break,
                Err(error) => {
                    let text = chain(&error).to_string();
                    if text == trouble {
                        tracing::debug!(error = text, "still in trouble");
                    } else {
                        tracing::warn!(error = text, "trouble, trying again");
                    }
                    self.status
                        .change(|status| status.trouble.clone_from(&text));
                    trouble = text;
                    backoff.next().unwrap_or(BACKOFF.1)
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        tracing::info!("stopped");
    }

    /// Finishes what was begun, tells what is not told, asks what to do and does it.
    async fn round(&mut self, once: bool) -> Result<(Did, Duration), AgentError> {
        let mut entry = self.engine.open()?;
        if let Some(open) = entry.take() {
            entry = self.go_on(open).await?;
        }
        if entry.is_none() {
            self.refresh_if_due(once).await?;
        } else {
            // What the open attempt needs is settled; the rest of the lists can wait for their turn.
            let now = self.clock.now();
            self.memory.refreshed.get_or_insert(now);
        }
        let answer = self.poll(entry.as_ref()).await?;
        let decision = answer.decision;
        tracing::info!(
            act = name(&decision.act),
            reason = decision.reason,
            "the server decided"
        );
        let now = self.clock.now();
        self.status.change(|status| {
            status.last_contact = Some(now);
            status.reason.clone_from(&decision.reason);
            status.next = decision.next;
            status.trouble.clear();
        });
        let did = self.act(decision.act, entry, once).await?;
        Ok((did, answer.next_poll))
    }

    /// Goes on with an attempt from the journal, as far as that needs no word from the server.
    async fn go_on(&mut self, open: Entry) -> Result<Option<Entry>, AgentError> {
        let entry = if open.has_begun() {
            tracing::warn!(attempt = %open.attempt, phase = open.phase.name(), "going on with what was begun");
            self.engine.carry_out(open, Try::Again).await?
        } else {
            open
        };
        self.settle(entry).await
    }

    /// Tells what is not told. An attempt that is over and wholly told is forgotten.
    async fn settle(&mut self, mut entry: Entry) -> Result<Option<Entry>, AgentError> {
        if entry.phase == Phase::Over {
            self.remember(&entry);
        }
        self.flush(&mut entry).await?;
        if entry.phase != Phase::Over {
            return Ok(Some(entry));
        }
        self.engine.close()?;
        Ok(None)
    }

    fn remember(&mut self, entry: &Entry) {
        let Some(end) = End::of(entry) else { return };
        let failed = entry.events.last().and_then(|event| event.news.failure());
        let ended = Ended {
            at: end.at,
            trouble: failed.map(|failure| failure.reason.clone()),
        };
        self.memory.ended.insert(end.target.clone(), ended);
        self.status.change(|status| status.last_end = Some(end));
    }

    async fn flush(&self, entry: &mut Entry) -> Result<(), AgentError> {
        let mut rewinds = 0;
        while !entry.unsent().is_empty() {
            let before = entry.acknowledged;
            let stored = self.unless_stopped(self.link.report(entry)).await??;
            // More than was ever said cannot be stored.
            let upto = stored.min(entry.last_sequence());
            self.engine.acknowledge(entry, upto)?;
            if upto <= before {
                rewinds += 1;
            }
            if rewinds > MOST_REWINDS {
                return Err(AgentError::NoProgress);
            }
        }
        Ok(())
    }

    /// Makes the lists of packages current from time to time, so that the facts know what is available.
    async fn refresh_if_due(&mut self, once: bool) -> Result<(), AgentError> {
        let now = self.clock.now();
        let due = match self.memory.refreshed {
            None => once || self.is_past(self.status.get().refreshed, self.pace.refresh_every),
            some => self.is_past(some, self.pace.refresh_every),
        };
        if !due {
            return Ok(());
        }
        self.memory.refreshed = Some(now);
        match self.unless_stopped(self.engine.refresh()).await? {
            Ok(()) => self.status.change(|status| status.refreshed = Some(now)),
            Err(failure) => {
                tracing::warn!(error = %failure, "the lists of packages are not current");
            }
        }
        Ok(())
    }

    /// Whether an instant lies at least so long in the past. An instant in the future is one of a wrong clock.
    fn is_past(&self, instant: Option<DateTime<Utc>>, by: TimeDelta) -> bool {
        let now = self.clock.now();
        instant.is_none_or(|instant| instant > now || now - instant >= by)
    }

    async fn poll(&mut self, entry: Option<&Entry>) -> Result<Answer, AgentError> {
        let stop = self.stop.clone();
        let facts = unless(&stop, self.facts.read())
            .await?
            .map_err(AgentError::Facts)?;
        let digest = facts_digest(&facts);
        let attempt = entry.map(|entry| (entry.attempt, entry.last_sequence()));
        let news = self.memory.told.is_some_and(|told| told != digest);
        let mut answer = self.ask(&facts, news, attempt).await?;
        if answer.want_facts {
            answer = self.ask(&facts, true, attempt).await?;
        }
        self.memory.told = Some(digest);
        Ok(answer)
    }

    async fn ask(
        &self,
        facts: &Facts,
        whole: bool,
        attempt: Option<(uuid::Uuid, u32)>,
    ) -> Result<Answer, AgentError> {
        let answer = self
            .unless_stopped(self.link.poll(facts, whole, attempt))
            .await??;
        if let Some(credential) = &answer.credential {
            save_credential(&self.place, credential).map_err(JournalError::from)?;
            self.link.renew(credential)?;
            tracing::info!("the server gave a new credential");
        }
        Ok(answer)
    }

    async fn act(&mut self, act: Act, entry: Option<Entry>, once: bool) -> Result<Did, AgentError> {
        match (act, entry) {
            (Act::Idle, _) | (Act::Cancel { .. }, None) => Ok(Did::Nothing),
            (Act::Continue, None) => {
                tracing::warn!("the server knows of an attempt that this agent does not have");
                Ok(Did::Nothing)
            }
            (Act::Cancel { cause }, Some(entry)) => self.cancel(entry, &cause).await,
            (Act::Fetch(target) | Act::Apply { target, .. }, Some(entry))
                if target.digest != entry.target.digest =>
            {
                self.cancel(entry, "withdrawn").await
            }
            (Act::Fetch(_) | Act::Continue, Some(entry)) => self.download(entry).await,
            (Act::Fetch(target), None) => self.fetch(target, once).await,
            (Act::Apply { .. }, Some(entry)) => self.apply(entry).await,
            (Act::Apply { target, .. }, None) => self.open_and_apply(target, once).await,
        }
    }

    async fn cancel(&mut self, entry: Entry, cause: &str) -> Result<Did, AgentError> {
        let over = self.engine.cancel(entry, cause)?;
        self.settle(over).await?;
        Ok(Did::Something)
    }

    /// Downloads what is missing and tells so.
    async fn download(&mut self, entry: Entry) -> Result<Did, AgentError> {
        if entry.phase != Phase::Downloading {
            return Ok(Did::Nothing);
        }
        let staged = self.unless_stopped(self.engine.fetch(entry)).await??;
        self.settle(staged).await?;
        Ok(Did::Something)
    }

    /// Prepares a wish ahead of its window. Where there is nothing to fetch, nothing is told.
    async fn fetch(&mut self, target: Target, once: bool) -> Result<Did, AgentError> {
        let recent = self.memory.fetched.as_ref().is_some_and(|(digest, at)| {
            *digest == target.digest && !self.is_past(Some(*at), self.pace.fetch_again_after)
        });
        if recent || self.is_settled(&target, once) {
            return Ok(Did::Nothing);
        }
        match self.unless_stopped(self.engine.plan(&target)).await? {
            Ok(draft) if draft.download_bytes > 0 => {
                let mut entry = self.engine.start(target, draft)?;
                self.flush(&mut entry).await?;
                self.download(entry).await
            }
            prepared => {
                match prepared {
                    Ok(_) => tracing::info!("there is nothing to fetch for the wish"),
                    Err(failure) => {
                        tracing::warn!(error = %failure, "the wish cannot be prepared yet");
                    }
                }
                self.memory.fetched = Some((target.digest, self.clock.now()));
                Ok(Did::Nothing)
            }
        }
    }

    async fn open_and_apply(&mut self, target: Target, once: bool) -> Result<Did, AgentError> {
        if self.is_settled(&target, once) {
            tracing::info!("the wish was seen through a moment ago");
            return Ok(Did::Nothing);
        }
        let over = match self.unless_stopped(self.engine.plan(&target)).await? {
            Ok(draft) if !draft.steps.is_empty() => {
                let mut entry = self.engine.start(target, draft)?;
                self.flush(&mut entry).await?;
                return self.apply(entry).await;
            }
            Ok(_) => self.engine.start_and_end(target, News::NothingToDo)?,
            Err(failure) => {
                let results = Vec::new();
                let news = News::Failed { failure, results };
                self.engine.start_and_end(target, news)?
            }
        };
        self.settle(over).await?;
        Ok(Did::Something)
    }

    /// Whether a wish was just seen through, so that a server that forgot does not make the node run in circles.
    fn is_settled(&self, target: &Target, once: bool) -> bool {
        self.memory.ended.get(&target.digest).is_some_and(|ended| {
            let failed = ended.trouble.is_some();
            once || (failed && !self.is_past(Some(ended.at), self.pace.retry_after))
        })
    }

    /// Asks for leave and changes the node. Once that has begun, nothing but its end ends it.
    async fn apply(&mut self, mut entry: Entry) -> Result<Did, AgentError> {
        if entry.phase == Phase::Downloading {
            entry = self.unless_stopped(self.engine.fetch(entry)).await??;
            if entry.phase == Phase::Over {
                self.settle(entry).await?;
                return Ok(Did::Something);
            }
        }
        match self.unless_stopped(self.engine.ready(&entry)).await? {
            Ok(Ready::Yes) => {}
            Ok(Ready::NotYet(why)) => {
                tracing::warn!(why, "the node cannot be changed just now");
                return Ok(Did::Nothing);
            }
            Err(failure) => {
                let over = self.engine.fail(entry, failure)?;
                self.settle(over).await?;
                return Ok(Did::Something);
            }
        }
        self.flush(&mut entry).await?;
        let before = match self.unless_stopped(self.link.begin(&entry)).await?? {
            Leave::Granted { before } => before,
            Leave::Refused { reason } => {
                tracing::info!(reason, "the server does not let the update begin");
                return Ok(Did::Nothing);
            }
        };
        let mut entry = self.engine.begin(entry, before)?;
        match tokio::time::timeout(BRIEFLY, self.flush(&mut entry)).await {
            Ok(Err(AgentError::Journal(error))) => return Err(error.into()),
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "the beginning will be told later");
            }
            Ok(Ok(())) | Err(_) => {}
        }
        let over = self.engine.carry_out(entry, Try::First).await?;
        self.settle(over).await?;
        Ok(Did::Something)
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
