//! Work that is due by a calendar, as in cron. Between two strikes nothing runs, but for a look a minute at a clock that may
//! have been set.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use croner::Cron;
use croner::parser::{CronParser, Seconds};
use tokio::time::{Instant, sleep_until};

use crate::beat;
use crate::clock::Clock;

/// How long a clock that was set may go unnoticed.
const LOOK: Duration = Duration::from_mins(1);

/// Seconds, minutes, hours, days, months and weekdays in UTC. A day counts that both its number and its weekday name.
#[derive(Clone, Debug)]
pub struct Calendar(Cron);

/// A text that is no calendar.
#[derive(Debug, thiserror::Error)]
#[error("`{text}` is no calendar of seconds, minutes, hours, days, months and weekdays")]
pub struct BadCalendar {
    text: String,
    source: croner::errors::CronError,
}

impl FromStr for Calendar {
    type Err = BadCalendar;

    fn from_str(text: &str) -> Result<Self, BadCalendar> {
        let parser = CronParser::builder()
            .seconds(Seconds::Required)
            .dom_and_dow(true)
            .build();
        // One that never strikes, such as that of a 30th of February, is a mistake.
        let kept = parser.parse(text).and_then(|cron| {
            cron.find_next_occurrence(&DateTime::UNIX_EPOCH, true)?;
            Ok(Self(cron))
        });
        kept.map_err(|source| BadCalendar {
            text: text.to_owned(),
            source,
        })
    }
}

impl Calendar {
    /// Its strikes from now on.
    #[must_use]
    pub fn strikes(self, clock: Arc<dyn Clock>) -> Strikes {
        let next = self.after(clock.now());
        Strikes {
            calendar: self,
            clock,
            next,
        }
    }

    /// When it strikes next; none if it never does.
    fn after(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.0.find_next_occurrence(&now, false).ok()
    }
}

/// The strikes of a calendar, one after the other.
#[derive(Debug)]
pub struct Strikes {
    calendar: Calendar,
    clock: Arc<dyn Clock>,
    next: Option<DateTime<Utc>>,
}

impl Strikes {
    /// Waits for the next strike. Those that nobody waited for are one. Nothing is lost if the wait is given up.
    pub async fn strike(&mut self) {
        loop {
            let now = self.clock.now();
            let after = self.calendar.after(now);
            let is_due = self.next.is_some_and(|next| next <= now);
            // A clock that was turned back keeps nobody waiting.
            let is_sooner = after.is_some_and(|after| self.next.is_none_or(|next| after < next));
            if is_due || is_sooner {
                self.next = after;
            }
            if is_due {
                return;
            }
            let left = self.next.and_then(|next| (next - now).to_std().ok());
            let look = beat::next(LOOK);
            let next = left.and_then(|left| Instant::now().checked_add(left));
            sleep_until(next.map_or(look, |next| next.min(look))).await;
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

    fn strikes(text: &str) -> (Strikes, TestClock) {
        let clock = TestClock::new(noon());
        let calendar: Calendar = text.parse().expect("a calendar");
        (calendar.strikes(Arc::new(clock.clone())), clock)
    }

    /// Whether it strikes once this time has passed, on the clock and in truth.
    async fn strikes_in(strikes: &mut Strikes, clock: &TestClock, seconds: u32) -> bool {
        clock.advance(TimeDelta::seconds(seconds.into()));
        advance(Duration::from_secs(seconds.into())).await;
        let now = tokio::time::timeout(Duration::ZERO, strikes.strike());
        now.await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn it_strikes_when_it_says_and_not_before() {
        let (mut quarter, clock) = strikes("30 */15 * * * *");
        assert!(!strikes_in(&mut quarter, &clock, 29).await);
        assert!(strikes_in(&mut quarter, &clock, 1).await);
        assert!(!strikes_in(&mut quarter, &clock, 15 * 60 - 1).await);
        assert!(strikes_in(&mut quarter, &clock, 1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_busy_meanwhile_hears_one_strike() {
        let (mut hourly, clock) = strikes("0 0 * * * *");
        assert!(strikes_in(&mut hourly, &clock, 5 * 3_600 + 60).await);
        assert!(!strikes_in(&mut hourly, &clock, 0).await);
        assert!(strikes_in(&mut hourly, &clock, 3_540).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_is_noticed_within_a_minute() {
        let (mut hourly, clock) = strikes("0 0 * * * *");
        {
            let mut waits = Box::pin(tokio::time::timeout(LOOK * 2, hourly.strike()));
            let now = tokio::time::timeout(Duration::ZERO, &mut waits).await;
            assert!(now.is_err(), "it is not due");
            clock.advance(TimeDelta::minutes(61));
            let begun = Instant::now();
            assert!(matches!(waits.await, Ok(())), "forward");
            assert!(begun.elapsed() <= LOOK);
        }
        clock.set(noon() - TimeDelta::days(300));
        assert!(!strikes_in(&mut hourly, &clock, 60).await);
        assert!(strikes_in(&mut hourly, &clock, 3_540).await, "and back");
    }

    #[test]
    fn what_is_no_calendar_is_refused() {
        let never = "0 0 0 30 2 *";
        for text in ["every now and then", "", "0 7 * * *", "61 * * * * *", never] {
            let refused = text.parse::<Calendar>().expect_err(text);
            assert!(refused.to_string().contains(text));
        }
        assert!("0 23 */6 * * *".parse::<Calendar>().is_ok());
    }
}
