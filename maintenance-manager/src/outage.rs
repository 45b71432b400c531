//! Says once that the database is away, and once that it is back, however many calls and loops notice.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_kit::chain::chain;
use evenkeel_store::StoreError;
use tonic::{Code, Status};

/// After this time without another failure, what works ends an outage: some calls may find a connection while others
/// find none.
const QUIET: Duration = Duration::from_secs(10);

/// The outage that goes on, if one does.
#[derive(Debug, Default)]
pub struct Outage {
    /// Whether one goes on: almost always it does not, and almost every call asks.
    is_on: AtomicBool,
    episode: Mutex<Option<Episode>>,
}

#[derive(Clone, Copy, Debug)]
struct Episode {
    last: Instant,
    count: u64,
}

/// What to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Begun,
    Ended { count: u64 },
}

impl Outage {
    /// Notes how a call ended.
    pub fn note_call<T>(&self, call: &'static str, answer: &Result<T, Status>) {
        let Err(status) = answer else {
            self.note_work();
            return;
        };
        let Some(error) = status.source() else {
            return;
        };
        match status.code() {
            // The database is there: one node is in everybody's way, or a statement took too long.
            Code::Unavailable if is_busy(error) => {
                tracing::warn!(call, error = %chain(error), "a call waited too long for others");
            }
            Code::Unavailable => self.note_failure(call, error),
            Code::Internal => tracing::error!(call, error = %chain(error), "request failed"),
            _ => {}
        }
    }

    /// Notes how a pass of a loop ended.
    pub fn note_pass<T>(&self, pass: &'static str, ended: &Result<T, StoreError>) {
        match ended {
            Ok(_) => self.note_work(),
            Err(error @ StoreError::Unreachable(_)) => self.note_failure(pass, error),
            Err(error) => tracing::warn!(pass, error = %chain(error), "a pass failed"),
        }
    }

    fn note_work(&self) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        if let News::Ended { count } = self.judge(true, Instant::now()) {
            tracing::info!(failures = count, "the database is back");
        }
    }

    fn note_failure(&self, what: &'static str, error: &(dyn Error + 'static)) {
        if self.judge(false, Instant::now()) == News::Begun {
            tracing::error!(first = what, error = %chain(error), "the database is away, or does not answer in time");
        }
    }

    fn judge(&self, works: bool, now: Instant) -> News {
        let mut episode = self.episode.lock().unwrap_or_else(PoisonError::into_inner);
        let news = match (&mut *episode, works) {
            (None, true) => News::Nothing,
            (None, false) => {
                let (last, count) = (now, 1);
                *episode = Some(Episode { last, count });
                News::Begun
            }
            (Some(going_on), false) => {
                going_on.last = now;
                going_on.count += 1;
                News::Nothing
            }
            (Some(going_on), true) if now < going_on.last + QUIET => News::Nothing,
            (Some(going_on), true) => {
                let count = going_on.count;
                *episode = None;
                News::Ended { count }
            }
        };
        self.is_on.store(episode.is_some(), Ordering::Relaxed);
        news
    }
}

fn is_busy(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Busy(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_of_once_and_its_end_once() {
        let outage = Outage::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(outage.judge(true, at(0)), News::Nothing);
        assert_eq!(outage.judge(false, at(1)), News::Begun);
        for second in 2..1_000 {
            assert_eq!(outage.judge(false, at(second)), News::Nothing);
            assert_eq!(outage.judge(true, at(second)), News::Nothing, "not quiet");
        }
        assert!(outage.is_on.load(Ordering::Relaxed));
        assert_eq!(outage.judge(true, at(1_020)), News::Ended { count: 999 });
        assert!(!outage.is_on.load(Ordering::Relaxed));
        assert_eq!(outage.judge(true, at(1_021)), News::Nothing);
        assert_eq!(outage.judge(false, at(1_022)), News::Begun);
    }

    #[test]
    fn a_call_that_was_refused_says_nothing_about_the_database() {
        let outage = Outage::default();
        outage.note_call("poll", &Err::<(), _>(Status::not_found("no such host")));
        outage.note_call(
            "poll",
            &Err::<(), _>(Status::unavailable("the server stops")),
        );
        assert!(!outage.is_on.load(Ordering::Relaxed));
        let mut away = Status::unavailable("the database is away or overloaded; try again");
        away.set_source(std::sync::Arc::new(std::io::Error::other("refused")));
        outage.note_call("poll", &Err::<(), _>(away));
        assert!(outage.is_on.load(Ordering::Relaxed));
    }

    #[test]
    fn a_node_that_is_in_everybodys_way_is_no_outage() {
        use evenkeel_store::testing::{away, busy};
        let outage = Outage::default();
        let refused = crate::status::store(busy());
        outage.note_call("poll", &Err::<(), _>(refused));
        outage.note_pass("tracker", &Err::<(), _>(busy()));
        assert!(!outage.is_on.load(Ordering::Relaxed));
        let refused = crate::status::store(away());
        outage.note_call("poll", &Err::<(), _>(refused));
        assert!(outage.is_on.load(Ordering::Relaxed));
    }
}
