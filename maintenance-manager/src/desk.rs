//! Where polls are looked at in the database: many of them in one transaction, if many come at once.
//!
//! Nobody waits for a batch to fill. Who comes to a desk that is free is looked at alone and at once; who comes while all
//! of them are at work waits, and goes with the others who wait. What was found is remembered by the view.

mod alone;
mod audit;
mod batch;
mod meters;
mod queue;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_domain::Time;
use evenkeel_domain::eim::{Sample, SampleKind};
use evenkeel_domain::run::AttemptId;
use evenkeel_kit::Lifecycle;
use evenkeel_kit::clock::Clock;
use evenkeel_store::Store;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::load::{AtDatabase, Busy, CallKind, Load};
use crate::settings::Settings;
use crate::view::{Answer, Asked, Hit, Recall, View, Who};
use meters::Meters;
use queue::{Queue, Seat};

pub use meters::{Door, Polls};

/// How many polls may wait to be looked at by themselves.
const ALONE_WAITING: usize = 128;

/// How polls are looked at in the database.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeskSettings {
    /// How many batches are looked at at once, each on a connection of its own.
    pub desks: usize,
    /// The most polls of a batch.
    pub batch: usize,
    /// How long a poll waits for a batch that it can go with, before it is sent away.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
}

impl Default for DeskSettings {
    fn default() -> Self {
        Self {
            desks: 2,
            batch: 512,
            patience: Duration::from_secs(2),
        }
    }
}

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// A poll that waits for its answer.
    Poll,
    /// A poll that is held and looks again: it has an answer already.
    Held,
}

/// What one of our own agents says in a poll without news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnWords {
    /// The digest of its facts.
    pub digest: Vec<u8>,
    /// The attempt that it holds.
    pub attempt: Option<AttemptId>,
    /// What it waits for, as it is kept.
    pub waits: String,
}

/// What a node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    /// One of ours.
    Own(OwnWords),
    /// One of the ancestor's.
    Eim {
        /// Its sample.
        sample: Sample,
        /// What it says could be updated.
        available: String,
    },
}

/// A poll that may be a quiet one.
#[derive(Clone, Debug)]
pub struct Case {
    /// Who asks.
    pub who: Who,
    /// What stands for the words in the view.
    pub asked: Asked,
    /// What is said.
    pub words: Words,
    /// Who goes first.
    pub lane: Lane,
}

/// What becomes of a poll.
#[derive(Debug)]
pub enum Verdict {
    /// It says nothing new, and this is its answer.
    Quiet(Hit),
    /// Something is to be written.
    News,
}

/// What a poll looks like to one who judges it by what was read, and writes nothing.
#[derive(Debug)]
pub enum Looked {
    /// It says nothing new.
    Quiet {
        /// What it is answered.
        answer: Box<Answer>,
        /// Before which instant time alone does not change that; none if it never does.
        until: Option<Time>,
    },
    /// Something is to be written.
    News,
    /// It needs what a batch does not read.
    Alone,
    /// Nobody listens to it.
    Refused(Status),
}

/// The desks and the queue before them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Desk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    view: View,
    clock: Arc<dyn Clock>,
    settings: Arc<Settings>,
    load: Arc<Load>,
    queue: Mutex<Queue>,
    /// As many of each lane as may be looked at by themselves.
    alone: Semaphore,
    alone_held: Semaphore,
    /// As many as may wait for that: while they do, the others are not to be kept from the desks.
    alone_waiting: Semaphore,
    meters: Meters,
    /// How many polls were answered from memory.
    hits: AtomicU64,
    /// How many of those that were looked at again would have been answered otherwise.
    mismatches: AtomicU64,
}

impl Desk {
    /// Desks on a store, with nobody at them yet.
    pub fn new(
        store: Store,
        view: View,
        clock: Arc<dyn Clock>,
        (settings, load): (&Arc<Settings>, &Arc<Load>),
    ) -> Self {
        let desks = settings.desk.desks.clamp(1, Semaphore::MAX_PERMITS);
        Self(Arc::new(Inner {
            store,
            view,
            clock,
            settings: Arc::clone(settings),
            load: Arc::clone(load),
            queue: Mutex::default(),
            alone: Semaphore::new(desks),
            alone_held: Semaphore::new(desks),
            alone_waiting: Semaphore::new(ALONE_WAITING),
            meters: Meters::new(),
            hits: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
        }))
    }

    /// Looks at a poll in the database: in a batch with others, and once more by itself if that does not do.
    pub async fn look(&self, case: Case) -> Result<Verdict, Status> {
        let _one = self.0.to_the_database(&case)?;
        if let Some(verdict) = self.look_together(case.clone()).await? {
            return Ok(verdict);
        }
        Box::pin(self.look_alone(&case)).await
    }

    /// None if it needs what a batch does not read.
    async fn look_together(&self, case: Case) -> Result<Option<Verdict>, Status> {
        let inner = &self.0;
        let (lane, door) = (case.lane, case.words.door());
        let (ticket, mut answer) = self.enter(case);
        if lane == Lane::Poll {
            let patience = inner.settings.desk.patience;
            if let Ok(answer) = tokio::time::timeout(patience, &mut answer).await {
                return answer.unwrap_or_else(|_| Err(lost()));
            }
            if inner.queue().leave(ticket) {
                return Err(inner.busy(door));
            }
        }
        // It is being looked at.
        answer.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Answers a poll from memory, else looks at it. What lets a node begin something is answered from memory only as it
    /// has been since the call came.
    pub async fn ask(&self, case: Case, since: Instant) -> Result<Verdict, Status> {
        // One that is held was counted when it came.
        let polls = (case.lane == Lane::Poll).then(|| self.polls(case.words.door()));
        if let Some(verdict) = self.recall(&case, since).await {
            if let Verdict::Quiet(hit) = &verdict {
                if let Some(polls) = polls {
                    polls.hit.increment(1);
                }
                self.audit_some(&case, hit).await;
            }
            return Ok(verdict);
        }
        let looked = Box::pin(self.look(case)).await;
        if let Some(polls) = polls {
            match &looked {
                Ok(Verdict::Quiet(_)) => polls.miss.increment(1),
                // Counted by who writes it.
                Ok(Verdict::News) => {}
                Err(_) => polls.refused.increment(1),
            }
        }
        looked
    }

    /// How the polls of a door are counted.
    pub fn polls(&self, door: Door) -> &Polls {
        self.0.meters.of(door)
    }

    /// How many answers from memory were found to be others than the database would have given.
    pub fn mismatches(&self) -> u64 {
        self.0.mismatches.load(Ordering::Relaxed)
    }

    /// What is remembered of a poll; none if it must be looked at.
    async fn recall(&self, case: &Case, since: Instant) -> Option<Verdict> {
        let inner = &self.0;
        let recall = || {
            let now = inner.clock.now();
            inner.view.recall(&case.who, &case.asked, now)
        };
        let mut recalled = recall();
        if matches!(&recalled, Recall::Hit(hit) if hit.answer.fresh) {
            if !inner.view.fence(since).await {
                return None;
            }
            recalled = recall();
        }
        match recalled {
            Recall::Hit(hit) => Some(Verdict::Quiet(hit)),
            // One of the ancestor's says something else than before, or one of ours waits for something else.
            Recall::OtherWords { waits } => {
                let is_news = waits || case.words.door() == Door::Eim;
                is_news.then_some(Verdict::News)
            }
            Recall::Unknown => None,
        }
    }

    /// Takes a place in the queue, and starts work at a desk if one is free. How many may wait is limited
    /// before: polls by the load, those that are held by how many those may be.
    fn enter(&self, case: Case) -> queue::Place {
        let inner = &self.0;
        let mut queue = inner.queue();
        let place = queue.push(case);
        inner.meters.waiting.set(queue.len());
        if queue.sit_down(inner.settings.desk.desks) {
            drop(queue);
            Lifecycle::detach(batch::work(Seat::taken(Arc::clone(inner))));
        }
        place
    }
}

impl Inner {
    /// Counts a poll among those at the database, unless it is held: those are few at a time, and their calls do not count.
    fn to_the_database(&self, case: &Case) -> Result<Option<AtDatabase>, Status> {
        let kind = match (&case.words, case.lane) {
            (_, Lane::Held) => return Ok(None),
            // How an update failed is no question.
            (Words::Eim { sample, .. }, _) if sample.kind == SampleKind::Failed => CallKind::News,
            (words, Lane::Poll) => words.door().kind(),
        };
        let one = self.load.to_the_database(kind);
        one.map(Some).map_err(Busy::status)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self, door: Door) -> Status {
        self.meters.refused.increment(1);
        self.load.busy(door.kind()).status()
    }
}

impl Words {
    /// At which door this is said.
    pub const fn door(&self) -> Door {
        match self {
            Self::Own(_) => Door::Own,
            Self::Eim { .. } => Door::Eim,
        }
    }
}

/// The batch that a poll went with came to no end.
fn lost() -> Status {
    Status::unavailable("the poll could not be looked at; try again")
}
