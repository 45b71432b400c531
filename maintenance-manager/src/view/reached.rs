//! How far the log was read, and who waits for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_store::log::Tail;
use tokio::sync::{Notify, watch};

/// How long somebody waits for the log to be read.
const PATIENCE: Duration = Duration::from_millis(250);

/// There is a pass every second at least: if what was read is older than this, somebody who writes does not come to an end,
/// and nobody waits for that.
const HANGS: Duration = Duration::from_millis(1_500);

/// How many passes are remembered whose writers are not all over: while one hangs, those of ten seconds at the least.
const MOST: usize = 1_024;

/// How far the log was read.
#[derive(Debug, Default)]
pub struct Reached {
    /// Whether somebody follows the log, or tries to.
    is_followed: AtomicBool,
    /// Passes that began and did not see the end of all who were writing then, with the first transaction that was not
    /// over by then.
    begun: Mutex<VecDeque<(Instant, u64)>>,
    /// All that was committed before was marked.
    complete: watch::Sender<Option<Instant>>,
    /// When the last pass began that left nothing which could be read.
    read: Mutex<Option<Instant>>,
    /// What is waited for, and until when.
    wanted: Mutex<Option<Wanted>>,
    /// Somebody began to wait.
    asked: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    since: Instant,
    until: Instant,
}

impl Reached {
    /// How long ago all was read that was committed by then.
    pub fn age(&self) -> Option<Duration> {
        let complete = *self.complete.borrow();
        complete.map(|complete| complete.elapsed())
    }

    /// How long ago all was read that could be: what a transaction wrote which is not over cannot. So the age grows while one
    /// hangs, and this does not.
    pub fn lag(&self) -> Option<Duration> {
        let read = *lock(&self.read);
        read.map(|read| read.elapsed())
    }

    /// Somebody follows the log from now on, or nobody does.
    pub fn set_followed(&self, is_followed: bool) {
        self.is_followed.store(is_followed, Ordering::Relaxed);
    }

    /// The changes of a pass that began at an instant were marked.
    pub fn passed(&self, began: Instant, tail: &Tail) {
        let mut passes = lock(&self.begun);
        if passes.len() < MOST {
            passes.push_back((began, tail.xmax));
        }
        if tail.more {
            return;
        }
        *lock(&self.read) = Some(began);
        let mut complete = None;
        while let Some((at, xmax)) = passes.front().copied() {
            if xmax > tail.limit {
                break;
            }
            complete = Some(at);
            passes.pop_front();
        }
        drop(passes);
        if complete.is_some() {
            self.complete.send_replace(complete);
        }
    }

    /// Nobody knows any more what was read.
    pub fn lose(&self) {
        lock(&self.begun).clear();
        *lock(&self.read) = None;
        self.complete.send_replace(None);
    }

    /// Waits until all that was committed before an instant was marked.
    pub async fn fence(&self, since: Instant) -> bool {
        let mut complete = self.complete.subscribe();
        if *complete.borrow() >= Some(since) {
            return true;
        }
        if !self.is_followed.load(Ordering::Relaxed) {
            // Whoever asks again and again lets others begin to follow.
            tokio::task::yield_now().await;
            return false;
        }
        self.want(since);
        if self.age().is_some_and(|age| HANGS < age) {
            tokio::task::yield_now().await;
            return false;
        }
        let reached = complete.wait_for(|complete| *complete >= Some(since));
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.is_ok_and(|reached| reached.is_ok())
    }

    fn want(&self, since: Instant) {
        let until = Instant::now() + PATIENCE;
        let mut wanted = lock(&self.wanted);
        *wanted = Some(Wanted {
            since: wanted.map_or(since, |wanted| wanted.since.max(since)),
            until,
        });
        drop(wanted);
        self.asked.notify_one();
    }

    /// Whether somebody still waits, although a pass was made: a writer was not over.
    pub fn is_waited_for(&self) -> bool {
        let complete = *self.complete.borrow();
        let wanted = *lock(&self.wanted);
        wanted.is_some_and(|wanted| complete < Some(wanted.since) && Instant::now() < wanted.until)
    }

    /// Waits until somebody begins to wait.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(limit: u64, xmax: u64) -> Tail {
        Tail {
            changes: Vec::new(),
            limit,
            xmax,
            more: false,
        }
    }

    fn complete(reached: &Reached) -> Option<Instant> {
        *reached.complete.borrow()
    }

    #[test]
    fn a_writer_that_hangs_ages_the_view_until_it_is_over() {
        let reached = Reached::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(reached.age(), None);
        reached.passed(at(0), &tail(10, 10));
        assert_eq!(complete(&reached), Some(at(0)));
        reached.passed(at(1), &tail(11, 14));
        reached.passed(at(2), &tail(11, 16));
        assert_eq!(complete(&reached), Some(at(0)), "11 is not over");
        assert_eq!(*lock(&reached.read), Some(at(2)), "nothing else is left");
        reached.passed(at(3), &tail(15, 20));
        assert_eq!(complete(&reached), Some(at(1)));
        reached.passed(at(4), &tail(20, 20));
        assert_eq!(complete(&reached), Some(at(4)));
    }

    #[test]
    fn a_pass_that_leaves_something_reaches_nothing() {
        let reached = Reached::default();
        let start = Instant::now();
        let cut = Tail {
            more: true,
            ..tail(10, 10)
        };
        reached.passed(start, &cut);
        assert_eq!((complete(&reached), reached.lag()), (None, None));
        reached.passed(start + Duration::from_millis(1), &tail(10, 10));
        assert_eq!(complete(&reached), Some(start + Duration::from_millis(1)));
    }

    #[test]
    fn however_long_a_writer_hangs_little_is_remembered() {
        let reached = Reached::default();
        let start = Instant::now();
        for n in 0..10_000 {
            reached.passed(start + Duration::from_millis(n), &tail(1, 2));
        }
        assert_eq!(lock(&reached.begun).len(), MOST);
        let end = start + Duration::from_mins(1);
        reached.passed(end, &tail(2, 2));
        assert!(complete(&reached).is_some());
        reached.passed(end, &tail(2, 2));
        assert_eq!(complete(&reached), Some(end));
    }

    #[test]
    fn what_was_lost_is_reached_again_by_the_next_pass() {
        let reached = Reached::default();
        let start = Instant::now();
        reached.passed(start, &tail(10, 10));
        reached.passed(start, &tail(10, 30));
        reached.lose();
        assert_eq!((reached.age(), reached.lag()), (None, None));
        reached.passed(start, &tail(20, 20));
        assert_eq!(complete(&reached), Some(start));
    }

    #[tokio::test]
    async fn nobody_waits_for_what_nobody_follows() {
        let reached = Reached::default();
        assert!(!reached.fence(Instant::now()).await);
        assert!(!reached.is_waited_for());
    }

    #[tokio::test]
    async fn who_waits_is_heard_and_goes_on_when_all_was_read() {
        let reached = Reached::default();
        reached.set_followed(true);
        let since = Instant::now();
        let follower = async {
            reached.asked().await;
            reached.passed(since, &tail(4, 5));
            assert!(reached.is_waited_for(), "one still writes");
            reached.passed(Instant::now(), &tail(5, 5));
            assert!(!reached.is_waited_for());
        };
        let (was_reached, ()) = tokio::join!(reached.fence(since), follower);
        assert!(was_reached);
        assert!(reached.fence(since).await, "nobody needs to ask again");
    }
}
