//! Logs a database outage once when it begins and once when it ends, however many calls and tasks
//! see it.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_kit::chain::chain;
use evenkeel_store::StoreError;
use tonic::{Code, Status};

/// An outage ends with a success after this time without a failure. During an outage some calls may
/// still find a working connection.
const RECOVERY_PERIOD: Duration = Duration::from_secs(10);

/// The current database outage, if there is one.
#[derive(Debug, Default)]
pub struct Outage {
    /// Whether there is an outage. Checked by almost every call, so it is an atomic.
    is_active: AtomicBool,
    episode: Mutex<Option<OutageEpisode>>,
}

#[derive(Clone, Copy, Debug)]
struct OutageEpisode {
    last: Instant,
    count: u64,
}

/// A change of the outage state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageChange {
    Nothing,
    Started,
    Ended { count: u64 },
}

impl Outage {
    /// Records the result of a call.
    pub fn note_call<T>(&self, call: &'static str, answer: &Result<T, Status>) {
        let Err(status) = answer else {
            self.note_success();
            return;
        };
        let Some(error) = status.source() else {
            return;
        };
        match status.code() {
            // The database is available, but a row is locked or a statement took too long.
            Code::Unavailable if is_busy(error) => {
                tracing::warn!(call, error = %chain(error), "a call waited too long for a lock or a statement");
            }
            Code::Unavailable => self.note_failure(call, error),
            Code::Internal => tracing::error!(call, error = %chain(error), "request failed"),
            _ => {}
        }
    }

    /// Records the result of a pass of a periodic task.
    pub fn note_pass<T>(&self, pass: &'static str, result: &Result<T, StoreError>) {
        match result {
            Ok(_) => self.note_success(),
            Err(error @ StoreError::Unreachable(_)) => self.note_failure(pass, error),
            Err(error) => tracing::warn!(pass, error = %chain(error), "a pass failed"),
        }
    }

    fn note_success(&self) {
        if !self.is_active.load(Ordering::Relaxed) {
            return;
        }
        if let OutageChange::Ended { count } = self.update(true, Instant::now()) {
            tracing::info!(failures = count, "the database is available again");
        }
    }

    fn note_failure(&self, source: &'static str, error: &(dyn Error + 'static)) {
        if self.update(false, Instant::now()) == OutageChange::Started {
            tracing::error!(first = source, error = %chain(error), "the database is unreachable or read-only, or does not answer in time");
        }
    }

    fn update(&self, works: bool, now: Instant) -> OutageChange {
        let mut episode = self.episode.lock().unwrap_or_else(PoisonError::into_inner);
        let change = match (&mut *episode, works) {
            (None, true) => OutageChange::Nothing,
            (None, false) => {
                let (last, count) = (now, 1);
                *episode = Some(OutageEpisode { last, count });
                OutageChange::Started
            }
            (Some(current), false) => {
                current.last = now;
                current.count += 1;
                OutageChange::Nothing
            }
            (Some(current), true) if now < current.last + RECOVERY_PERIOD => OutageChange::Nothing,
            (Some(current), true) => {
                let count = current.count;
                *episode = None;
                OutageChange::Ended { count }
            }
        };
        self.is_active.store(episode.is_some(), Ordering::Relaxed);
        change
    }
}

fn is_busy(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Busy(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once_and_its_end_once() {
        let outage = Outage::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outage.update(true, at(0)), OutageChange::Nothing);
        assert_eq!(outage.update(false, at(1)), OutageChange::Started);
        for second in 2..1_000 {
            assert_eq!(outage.update(false, at(second)), OutageChange::Nothing);
            assert_eq!(outage.update(true, at(second)), OutageChange::Nothing, "too early");
        }
        assert!(outage.is_active.load(Ordering::Relaxed));
        assert_eq!(outage.update(true, at(1_020)), OutageChange::Ended { count: 999 });
        assert!(!outage.is_active.load(Ordering::Relaxed));
        assert_eq!(outage.update(true, at(1_021)), OutageChange::Nothing);
        assert_eq!(outage.update(false, at(1_022)), OutageChange::Started);
    }

    #[test]
    fn a_refused_call_is_no_outage() {
        let outage = Outage::default();
        outage.note_call("poll", &Err::<(), _>(Status::not_found("no such host")));
        outage.note_call("poll", &Err::<(), _>(Status::unavailable("the server stops")));
        assert!(!outage.is_active.load(Ordering::Relaxed));
        let mut away = Status::unavailable("the database is unreachable or overloaded; try again");
        away.set_source(std::sync::Arc::new(std::io::Error::other("refused")));
        outage.note_call("poll", &Err::<(), _>(away));
        assert!(outage.is_active.load(Ordering::Relaxed));
    }

    #[test]
    fn a_busy_row_is_no_outage() {
        use evenkeel_store::testing::{busy_error, unreachable_error};
        let outage = Outage::default();
        let refused = crate::status::from_store_error(busy_error());
        outage.note_call("poll", &Err::<(), _>(refused));
        outage.note_pass("run reaper", &Err::<(), _>(busy_error()));
        assert!(!outage.is_active.load(Ordering::Relaxed));
        let refused = crate::status::from_store_error(unreachable_error());
        outage.note_call("poll", &Err::<(), _>(refused));
        assert!(outage.is_active.load(Ordering::Relaxed));
    }
}
