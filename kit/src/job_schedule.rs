//! Job schedules in cron syntax, run by `tokio-cron-scheduler`.
//!
//! The scheduler of that crate requires days to match both day fields, and reads the system clock.
//! So each occurrence is computed here, from our [`Clock`], and added to the scheduler as a
//! one-shot job, which adds the next occurrence when it runs. The job only signals: the work
//! belongs to a task of the [`Lifecycle`](crate::Lifecycle), so that a stop waits for it and a
//! panic in it ends the process.

mod job_store;

use std::ops::RangeInclusive;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, SubsecRound as _, Utc};
use croner::Cron;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_cron_scheduler::job::JobCreator;
use tokio_cron_scheduler::{
    Job, JobScheduler, JobSchedulerError, SimpleJobCode, SimpleNotificationCode,
    SimpleNotificationStore,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use self::job_store::JobStore;
use crate::clock::Clock;

/// The numbers of each field: seconds, minutes, hours, days of the month, months, and days of the
/// week.
const FIELD_NUMBERS: [RangeInclusive<u32>; 6] = [0..=59, 0..=59, 0..=23, 1..=31, 1..=12, 0..=6];

/// Position of the days of the month among the fields.
const DAY_OF_MONTH: usize = 3;

/// Positions of the fields with names, and the names.
const NAMES: [(usize, &[&str]); 2] = [
    (4, &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]),
    (5, &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]),
];

/// How long the scheduler may take to add a job. It only stores it.
const ADD_TIMEOUT: Duration = Duration::from_secs(10);

/// Size of the scheduler's channels. It has one job, so a few messages are under way at a time.
const CHANNEL_SIZE: usize = 16;

/// A schedule in UTC, in the cron dialect of the repeated schedules, with seconds.
///
/// It has six fields: seconds, minutes, hours, days of the month, months, and days of the week (0
/// is Sunday). There is no field for years. A field is `*` or a list, separated by commas, of
/// numbers, ranges (`1-5`) and steps (`*/15`, `8-18/2`); the day of the month may also be `L`, the
/// last of its month. Months and days of the week may be named (`JAN`, `MON-FRI`). If both the day
/// of the month and the day of the week are restricted, a day needs to match only one of them, as in
/// cron; `*` and `*/1` do not restrict.
#[derive(Clone, Debug)]
pub struct JobSchedule(Cron);

/// The text is not a job schedule.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{text}` is not a schedule; write six fields: seconds, minutes, hours, days, months and weekdays, for example `0 30 3 * * *`"
)]
pub struct JobScheduleError {
    text: String,
    source: CronError,
}

/// The scheduler failed. The schedule has no further occurrence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot schedule the next occurrence of a job")]
pub struct SchedulerError(#[from] JobSchedulerError);

impl FromStr for JobSchedule {
    type Err = JobScheduleError;

    fn from_str(text: &str) -> Result<Self, JobScheduleError> {
        parse(text).map(Self).map_err(|source| JobScheduleError { text: text.to_owned(), source })
    }
}

/// Parses a schedule. One without any occurrence, such as 30 February, is an error.
fn parse(text: &str) -> Result<Cron, CronError> {
    let fields = text.split_whitespace().enumerate();
    let fields: Vec<&str> = fields.map(check_field).collect::<Result<_, _>>()?;
    let parser = CronParser::builder()
        .seconds(Seconds::Required)
        .year(Year::Disallowed)
        .dom_and_dow(false)
        .build();
    let cron = parser.parse(&fields.join(" "))?;
    cron.find_next_occurrence(&DateTime::UNIX_EPOCH, true)?;
    Ok(cron)
}

/// Rejects what only croner's dialect has, such as `5L`, `+` and 7 for Sunday. Returns `*` for a
/// field that does not restrict, because croner joins `*/1` like a list of all days.
fn check_field((position, field): (usize, &str)) -> Result<&str, CronError> {
    // croner reports that there are too many fields.
    let Some(numbers) = FIELD_NUMBERS.get(position) else { return Ok(field) };
    let is_allowed =
        |part: &str| is_part(part, position) || (part == "L" && position == DAY_OF_MONTH);
    if field != "*" && !field.split(',').all(is_allowed) {
        let (min, max) = (numbers.start(), numbers.end());
        return Err(CronError::ComponentError(format!(
            "`{field}` is not a list of numbers, ranges and steps from {min} to {max} without \
             leading zeros"
        )));
    }
    let restricts = field.split(',').all(|part| part != "*/1");
    Ok(if restricts { field } else { "*" })
}

/// Whether the text between two commas is a number, a range or a step.
fn is_part(part: &str, position: usize) -> bool {
    let numbers = &FIELD_NUMBERS[position];
    let names = NAMES.iter().find(|(at, _)| *at == position).map_or(&[][..], |(_, names)| names);
    let is_value = |text: &str| {
        parse_number(text).is_some_and(|number| numbers.contains(&number))
            || names.iter().any(|name| name.eq_ignore_ascii_case(text))
    };
    let is_step = |digits: &str| parse_number(digits).is_some_and(|step| step <= *numbers.end());
    let is_range =
        |range: &str| range.split_once('-').is_some_and(|(a, b)| is_value(a) && is_value(b));
    match part.split_once('/') {
        None => is_value(part) || is_range(part),
        Some((range, step)) => (range == "*" || is_range(range)) && is_step(step),
    }
}

/// Parses a number without a sign and without leading zeros.
fn parse_number(digits: &str) -> Option<u32> {
    let is_plain = digits == "0" || !digits.starts_with(['0', '+']);
    is_plain.then(|| digits.parse().ok()).flatten()
}

impl JobSchedule {
    /// Starts a scheduler for the occurrences from now on. Call it in a tokio runtime.
    ///
    /// # Errors
    /// The scheduler cannot be started.
    pub async fn start(self, clock: Arc<dyn Clock>) -> Result<Occurrences, SchedulerError> {
        let stop = CancellationToken::new();
        let store = JobStore::new(self, clock, stop.clone());
        let scheduler = scheduler(&store).await?;
        let (sender, due) = mpsc::channel(1);
        let now = store.now();
        let job = ScheduledJob { id: Uuid::new_v4(), store, due: sender };
        job.add_next(scheduler.clone(), now).await?;
        scheduler.start().await?;
        let is_shut_down = Arc::clone(&scheduler.scheduler.read().await.shutdown);
        Ok(Occurrences { due, is_shut_down, _stop: stop.drop_guard() })
    }

    /// The first occurrence after an instant; `None` if there is none.
    fn next_after(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.0.find_next_occurrence(&now, false).ok()
    }

    /// The last occurrence up to an instant; `None` if there is none.
    fn last_until(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.0.find_previous_occurrence(&now.trunc_subsecs(0), true).ok()
    }
}

/// A scheduler with this store that does not run yet.
async fn scheduler(store: &JobStore) -> Result<JobScheduler, JobSchedulerError> {
    let mut scheduler = JobScheduler::new_with_storage_and_code(
        Box::new(store.clone()),
        Box::<SimpleNotificationStore>::default(),
        Box::<SimpleJobCode>::default(),
        Box::<SimpleNotificationCode>::default(),
        CHANNEL_SIZE,
    )
    .await?;
    scheduler.init().await?;
    Ok(scheduler)
}

/// The job of a schedule, which is added again for each occurrence.
#[derive(Clone, Debug)]
struct ScheduledJob {
    id: Uuid,
    store: JobStore,
    due: mpsc::Sender<Result<(), SchedulerError>>,
}

type JobFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl ScheduledJob {
    /// Adds the next occurrence after `now` to the scheduler, in place of the previous one.
    fn add_next(
        self,
        scheduler: JobScheduler,
        now: DateTime<Utc>,
    ) -> JobFuture<Result<(), JobSchedulerError>> {
        Box::pin(async move {
            let (id, next, store) = (self.id, self.store.next_after(now), self.store.clone());
            let run =
                move |_, scheduler| -> JobFuture<()> { Box::pin(self.clone().run(scheduler)) };
            // The crate reads the system clock to turn this duration into a tick, which is replaced
            // by ours.
            let mut job = Job::new_one_shot_async(Duration::ZERO, run)?;
            let mut data = job.job_data()?;
            data.id = Some(id.into());
            data.set_next_tick(Some(next));
            job.set_job_data(data)?;
            // The same as `JobScheduler::add`, without its log messages.
            match timeout(ADD_TIMEOUT, JobCreator::add(&scheduler.context, job)).await {
                Ok(added) => added.map(drop),
                // Another run of this occurrence has added the next one, and the scheduler now
                // waits for it.
                Err(_) if store.has_next() => Ok(()),
                Err(_) => Err(JobSchedulerError::CantAdd),
            }
        })
    }

    async fn run(self, scheduler: JobScheduler) {
        let due = self.due.clone();
        // The time is read once, so that no occurrence lies between the recorded and the next one.
        let now = self.store.now();
        let is_new = self.store.record_occurrence(now);
        // The scheduler repeats a job that did not run within its tick. If the job has run since,
        // the scheduler waits for the next occurrence and accepts no job until then.
        if !is_new && self.store.has_next() {
            return;
        }
        match self.add_next(scheduler, now).await {
            // If the channel is full, no caller has waited for the previous occurrence yet: the two
            // collapse into one.
            Ok(()) if is_new => drop(due.try_send(Ok(()))),
            Ok(()) => {}
            Err(error) => drop(due.send(Err(error.into())).await),
        }
    }
}

/// The occurrences of a job schedule. Dropping them stops the scheduler.
#[derive(Debug)]
pub struct Occurrences {
    due: mpsc::Receiver<Result<(), SchedulerError>>,
    is_shut_down: Arc<AtomicBool>,
    _stop: DropGuard,
}

impl Occurrences {
    /// Waits for the next occurrence. Missed occurrences collapse into one. Cancel-safe: dropping
    /// the future loses nothing.
    ///
    /// # Errors
    /// The scheduler failed.
    pub async fn wait_next(&mut self) -> Result<(), SchedulerError> {
        let due = self.due.recv().await;
        due.unwrap_or_else(|| Err(JobSchedulerError::Shutdown.into()))
    }
}

impl Drop for Occurrences {
    fn drop(&mut self) {
        self.is_shut_down.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use chrono::{TimeDelta, TimeZone as _};
    use tokio::time::{Instant, advance};
    use tokio_cron_scheduler::MetaDataStorage as _;
    use tokio_cron_scheduler::store::DataStore as _;

    use super::job_store::CLOCK_CHECK_INTERVAL;
    use super::*;
    use crate::clock::TestClock;

    /// The scheduler looks at its jobs no later than this after it started or a job ran.
    const SCHEDULER_TICK: Duration = Duration::from_millis(501);

    /// 12:00 on Friday, 15 January 2027.
    fn noon() -> DateTime<Utc> {
        let noon = Utc.with_ymd_and_hms(2027, 1, 15, 12, 0, 0);
        noon.single().expect("a time")
    }

    fn schedule(text: &str) -> JobSchedule {
        text.parse().expect("a schedule")
    }

    async fn occurrences(text: &str) -> (Occurrences, TestClock) {
        let clock = TestClock::new(noon());
        let started = schedule(text).start(Arc::new(clock.clone())).await;
        (started.expect("a scheduler"), clock)
    }

    /// Whether the schedule is due after this time has passed, on the test clock and on the
    /// runtime's.
    async fn occurs_after(occurrences: &mut Occurrences, clock: &TestClock, seconds: u32) -> bool {
        clock.advance(TimeDelta::seconds(seconds.into()));
        advance(Duration::from_secs(seconds.into())).await;
        let due = timeout(SCHEDULER_TICK, occurrences.wait_next()).await;
        due.is_ok_and(|due| {
            due.expect("the scheduler works");
            true
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_occurrence_is_due_at_its_time_and_not_before() {
        let (mut quarter, clock) = occurrences("30 */15 * * * *").await;
        assert!(!occurs_after(&mut quarter, &clock, 29).await);
        assert!(occurs_after(&mut quarter, &clock, 1).await);
        assert!(!occurs_after(&mut quarter, &clock, 15 * 60 - 1).await);
        assert!(occurs_after(&mut quarter, &clock, 1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn missed_occurrences_collapse_into_one() {
        let (mut hourly, clock) = occurrences("0 0 * * * *").await;
        assert!(occurs_after(&mut hourly, &clock, 5 * 3_600 + 60).await);
        assert!(!occurs_after(&mut hourly, &clock, 0).await);
        assert!(occurs_after(&mut hourly, &clock, 3_540).await);
    }

    #[tokio::test(start_paused = true)]
    async fn occurrences_missed_without_a_waiter_collapse_into_one() {
        let (mut hourly, clock) = occurrences("0 0 * * * *").await;
        for _ in 0..3 {
            clock.advance(TimeDelta::hours(1));
            tokio::time::sleep(CLOCK_CHECK_INTERVAL).await;
        }
        assert!(occurs_after(&mut hourly, &clock, 0).await);
        assert!(!occurs_after(&mut hourly, &clock, 3_599).await);
        assert!(occurs_after(&mut hourly, &clock, 1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_is_noticed_within_a_minute() {
        let (mut hourly, clock) = occurrences("0 0 * * * *").await;
        {
            let mut waits = Box::pin(timeout(CLOCK_CHECK_INTERVAL * 2, hourly.wait_next()));
            let now = timeout(SCHEDULER_TICK, &mut waits).await;
            assert!(now.is_err(), "it is not due");
            clock.advance(TimeDelta::minutes(61));
            let begun = Instant::now();
            assert!(matches!(waits.await, Ok(Ok(()))), "forward");
            assert!(begun.elapsed() <= CLOCK_CHECK_INTERVAL);
        }
        clock.set(noon() - TimeDelta::days(300));
        assert!(!occurs_after(&mut hourly, &clock, 60).await);
        assert!(occurs_after(&mut hourly, &clock, 3_540).await, "and back");
    }

    #[tokio::test(start_paused = true)]
    async fn an_occurrence_is_due_once_although_the_clock_is_turned_back() {
        let (mut hourly, clock) = occurrences("0 0 * * * *").await;
        assert!(occurs_after(&mut hourly, &clock, 5 * 3_600 + 60).await);
        clock.set(noon() + TimeDelta::minutes(5 * 60 - 1));
        assert!(!occurs_after(&mut hourly, &clock, 60).await, "the same occurrence");
        assert!(!occurs_after(&mut hourly, &clock, 3_599).await);
        assert!(occurs_after(&mut hourly, &clock, 1).await);
    }

    type DueReceiver = mpsc::Receiver<Result<(), SchedulerError>>;

    fn job_with_due(text: &str, clock: impl Clock + 'static) -> (ScheduledJob, DueReceiver) {
        let (sender, due) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let store = JobStore::new(schedule(text), Arc::new(clock), stop);
        (ScheduledJob { id: Uuid::new_v4(), store, due: sender }, due)
    }

    fn job(text: &str, clock: &TestClock) -> ScheduledJob {
        job_with_due(text, clock.clone()).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_stuck_scheduler_is_an_error() {
        let job = job("0 0 * * * *", &TestClock::new(noon()));
        let scheduler = scheduler(&job.store).await.expect("a scheduler");
        let store = Arc::clone(&scheduler.context.metadata_storage);
        let locked = store.write().await;
        let stuck = job.clone().add_next(scheduler.clone(), noon()).await;
        assert!(matches!(stuck, Err(JobSchedulerError::CantAdd)), "{stuck:?}");
        drop(locked);
        job.add_next(scheduler, noon()).await.expect("it works again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_run_does_not_fail_while_the_scheduler_waits_for_the_next_occurrence() {
        let (job, mut due) = job_with_due("0 0 * * * *", TestClock::new(noon()));
        let scheduler = scheduler(&job.store).await.expect("a scheduler");
        job.clone().run(scheduler.clone()).await;
        assert!(matches!(due.try_recv(), Ok(Ok(()))));
        let mut locked = Arc::clone(&scheduler.context.metadata_storage).write_owned().await;
        let waits =
            crate::Lifecycle::detach(async move { locked.list_next_ticks().await.map(drop) });

        job.clone().run(scheduler.clone()).await;
        assert!(due.try_recv().is_err(), "it is signalled once");
        // A run that had begun to add before the scheduler took the lock.
        job.add_next(scheduler, noon()).await.expect("the next occurrence is added");
        assert!(!waits.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn no_occurrence_is_lost_if_it_comes_while_the_job_runs() {
        let clock = CountingClock { reads: AtomicI32::new(0), step: TimeDelta::seconds(1) };
        let (mut job, _due) = job_with_due("1 0 * * * *", clock);
        let scheduler = scheduler(&job.store).await.expect("a scheduler");
        job.clone().run(scheduler).await;
        let added = job.store.get(job.id).await.expect("the store works").expect("a job");
        assert_eq!(added.next_tick_utc(), Some(noon() + TimeDelta::seconds(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_turned_back_before_a_due_job_runs_does_not_block_the_scheduler() {
        let clock = TestClock::new(noon());
        let mut job = job("0 0 * * * *", &clock);
        let scheduler = scheduler(&job.store).await.expect("a scheduler");
        job.clone().add_next(scheduler, noon()).await.expect("it is added");
        clock.advance(TimeDelta::hours(1));
        let due = async |store: &mut JobStore| {
            let due = timeout(Duration::from_secs(1), store.list_next_ticks()).await;
            due.expect("it does not wait").expect("a list").len()
        };
        assert_eq!(due(&mut job.store).await, 1);
        clock.set(noon());
        assert_eq!(due(&mut job.store).await, 1);
    }

    /// Counts how often the time is read, as a measure of wake-ups. Each read advances the clock by
    /// a step.
    #[derive(Debug)]
    struct CountingClock {
        reads: AtomicI32,
        step: TimeDelta,
    }

    impl Clock for CountingClock {
        fn now(&self) -> DateTime<Utc> {
            noon() + self.step * self.reads.fetch_add(1, Ordering::Relaxed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_scheduler_wakes_once_a_minute_and_a_stopped_one_never() {
        let clock = CountingClock { reads: AtomicI32::new(0), step: TimeDelta::zero() };
        let clock = Arc::new(clock);
        let started = schedule("0 0 0 1 1 *").start(clock.clone()).await;
        let yearly = started.expect("a scheduler");
        tokio::time::sleep(Duration::from_hours(1)).await;
        let wakes = clock.reads.load(Ordering::Relaxed);
        assert!((60..=63).contains(&wakes), "{wakes} wake-ups in an hour");

        drop(yearly);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(clock.reads.load(Ordering::Relaxed), wakes);
    }

    #[test]
    fn a_day_needs_to_match_one_of_two_restricted_day_fields() {
        let days = |text: &str| {
            let (schedule, mut now) = (schedule(text), noon());
            let next = std::iter::from_fn(|| {
                now = schedule.next_after(now)?;
                Some(now.format("%d.%m.").to_string())
            });
            next.take(3).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(days("0 0 0 20 * 1"), "18.01. 20.01. 25.01.");
        assert_eq!(days("0 0 0 20 * *"), "20.01. 20.02. 20.03.");
        assert_eq!(days("0 0 0 * * 1"), "18.01. 25.01. 01.02.");
        assert_eq!(days("0 0 0 */1 * 1"), days("0 0 0 * * 1"));
        assert_eq!(days("0 0 0 L * *"), "31.01. 28.02. 31.03.");
        assert_eq!(days("0 0 0 30 2 1"), "01.02. 08.02. 15.02.");
    }

    #[test]
    fn months_and_weekdays_may_be_named() {
        let next = |text: &str| schedule(text).next_after(noon());
        assert_eq!(next("0 0 0 * FEB,apr mon-FRI"), next("0 0 0 * 2,4 1-5"));
        assert!(next("0 0 0 * * SUN").is_some_and(|at| at.format("%a").to_string() == "Sun"));
    }

    #[test]
    fn an_invalid_schedule_is_rejected() {
        let never = "0 0 0 30 2 *";
        let years = "0 0 0 1 1 * 2030";
        let only_croner = ["0 0 0 * * +1", "0 0 0 * * 5L", "0 0 0 * * MON#1", "@daily"];
        let misplaced = ["0 0 0 MON * *", "0 0 0 * MON *", "0 0 0 * * JAN", "0 0 0 * L *"];
        let malformed = ["every now and then", "", "0 7 * * *", "61 * * * * *"];
        let weekdays = ["0 0 0 * * 7", "0 0 0 * * 5-7", "0 0 0 * * */7"];
        let numbers = ["0 01 * * * *", "0 1-05 * * * *", "0 */07 * * * *", "0 */60 * * * *"];
        let parts = ["0 1,,2 * * * *", "0 5, * * * *", "0 ,5 * * * *", "0 5/10 * * * *"];
        let ranges = ["0 *,5 * * * *", "0 5-1 * * * *", "0 */0 * * * *", "0 0 0 L-3 * *"];
        let dialect = [weekdays.as_slice(), &numbers, &parts, &ranges, &misplaced].concat();
        let malformed = only_croner.into_iter().chain(malformed).chain([never, years]);
        for text in malformed.chain(dialect) {
            let refused = text.parse::<JobSchedule>().expect_err(text);
            assert!(refused.to_string().contains(text));
        }
        for text in ["0 23 */6 * * *", "*/59 0,59 8-18/2 1,L */12 0-6", "0 0 0 */31 1-12 6,0"] {
            assert!(text.parse::<JobSchedule>().is_ok(), "{text}");
        }
    }
}
