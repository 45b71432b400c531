//! The only access to the current time.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};

/// Returns the current time. Everything that needs the current time takes a `Clock`.
pub trait Clock: Debug + Send + Sync {
    /// The current time.
    fn now(&self) -> DateTime<Utc>;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the only access to the system clock")]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

/// A clock that moves only when a test moves it. Clones share the same time.
#[derive(Clone, Debug)]
pub struct TestClock {
    now: Arc<Mutex<DateTime<Utc>>>,
}

impl TestClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: DateTime<Utc>) -> Self {
        Self { now: Arc::new(Mutex::new(now)) }
    }

    /// Moves the clock, also backwards if `by` is negative. It stops at the ends of the calendar.
    pub fn advance(&self, by: TimeDelta) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let end = if by < TimeDelta::zero() {
            DateTime::<Utc>::MIN_UTC
        } else {
            DateTime::<Utc>::MAX_UTC
        };
        *now = now.checked_add_signed(by).unwrap_or(end);
    }

    /// Sets the clock to `now`.
    pub fn set(&self, now: DateTime<Utc>) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl Clock for TestClock {
    fn now(&self) -> DateTime<Utc> {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_only_when_the_test_advances_it() {
        let clock = TestClock::new(DateTime::UNIX_EPOCH);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        assert_eq!(shared.now(), DateTime::UNIX_EPOCH);

        clock.advance(TimeDelta::hours(2));
        assert_eq!(shared.now(), DateTime::UNIX_EPOCH + TimeDelta::hours(2));

        clock.advance(TimeDelta::hours(-3));
        assert_eq!(shared.now(), DateTime::UNIX_EPOCH - TimeDelta::hours(1));

        clock.set(DateTime::UNIX_EPOCH);
        assert_eq!(shared.now(), DateTime::UNIX_EPOCH);
    }

    #[test]
    fn a_clock_stops_at_the_ends_of_the_calendar() {
        let clock = TestClock::new(DateTime::UNIX_EPOCH);
        clock.advance(TimeDelta::MAX);
        assert_eq!(clock.now(), DateTime::<Utc>::MAX_UTC);
        clock.set(DateTime::UNIX_EPOCH);
        clock.advance(TimeDelta::MIN);
        assert_eq!(clock.now(), DateTime::<Utc>::MIN_UTC);
    }

    #[test]
    fn the_system_clock_does_not_run_backwards_between_two_reads() {
        let before = SystemClock.now();
        assert!(SystemClock.now() >= before);
    }
}
