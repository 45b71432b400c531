//! Load limits: how many calls run at once, and how often nodes should poll under pressure.
//!
//! Excess calls are refused before they are read, with a retry delay: queries first, writes last.
//! Queries that are not answered from the cache have a lower limit. While the pressure lasts, nodes
//! are asked to poll less often.

mod message_memory;
mod pressure;
mod retry_queue;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{max_per_project, tick};
use metrics::{Counter, Gauge};
use serde::{Deserialize, Serialize};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::metadata::MetadataValue;

use pressure::{adapt_factor, max_factor, ratio, smooth, strain};
use retry_queue::{MAX_RETRY_DELAY, MIN_RETRY_DELAY, MIN_SERVICE_TIME, RetryQueue};

use crate::admission::connection::{ConnectionState, SenderProject};
use crate::admission::semaphore::{
    DatabasePermit, PrioritySemaphore, ProjectPermit, ProjectSemaphore, ProjectUnitPermit,
    ProjectWaitQueue, UnitPermit,
};

pub use message_memory::MessageMemory;

/// The interval between samples of the pressure. A sample that is late by a whole interval counts
/// as full pressure.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// The interval in an idle process, where a wake-up costs more than the sample itself.
const IDLE_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

const MINUTE: Duration = Duration::from_mins(1);

/// How long a stop waits until long polls are answered, and how often it checks.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long a call waits for a permit to write.
const WRITE_PERMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The header with the retry delay in milliseconds.
pub const RETRY_PUSHBACK_HEADER: &str = "grpc-retry-pushback-ms";

/// Settings of the load limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadSettings {
    /// Maximum number of calls in flight when a call that only queries is admitted. Long polls do
    /// not count. 0 means no limit, also for calls that write. Of the calls that use the database, a
    /// project has at most three quarters of their limit: half of this for queries, a quarter for
    /// queries of EIM's agents, and all of this for calls that write.
    pub query_call_limit: u32,
    /// Maximum number of calls in flight when a call that writes is admitted, and of calls whose
    /// message does not arrive, of which a project has at most three quarters. At least
    /// `query_call_limit`.
    pub total_call_limit: u32,
    /// Maximum poll interval under load.
    #[serde(with = "humantime_serde")]
    pub max_poll_interval: Duration,
    /// Maximum number of concurrent calls that write; of one project, three quarters of it.
    pub max_writers: usize,
    /// Maximum number of calls that wait to write; of one project, three quarters of it. Further
    /// calls are refused.
    pub max_waiting_writers: usize,
    /// Maximum memory of arriving messages in bytes, without the first 64 KiB of each message; of
    /// one project, three quarters of it. A quarter of it is for connections without an
    /// authenticated call. 0 means no limit.
    pub message_memory_limit: u64,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            query_call_limit: 1_024,
            total_call_limit: 1_280,
            max_poll_interval: Duration::from_mins(5),
            max_writers: 16,
            max_waiting_writers: 2_048,
            message_memory_limit: 128 << 20,
        }
    }
}

/// The common path prefix of the calls of our own agents.
const AGENT_SERVICE_PREFIX: &str = "/evenkeel.agent.";

/// The kind of a call, as far as its path tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A query, which can be repeated.
    Query,
    /// A query of one of EIM's agents, which repeats it at its own pace and ignores retry delays.
    EimQuery,
    /// A call that reports or begins something.
    Write,
}

impl CallKind {
    pub fn from_path(path: &str) -> Self {
        match path.rsplit('/').next() {
            _ if !path.starts_with(AGENT_SERVICE_PREFIX) => Self::EimQuery,
            Some("Begin" | "Report" | "Enroll" | "Renew") => Self::Write,
            _ => Self::Query,
        }
    }
}

/// The server is overloaded and refuses a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded {
    /// The delay before the next try.
    pub retry_after: Duration,
}

impl Overloaded {
    /// With a retry delay of about `about`.
    pub fn retry_after(about: Duration) -> Self {
        Self { retry_after: with_jitter(about, rand::random()) }
    }

    /// The gRPC status, with the retry delay.
    pub fn status(self) -> Status {
        let millis = self.retry_after.as_millis();
        let text = format!("the server is overloaded; try again in {millis} ms");
        with_pushback(Status::unavailable(text), self.retry_after)
    }
}

/// Adds a retry delay to a status.
pub fn with_pushback(mut refused: Status, retry_after: Duration) -> Status {
    let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
    let value = MetadataValue::from(millis.max(1));
    refused.metadata_mut().insert(RETRY_PUSHBACK_HEADER, value);
    refused
}

/// The load of this process.
#[derive(Debug)]
pub struct Load {
    settings: LoadSettings,
    /// Calls that were admitted and are not answered yet.
    calls: Arc<PrioritySemaphore>,
    /// Admitted calls that are long polls.
    long_polls: Arc<PrioritySemaphore>,
    /// Admitted calls that wait for their body.
    awaiting_body: ProjectSemaphore<SenderProject>,
    /// The charged bytes of messages that are not processed yet.
    message_bytes: ProjectSemaphore<SenderProject>,
    /// The part of them from connections without an authenticated call.
    unauthenticated_message_bytes: Arc<PrioritySemaphore>,
    /// Calls that use the database or wait for it, except queries of EIM's agents; and the number
    /// of those.
    at_database: ProjectSemaphore<TenantId>,
    eim_at_database: ProjectSemaphore<TenantId>,
    /// Calls that write, and that wait to write.
    writers: ProjectWaitQueue,
    /// Spreads the retries of refused queries.
    retry_queue: RetryQueue,
    /// Database calls since the last sample, successful or not.
    database_turns: AtomicU32,
    /// The number of long polls when the drain began.
    draining_polls: AtomicU64,
    /// Queries in this minute, and in the one before.
    queries_this_minute: AtomicU32,
    queries_last_minute: AtomicU32,
    /// The pressure from 0 to 1 and the interval factor from 1 up, as the bits of an `f64`.
    pressure: AtomicU64,
    interval_factor: AtomicU64,
    /// The last requested interval without pressure, in milliseconds.
    base_interval_millis: AtomicU64,
    metrics: LoadMetrics,
}

#[derive(Debug)]
struct LoadMetrics {
    query: Counter,
    write: Counter,
    awaiting_body: Counter,
    messages: Counter,
    memory: Counter,
    writers: Counter,
    database: Counter,
    pressure: Gauge,
    interval: Gauge,
}

impl LoadMetrics {
    fn new() -> Self {
        const REFUSED_TOTAL: &str = "evenkeel_overload_refused_total";
        let refused = |kind: &'static str| metrics::counter!(REFUSED_TOTAL, "kind" => kind);
        Self {
            query: refused("query"),
            write: refused("write"),
            awaiting_body: refused("awaiting_body"),
            messages: refused("message_memory"),
            memory: refused("memory"),
            writers: refused("writers"),
            database: refused("database"),
            pressure: metrics::gauge!("evenkeel_load_pressure"),
            interval: metrics::gauge!("evenkeel_poll_interval_seconds"),
        }
    }
}

impl Load {
    /// An idle process.
    pub fn new(settings: LoadSettings) -> Self {
        let (max_writers, max_waiting) = (settings.max_writers, settings.max_waiting_writers);
        Self {
            settings,
            calls: Arc::default(),
            long_polls: Arc::default(),
            awaiting_body: ProjectSemaphore::default(),
            message_bytes: ProjectSemaphore::default(),
            unauthenticated_message_bytes: Arc::default(),
            at_database: ProjectSemaphore::default(),
            eim_at_database: ProjectSemaphore::default(),
            writers: ProjectWaitQueue::new(max_writers, max_waiting, WRITE_PERMIT_TIMEOUT),
            retry_queue: RetryQueue::new(),
            database_turns: AtomicU32::new(0),
            draining_polls: AtomicU64::new(0),
            queries_this_minute: AtomicU32::new(0),
            queries_last_minute: AtomicU32::new(0),
            pressure: AtomicU64::new(0.0_f64.to_bits()),
            interval_factor: AtomicU64::new(1.0_f64.to_bits()),
            base_interval_millis: AtomicU64::new(0),
            metrics: LoadMetrics::new(),
        }
    }

    /// Admits a call, or refuses it with a retry delay. The call counts until the guard is dropped.
    pub fn admit(self: &Arc<Self>, kind: CallKind) -> Result<InFlightGuard, Overloaded> {
        if kind != CallKind::Write {
            self.queries_this_minute.fetch_add(1, Ordering::Relaxed);
        }
        let limit = self.call_limit(kind).saturating_add(self.waiting_calls());
        let Some(permit) = self.calls.try_acquire(1, limit) else {
            match kind {
                CallKind::Query | CallKind::EimQuery => self.metrics.query.increment(1),
                CallKind::Write => self.metrics.write.increment(1),
            }
            return Err(self.overloaded(kind));
        };
        Ok(InFlightGuard { load: Arc::clone(self), kind, _permit: permit })
    }

    /// Refuses a call for lack of memory.
    pub fn refuse_for_memory(&self, kind: CallKind) -> Overloaded {
        self.metrics.memory.increment(1);
        self.overloaded(kind)
    }

    /// Marks an admitted call as a long poll while the permit lives: it waits and does not count as
    /// in flight.
    pub fn park(&self) -> UnitPermit {
        self.long_polls.acquire_unlimited()
    }

    /// Marks an admitted call as waiting for its body while the permit lives: it does not count as
    /// in flight. Its received data is in memory, so the number of waiting calls is limited like
    /// the calls in flight, and a project leaves a part of them to others.
    pub fn await_body(
        &self,
        connection: Option<&ConnectionState>,
    ) -> Result<ProjectUnitPermit<SenderProject>, Overloaded> {
        let limits = sender_limits(self.call_limit(CallKind::Write), connection);
        let sender = SenderProject::from_connection(connection);
        self.awaiting_body.try_acquire(sender, 1, limits).ok_or_else(|| {
            self.metrics.awaiting_body.increment(1);
            Overloaded::retry_after(MIN_RETRY_DELAY)
        })
    }

    /// The maximum number of calls in flight when a call of this kind is admitted.
    fn call_limit(&self, kind: CallKind) -> u64 {
        let LoadSettings { query_call_limit, total_call_limit, .. } = self.settings;
        let limit = match kind {
            CallKind::Query | CallKind::EimQuery => query_call_limit,
            CallKind::Write => total_call_limit.max(query_call_limit),
        };
        if query_call_limit == 0 { u64::MAX } else { limit.into() }
    }

    /// The number of admitted calls that do not count as in flight.
    fn waiting_calls(&self) -> u64 {
        self.long_polls.in_use() + self.awaiting_body.in_use()
    }

    /// The number of calls in flight, without long polls and calls that wait for their body.
    fn in_flight(&self) -> u64 {
        self.calls.in_use().saturating_sub(self.waiting_calls())
    }

    /// The poll interval under the current pressure, for nodes that poll every `base` without
    /// pressure.
    pub fn poll_interval(&self, base: Duration) -> Duration {
        let millis = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
        self.base_interval_millis.store(millis, Ordering::Relaxed);
        let interval_factor = f64::from_bits(self.interval_factor.load(Ordering::Relaxed));
        let longer =
            Duration::try_from_secs_f64(base.as_secs_f64() * interval_factor).unwrap_or(base);
        longer.min(self.settings.max_poll_interval).max(base)
    }

    /// The time span over which nodes should reconnect after they lost their connection: long
    /// enough to serve all queries of a minute and all long polls.
    pub fn spread(&self) -> Duration {
        let this = self.queries_this_minute.load(Ordering::Relaxed);
        let queries = this.max(self.queries_last_minute.load(Ordering::Relaxed));
        let draining = self.draining_polls.load(Ordering::Relaxed);
        let all = self.long_polls.in_use().max(draining).saturating_add(queries.into());
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        MIN_SERVICE_TIME.saturating_mul(all).clamp(MIN_RETRY_DELAY, MAX_RETRY_DELAY)
    }

    /// Records the number of long polls that are about to end and reconnect together.
    pub fn note_drain(&self) {
        self.draining_polls.store(self.long_polls.in_use(), Ordering::Relaxed);
    }

    /// Waits until all long polls are answered, up to a time limit.
    pub async fn wait_for_drain(&self) {
        let answered = async {
            while self.long_polls.in_use() > 0 {
                tokio::time::sleep(DRAIN_CHECK_INTERVAL).await;
            }
        };
        // Polls that are not answered by then are abandoned.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, answered).await;
    }

    /// The pressure: 0 is idle, 1 is full load.
    pub fn pressure(&self) -> f64 {
        f64::from_bits(self.pressure.load(Ordering::Relaxed))
    }

    /// Samples the pressure until it is stopped.
    pub async fn watch(self: Arc<Self>, stopping: CancellationToken) {
        let mut last = tokio::time::Instant::now();
        let mut minute = last + MINUTE;
        loop {
            let due = tick::next_tick(self.next_sample_delay());
            tokio::select! {
                () = stopping.cancelled() => return,
                () = sleep_until(due) => {}
            }
            let now = tokio::time::Instant::now();
            self.sample(now - due, now - last);
            last = now;
            if minute <= now {
                let queries = self.queries_this_minute.swap(0, Ordering::Relaxed);
                self.queries_last_minute.store(queries, Ordering::Relaxed);
                minute = now + MINUTE;
            }
        }
    }

    /// The delay until the next sample.
    fn next_sample_delay(&self) -> Duration {
        let interval_factor = f64::from_bits(self.interval_factor.load(Ordering::Relaxed));
        if pressure::is_idle(self.pressure(), interval_factor) {
            IDLE_SAMPLE_INTERVAL
        } else {
            SAMPLE_INTERVAL
        }
    }

    /// Updates pressure and poll interval from the delay of this sample, the calls in flight and
    /// the database calls since the last sample.
    fn sample(&self, late: Duration, since: Duration) {
        let database_turns = self.database_turns.swap(0, Ordering::Relaxed);
        self.retry_queue.record_turns(database_turns, since);
        let query_call_limit = self.settings.query_call_limit;
        let full = [CallKind::Query, CallKind::EimQuery].map(|kind| {
            // One project that is at its limit is full load, if there are no others.
            let (calls, limit) = self.database_limit(kind);
            ratio(calls.in_use(), project_limit(limit.into()))
        });
        let full =
            full.into_iter().fold(ratio(self.in_flight(), query_call_limit.into()), f64::max);
        let strain = strain(late, full);
        let pressure = smooth(self.pressure(), strain);
        self.pressure.store(pressure.to_bits(), Ordering::Relaxed);
        self.metrics.pressure.set(pressure);

        let base = Duration::from_millis(self.base_interval_millis.load(Ordering::Relaxed));
        let max_factor = max_factor(self.settings.max_poll_interval, base);
        let interval_factor = f64::from_bits(self.interval_factor.load(Ordering::Relaxed));
        let interval_factor = adapt_factor(interval_factor, pressure, max_factor);
        self.interval_factor.store(interval_factor.to_bits(), Ordering::Relaxed);
        self.metrics.interval.set(base.as_secs_f64() * interval_factor);
    }

    /// Counts calls that were served by the database. Their rate determines the retry delays.
    pub fn record_database_turns(&self, count: u32) {
        self.database_turns.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a call as using or awaiting the database while the permit lives. Queries may use half
    /// of the call limit: a cached answer costs hardly more than a refusal, and saves a retry.
    /// Queries of EIM's agents have a quarter of their own: each refused one is retried three times
    /// within seconds. A project leaves a part of each limit to others; its calls that write are
    /// limited as well, because those that wait to write count as in flight.
    pub fn admit_to_database(
        &self,
        project: TenantId,
        kind: CallKind,
    ) -> Result<DatabasePermit, Overloaded> {
        let (calls, limit) = self.database_limit(kind);
        let max_of_project = match kind {
            CallKind::Write => self.settings.query_call_limit,
            CallKind::Query | CallKind::EimQuery => limit,
        };
        let max = if kind == CallKind::Write { 0 } else { limit };
        let limits = (max.into(), project_limit(max_of_project.into()));
        calls.try_acquire(project, 1, limits).ok_or_else(|| {
            self.metrics.database.increment(1);
            self.overloaded(kind)
        })
    }

    /// The calls that share a limit with calls of this kind, and the limit for queries; 0 means no
    /// limit.
    fn database_limit(&self, kind: CallKind) -> (&ProjectSemaphore<TenantId>, u32) {
        let query_call_limit = self.settings.query_call_limit;
        match kind {
            CallKind::Query | CallKind::Write => (&self.at_database, query_call_limit.div_ceil(2)),
            CallKind::EimQuery => (&self.eim_at_database, query_call_limit.div_ceil(4)),
        }
    }

    /// Waits for a permit to write.
    pub async fn acquire_write_permit(&self, project: TenantId) -> Result<ProjectPermit, Status> {
        let Some(permit) = self.writers.acquire(project).await else {
            self.metrics.writers.increment(1);
            // The admission layer adds the retry delay.
            return Err(Status::unavailable("too many calls wait to write"));
        };
        self.record_database_turns(1);
        Ok(permit)
    }

    /// Refuses a call because of overload. Queries of EIM's agents are not queued: they ignore the
    /// retry delay and would only block a turn.
    pub fn overloaded(&self, kind: CallKind) -> Overloaded {
        match kind {
            CallKind::Query => Overloaded::retry_after(self.retry_queue.enqueue(Instant::now())),
            CallKind::EimQuery => Overloaded::retry_after(MIN_RETRY_DELAY),
            // Writes are few and served first.
            CallKind::Write => {
                Overloaded::retry_after(MIN_RETRY_DELAY.mul_f64(1.0 + 9.0 * self.pressure()))
            }
        }
    }
}

/// Counts a call as in flight.
#[derive(Debug)]
pub struct InFlightGuard {
    load: Arc<Load>,
    kind: CallKind,
    _permit: UnitPermit,
}

impl InFlightGuard {
    /// The retry delay, if the call is refused later.
    pub fn retry_after(&self) -> Duration {
        self.load.overloaded(self.kind).retry_after
    }
}

/// The part of a limit that a project may use; 0 stays no limit.
fn project_limit(limit: u64) -> u64 {
    let part = max_per_project(usize::try_from(limit).unwrap_or(usize::MAX));
    if limit == 0 { 0 } else { u64::try_from(part).unwrap_or(u64::MAX) }
}

/// The limit of all messages, and that of the messages of the same project. A connection that the
/// server does not track has only the first one.
fn sender_limits(limit: u64, connection: Option<&ConnectionState>) -> (u64, u64) {
    (limit, connection.map_or(0, |_| project_limit(limit)))
}

/// A random duration between half and one and a half of `base`, so that refused callers spread out.
fn with_jitter(base: Duration, noise: u32) -> Duration {
    base / 2 + base.mul_f64(f64::from(noise) / f64::from(u32::MAX))
}
