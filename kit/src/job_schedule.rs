//! Job schedules in cron syntax. Between two occurrences nothing runs, except a check once a minute whether the clock was
//! set.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use croner::Cron;
use croner::parser::{CronParser, Seconds};
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::tick;

/// How long a change of the system clock may go unnoticed.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// A schedule of seconds, minutes, hours, days, months and weekdays, in UTC. A day matches only if both its day of the month
/// and its weekday match.
#[derive(Clone, Debug)]
pub struct JobSchedule(Cron);

/// The text is not a job schedule.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is not a schedule; write seconds, minutes, hours, days, months and weekdays")]
pub struct JobScheduleError {
    text: String,
    source: croner::errors::CronError,
}

impl FromStr for JobSchedule {
    type Err = JobScheduleError;

    fn from_str(text: &str) -> Result<Self, JobScheduleError> {
        let parser = CronParser::builder()
            .seconds(Seconds::Required)
            .dom_and_dow(true)
            .build();
        // A schedule without any occurrence, such as 30 February, is an error.
        let schedule = parser.parse(text).and_then(|cron| {
            cron.find_next_occurrence(&DateTime::UNIX_EPOCH, true)?;
            Ok(Self(cron))
        });
        schedule.map_err(|source| JobScheduleError {
            text: text.to_owned(),
            source,
        })
    }
}

impl JobSchedule {
    /// The occurrences of the schedule from now on.
    #[must_use]
    pub fn occurrences(self, clock: Arc<dyn Clock>) -> Occurrences {
        let next = self.next_after(clock.now());
        Occurrences {
            schedule: self,
            clock,
            next,
        }
    }

    /// The first occurrence after an instant; `None` if there is none.
    fn next_after(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.0.find_next_occurrence(&now, false).ok()
    }
}

/// The occurrences of a job schedule.
#[derive(Debug)]
pub struct Occurrences {
    schedule: JobSchedule,
    clock: Arc<dyn Clock>,
    next: Option<DateTime<Utc>>,
}

impl Occurrences {
    /// Waits for the next occurrence. Missed occurrences collapse into one. Cancel-safe: dropping the future loses nothing.
    pub async fn wait_next(&mut self) {
        loop {
            let now = self.clock.now();
            let after = self.schedule.next_after(now);
            let is_due = self.next.is_some_and(|next| next <= now);
            // After the clock was turned back, the next occurrence is sooner than the one that was computed.
            let is_sooner = after.is_some_and(|after| self.next.is_none_or(|next| after < next));
            if is_due || is_sooner {
                self.next = after;
            }
            if is_due {
                return;
            }
            let left = self.next.and_then(|next| (next - now).to_std().ok());
            let clock_check = tick::next_tick(CLOCK_CHECK_INTERVAL);
            let next = left.and_then(|left| Instant::now().checked_add(left));
            sleep_until(next.map_or(clock_check, |next| next.min(clock_check))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::{TimeDelta, TimeZone as _};
    use tokio::time::advance;

    use super::*;
    use crate::clock::TestClock;

    fn noon() -> DateTime<Utc> {
        let noon = Utc.with_ymd_and_hms(2027, 1, 15, 12, 0, 0);
        noon.single().expect("a time")
    }

    fn occurrences(text: &str) -> (Occurrences, TestClock) {
        let clock = TestClock::new(noon());
        let schedule: JobSchedule = text.parse().expect("a schedule");
        (schedule.occurrences(Arc::new(clock.clone())), clock)
    }

    /// Whether the schedule is due after this time has passed, on the test clock and on the runtime's.
    async fn occurs_after(occurrences: &mut Occurrences, clock: &TestClock, seconds: u32) -> bool {
        clock.advance(TimeDelta::seconds(seconds.into()));
        advance(Duration::from_secs(seconds.into())).await;
        let now = tokio::time::timeout(Duration::ZERO, occurrences.wait_next());
        now.await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn an_occurrence_is_due_at_its_time_and_not_before() {
        let (mut quarter, clock) = occurrences("30 */15 * * * *");
        assert!(!occurs_after(&mut quarter, &clock, 29).await);
        assert!(occurs_after(&mut quarter, &clock, 1).await);
        assert!(!occurs_after(&mut quarter, &clock, 15 * 60 - 1).await);
        assert!(occurs_after(&mut quarter, &clock, 1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn missed_occurrences_collapse_into_one() {
        let (mut hourly, clock) = occurrences("0 0 * * * *");
        assert!(occurs_after(&mut hourly, &clock, 5 * 3_600 + 60).await);
        assert!(!occurs_after(&mut hourly, &clock, 0).await);
        assert!(occurs_after(&mut hourly, &clock, 3_540).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_is_noticed_within_a_minute() {
        let (mut hourly, clock) = occurrences("0 0 * * * *");
        {
            let mut waits = Box::pin(tokio::time::timeout(
                CLOCK_CHECK_INTERVAL * 2,
                hourly.wait_next(),
            ));
            let now = tokio::time::timeout(Duration::ZERO, &mut waits).await;
            assert!(now.is_err(), "it is not due");
            clock.advance(TimeDelta::minutes(61));
            let begun = Instant::now();
            assert!(matches!(waits.await, Ok(())), "forward");
            assert!(begun.elapsed() <= CLOCK_CHECK_INTERVAL);
        }
        clock.set(noon() - TimeDelta::days(300));
        assert!(!occurs_after(&mut hourly, &clock, 60).await);
        assert!(occurs_after(&mut hourly, &clock, 3_540).await, "and back");
    }

    #[test]
    fn an_invalid_schedule_is_rejected() {
        let never = "0 0 0 30 2 *";
        for text in ["every now and then", "", "0 7 * * *", "61 * * * * *", never] {
            let refused = text.parse::<JobSchedule>().expect_err(text);
            assert!(refused.to_string().contains(text));
        }
        assert!("0 23 */6 * * *".parse::<JobSchedule>().is_ok());
    }
}
