//! The scheduler's store of jobs. The scheduler asks it every 500 ms which jobs exist, and compares
//! their ticks with the system clock. This store answers only when its job is due by our clock, so
//! an idle scheduler sleeps.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep_until};
use tokio_cron_scheduler::job::job_data::{JobAndNextTick, JobStoredData};
use tokio_cron_scheduler::store::{DataStore, InitStore};
use tokio_cron_scheduler::{JobSchedulerError, MetaDataStorage};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::JobSchedule;
use crate::clock::Clock;
use crate::tick;

/// How long a change of the system clock may go unnoticed.
pub(super) const CLOCK_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Tick of a job that is due, in seconds since 1970. It is in the past of every system clock; 0
/// would delete the job.
const DUE_TICK: i64 = 1;

type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, JobSchedulerError>> + Send>>;

/// The one job of a schedule. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct JobStore {
    schedule: JobSchedule,
    clock: Arc<dyn Clock>,
    job: Arc<Mutex<Option<JobStoredData>>>,
    /// The last occurrence that was signalled, in seconds since 1970.
    last_occurrence: Arc<Mutex<Option<i64>>>,
    stop: CancellationToken,
}

impl JobStore {
    pub fn new(schedule: JobSchedule, clock: Arc<dyn Clock>, stop: CancellationToken) -> Self {
        Self { schedule, clock, job: Arc::default(), last_occurrence: Arc::default(), stop }
    }

    pub fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// The next occurrence after an instant, or the end of the calendar if there is none.
    pub fn next_after(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        let next = self.schedule.next_after(now);
        // After the clock was turned back, the last occurrence may be the next one again.
        let last = *self.lock_last_occurrence();
        let next = match next {
            Some(next) if last == Some(next.timestamp()) => self.schedule.next_after(next),
            next => next,
        };
        next.unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// Records that the last occurrence up to now is signalled. Returns false if it was signalled
    /// before.
    pub fn record_occurrence(&self, now: DateTime<Utc>) -> bool {
        let last = self.schedule.last_until(now).map(|last| last.timestamp());
        let before = std::mem::replace(&mut *self.lock_last_occurrence(), last);
        last.is_none() || last != before
    }

    /// Whether an occurrence after the due one is added.
    pub fn has_next(&self) -> bool {
        let due = DateTime::from_timestamp(DUE_TICK, 0);
        self.lock_job().as_ref().is_some_and(|job| job.next_tick_utc() != due)
    }

    fn lock_last_occurrence(&self) -> MutexGuard<'_, Option<i64>> {
        self.last_occurrence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_job(&self) -> MutexGuard<'_, Option<JobStoredData>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the job is due. Returns an empty list if there is no job or the scheduler is
    /// stopped.
    ///
    /// The scheduler holds a lock on the store until then, so no job can be added meanwhile. The
    /// job adds its next occurrence when it runs. Until then it is due, and each call returns at
    /// once. So the job runs at least once.
    async fn wait_until_due(self) -> Vec<JobAndNextTick> {
        loop {
            let now = self.clock.now();
            let next = match self.lock_job().as_mut() {
                None => return Vec::new(),
                Some(job) => {
                    // After the clock was turned back, the next occurrence is sooner than the one
                    // that was computed.
                    let next = job.next_tick_utc().unwrap_or(now).min(self.next_after(now));
                    if next <= now {
                        // It stays due until it is added again, whatever happens to the clock.
                        job.set_next_tick(DateTime::from_timestamp(DUE_TICK, 0));
                        return vec![JobAndNextTick {
                            id: job.id,
                            job_type: job.job_type,
                            next_tick: DUE_TICK.unsigned_abs(),
                            last_tick: None,
                        }];
                    }
                    job.set_next_tick(Some(next));
                    next
                }
            };
            let clock_check = tick::next_tick(CLOCK_CHECK_INTERVAL);
            let left = (next - now).to_std().ok();
            let next = left.and_then(|left| Instant::now().checked_add(left));
            tokio::select! {
                () = self.stop.cancelled() => return Vec::new(),
                () = sleep_until(next.map_or(clock_check, |next| next.min(clock_check))) => {}
            }
        }
    }
}

impl MetaDataStorage for JobStore {
    fn list_next_ticks(&mut self) -> StoreFuture<Vec<JobAndNextTick>> {
        let store = self.clone();
        Box::pin(async move { Ok(store.wait_until_due().await) })
    }

    /// Does nothing: a job that ran adds its next occurrence itself, perhaps before this call.
    fn set_next_and_last_tick(
        &mut self,
        _guid: Uuid,
        _next_tick: Option<DateTime<Utc>>,
        _last_tick: Option<DateTime<Utc>>,
    ) -> StoreFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn time_till_next_job(&mut self) -> StoreFuture<Option<Duration>> {
        let next = self.lock_job().as_ref().and_then(JobStoredData::next_tick_utc);
        let left = next.and_then(|next| (next - self.clock.now()).to_std().ok());
        Box::pin(std::future::ready(Ok(left)))
    }
}

impl DataStore<JobStoredData> for JobStore {
    fn get(&mut self, _id: Uuid) -> StoreFuture<Option<JobStoredData>> {
        Box::pin(std::future::ready(Ok(self.lock_job().clone())))
    }

    fn add_or_update(&mut self, data: JobStoredData) -> StoreFuture<()> {
        *self.lock_job() = Some(data);
        Box::pin(std::future::ready(Ok(())))
    }

    fn delete(&mut self, _guid: Uuid) -> StoreFuture<()> {
        *self.lock_job() = None;
        Box::pin(std::future::ready(Ok(())))
    }
}

impl InitStore for JobStore {
    fn init(&mut self) -> StoreFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn inited(&mut self) -> StoreFuture<bool> {
        Box::pin(std::future::ready(Ok(true)))
    }
}
