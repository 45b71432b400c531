//! Evaluates polls against the database, several in one transaction under load.
//!
//! No poll waits for a batch to fill. If a worker is free, a poll is evaluated alone and at once.
//! While all workers are busy, polls queue up and the next free worker takes those of one project as
//! one batch. Projects take turns. The results go into the answer cache.

mod batch_metrics;
mod queue;
mod single;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_domain::eim::{Sample, SampleKind};
use evenkeel_kit::Lifecycle;
use evenkeel_kit::clock::Clock;
use evenkeel_store::Store;
use evenkeel_store::decisions::PlanningLimits;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::admission::concurrency::{CallKind, Load, Overloaded};
use crate::admission::semaphore::{DatabasePermit, ProjectWaitQueue};
use crate::evaluate::OwnPayload;
use crate::poll::cache::{AnswerCache, CacheKey, CachedAnswer, NodeKey};
use batch_metrics::BatchMetrics;
use queue::{PollQueue, Worker};

/// The maximum number of polls that wait for a single evaluation: their calls must not block the
/// others.
const MAX_SINGLE_WAITERS: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PollBatchSettings {
    /// Number of workers. Each worker evaluates one batch at a time, on its own database connection.
    pub workers: usize,
    /// Maximum number of polls in a batch.
    pub max_size: usize,
    /// Maximum time that a poll waits for a batch. Afterwards it is refused.
    #[serde(with = "humantime_serde")]
    pub queue_timeout: Duration,
}

impl Default for PollBatchSettings {
    fn default() -> Self {
        Self { workers: 2, max_size: 512, queue_timeout: Duration::from_secs(2) }
    }
}

/// The priority of a poll in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A poll that waits for its answer.
    Poll,
    /// A long poll that checks its answer again. It already has one.
    LongPoll,
}

/// The protocol of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollProtocol {
    /// The protocol of our own agents.
    Own,
    /// EIM's protocol.
    Eim,
}

impl PollProtocol {
    /// The call kind of polls of this protocol.
    pub const fn kind(self) -> CallKind {
        match self {
            Self::Own => CallKind::Query,
            Self::Eim => CallKind::EimQuery,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PollPayload {
    /// From our own agent.
    Own(OwnPayload),
    /// From one of EIM's agents.
    Eim {
        sample: Sample,
        /// The available updates that it reports.
        available: String,
    },
}

/// A poll that may need no write.
#[derive(Clone, Debug)]
pub struct PollContext {
    pub node: NodeKey,
    /// The key of the payload in the answer cache.
    pub cache_key: CacheKey,
    pub payload: PollPayload,
    /// The priority in the queue.
    pub priority: Priority,
}

#[derive(Debug)]
pub enum BatchResult {
    /// No write is needed; this is the answer.
    Unchanged(CachedAnswer),
    NeedsWrite,
}

/// Evaluates polls in batches. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PollBatcher(Arc<PollBatcherInner>);

#[derive(Debug)]
struct PollBatcherInner {
    store: Store,
    cache: AnswerCache,
    clock: Arc<dyn Clock>,
    settings: PollBatchSettings,
    planning_limits: PlanningLimits,
    load: Arc<Load>,
    queue: Mutex<PollQueue>,
    /// Limit the single evaluations for each priority.
    single_polls: ProjectWaitQueue,
    single_long_polls: ProjectWaitQueue,
    metrics: BatchMetrics,
}

impl PollBatcher {
    /// A batcher on a store, without running workers.
    pub fn new(
        store: Store,
        cache: AnswerCache,
        clock: Arc<dyn Clock>,
        load: Arc<Load>,
        (settings, planning_limits): (PollBatchSettings, PlanningLimits),
    ) -> Self {
        let PollBatchSettings { workers, queue_timeout, .. } = settings;
        // One more, so that a project can use as many as there are workers and leaves one to others.
        let single = workers.saturating_add(1);
        Self(Arc::new(PollBatcherInner {
            store,
            cache,
            clock,
            settings,
            planning_limits,
            load,
            queue: Mutex::default(),
            single_polls: ProjectWaitQueue::new(single, MAX_SINGLE_WAITERS, queue_timeout),
            // A long poll already has an answer, and its call does not block others.
            single_long_polls: ProjectWaitQueue::new(single, usize::MAX, Duration::MAX),
            metrics: BatchMetrics::new(),
        }))
    }

    /// Evaluates a poll in a batch, and again alone if the batch did not load enough data.
    pub async fn evaluate(&self, context: PollContext) -> Result<BatchResult, Status> {
        let _guard = self.0.admit_to_database(&context)?;
        if let Some(result) = self.evaluate_in_batch(context.clone()).await? {
            return Ok(result);
        }
        Box::pin(self.evaluate_single(&context)).await
    }

    /// Returns `None` if the evaluation needs data that a batch does not load.
    async fn evaluate_in_batch(&self, context: PollContext) -> Result<Option<BatchResult>, Status> {
        let inner = &self.0;
        let (priority, protocol) = (context.priority, context.payload.protocol());
        let project = context.node.tenant();
        let (ticket, mut answer) = self.enqueue(context);
        if priority == Priority::Poll {
            let queue_timeout = inner.settings.queue_timeout;
            if let Ok(answer) = tokio::time::timeout(queue_timeout, &mut answer).await {
                return answer.unwrap_or_else(|_| Err(batch_aborted()));
            }
            if inner.queue().remove(project, ticket) {
                return Err(inner.overloaded(protocol));
            }
        }
        // A worker has already taken it.
        answer.await.unwrap_or_else(|_| Err(batch_aborted()))
    }

    /// Queues a poll, and starts a worker if one is free. The queue needs no limit of its own: the
    /// load limits bound the polls, and the long poll limit bounds the long polls.
    fn enqueue(&self, context: PollContext) -> queue::QueueTicket {
        let inner = &self.0;
        let mut queue = inner.queue();
        let ticket = queue.push(context);
        inner.metrics.waiting.set(queue.len());
        if queue.claim_worker(inner.settings.workers) {
            drop(queue);
            Lifecycle::detach(worker::run_worker(Worker::new(Arc::clone(inner))));
        }
        ticket
    }
}

impl PollBatcherInner {
    /// Counts a poll among the database calls. Long polls are not counted: only few query at a
    /// time.
    fn admit_to_database(&self, context: &PollContext) -> Result<Option<DatabasePermit>, Status> {
        let kind = match (&context.payload, context.priority) {
            (_, Priority::LongPoll) => return Ok(None),
            // A failed update is a report and not a query.
            (PollPayload::Eim { sample, .. }, _) if sample.kind == SampleKind::Failed => {
                CallKind::Write
            }
            (payload, Priority::Poll) => payload.protocol().kind(),
        };
        let guard = self.load.admit_to_database(context.node.tenant(), kind);
        guard.map(Some).map_err(Overloaded::status)
    }

    fn queue(&self) -> MutexGuard<'_, PollQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn overloaded(&self, protocol: PollProtocol) -> Status {
        self.metrics.overloaded.increment(1);
        self.load.overloaded(protocol.kind()).status()
    }
}

impl PollPayload {
    pub const fn protocol(&self) -> PollProtocol {
        match self {
            Self::Own(_) => PollProtocol::Own,
            Self::Eim { .. } => PollProtocol::Eim,
        }
    }
}

/// The error of a poll whose batch was aborted.
fn batch_aborted() -> Status {
    Status::unavailable("the poll could not be evaluated; try again")
}
