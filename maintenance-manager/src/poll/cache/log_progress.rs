//! How far the change log was read, and who waits for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_store::log::Tail;
use tokio::sync::{Notify, watch};

/// How long a fence waits for the log to be read.
const FENCE_TIMEOUT: Duration = Duration::from_millis(250);

/// A pass runs at least once a second. If the last complete read is older than this, a writing
/// transaction hangs, and a fence does not wait for it.
const STALLED_AGE: Duration = Duration::from_millis(1_500);

/// How long a heartbeat proves that the follower sees changes. Afterwards the age of what was read grows,
/// although passes succeed.
const HEARTBEAT_TTL: Duration = Duration::from_secs(6);

/// The maximum number of passes that are stored while their writers are not finished. While a
/// writer hangs, this is at least ten seconds of passes.
const MAX_OPEN_PASSES: usize = 1_024;

/// How far the change log was read.
#[derive(Debug, Default)]
pub struct LogProgress {
    /// Whether the change log is being followed.
    is_followed: AtomicBool,
    /// Passes whose concurrent writers were not all finished, with the first transaction that was
    /// not yet assigned.
    open_passes: Mutex<VecDeque<(Instant, u64)>>,
    /// All commits before this instant are applied.
    complete_until: watch::Sender<Option<Instant>>,
    /// The instant of the last heartbeat that a pass has seen.
    heartbeat_at: Mutex<Option<Instant>>,
    /// The start of the last pass that read everything that was readable.
    last_read: Mutex<Option<Instant>>,
    /// The instant that fences wait for, and until when.
    fence_request: Mutex<Option<FenceRequest>>,
    /// Notified when a fence begins to wait.
    fence_requested: Notify,
}

#[derive(Clone, Copy, Debug)]
struct FenceRequest {
    since: Instant,
    until: Instant,
}

impl LogProgress {
    /// The time since the instant whose earlier commits are all applied, or since the last heartbeat
    /// has expired.
    pub fn age(&self) -> Option<Duration> {
        let complete = (*self.complete_until.borrow())?;
        let heartbeat = (*lock(&self.heartbeat_at))?;
        Some(complete.elapsed().max(heartbeat.elapsed().saturating_sub(HEARTBEAT_TTL)))
    }

    /// The time since everything readable was read. Rows of an unfinished transaction are not
    /// readable, so a hanging writer increases the age but not the lag.
    pub fn lag(&self) -> Option<Duration> {
        let read = *lock(&self.last_read);
        read.map(|read| read.elapsed())
    }

    /// Sets whether the change log is being followed.
    pub fn set_followed(&self, is_followed: bool) {
        self.is_followed.store(is_followed, Ordering::Relaxed);
    }

    /// Records that the changes of a pass were applied. `began` is the start of the pass.
    pub fn record_pass(&self, began: Instant, tail: &Tail) {
        if tail.heartbeat_at.is_some() {
            *lock(&self.heartbeat_at) = tail.heartbeat_at;
        }
        let mut passes = lock(&self.open_passes);
        if passes.len() < MAX_OPEN_PASSES {
            passes.push_back((began, tail.xmax));
        }
        if tail.has_more {
            return;
        }
        *lock(&self.last_read) = Some(began);
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
            self.complete_until.send_replace(complete);
        }
    }

    /// Forgets what was read.
    pub fn reset(&self) {
        lock(&self.open_passes).clear();
        *lock(&self.last_read) = None;
        *lock(&self.heartbeat_at) = None;
        self.complete_until.send_replace(None);
    }

    /// Waits until all commits before an instant are applied.
    pub async fn fence(&self, since: Instant) -> bool {
        let mut complete = self.complete_until.subscribe();
        if *complete.borrow() >= Some(since) && self.has_recent_heartbeat() {
            return true;
        }
        if !self.is_followed.load(Ordering::Relaxed) {
            // Yields, so that a caller in a loop does not prevent the follower from starting.
            tokio::task::yield_now().await;
            return false;
        }
        self.request_fence(since);
        if self.age().is_some_and(|age| STALLED_AGE < age) {
            tokio::task::yield_now().await;
            return false;
        }
        let result = complete.wait_for(|complete| *complete >= Some(since));
        let result = tokio::time::timeout(FENCE_TIMEOUT, result).await;
        result.is_ok_and(|result| result.is_ok()) && self.has_recent_heartbeat()
    }

    /// Whether a pass has seen a heartbeat that has not expired.
    fn has_recent_heartbeat(&self) -> bool {
        lock(&self.heartbeat_at).is_some_and(|heartbeat| heartbeat.elapsed() < HEARTBEAT_TTL)
    }

    fn request_fence(&self, since: Instant) {
        let until = Instant::now() + FENCE_TIMEOUT;
        let mut request = lock(&self.fence_request);
        *request = Some(FenceRequest {
            since: request.map_or(since, |request| request.since.max(since)),
            until,
        });
        drop(request);
        self.fence_requested.notify_one();
    }

    /// Whether a fence still waits after a pass, because a writer was not finished.
    pub fn has_open_fence(&self) -> bool {
        let complete = *self.complete_until.borrow();
        let request = *lock(&self.fence_request);
        request
            .is_some_and(|request| complete < Some(request.since) && Instant::now() < request.until)
    }

    /// Waits until a fence begins to wait.
    pub async fn fence_requested(&self) {
        self.fence_requested.notified().await;
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(limit: u64, xmax: u64) -> Tail {
        Tail { limit, xmax, heartbeat_at: Some(Instant::now()), ..Tail::default() }
    }

    fn complete_until(progress: &LogProgress) -> Option<Instant> {
        *progress.complete_until.borrow()
    }

    #[test]
    fn a_hanging_writer_ages_the_cache_until_it_ends() {
        let progress = LogProgress::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(progress.age(), None);
        progress.record_pass(at(0), &tail(10, 10));
        assert_eq!(complete_until(&progress), Some(at(0)));
        progress.record_pass(at(1), &tail(11, 14));
        progress.record_pass(at(2), &tail(11, 16));
        assert_eq!(complete_until(&progress), Some(at(0)), "11 is not finished");
        assert_eq!(*lock(&progress.last_read), Some(at(2)), "everything readable was read");
        progress.record_pass(at(3), &tail(15, 20));
        assert_eq!(complete_until(&progress), Some(at(1)));
        progress.record_pass(at(4), &tail(20, 20));
        assert_eq!(complete_until(&progress), Some(at(4)));
    }

    /// A reader that is connected to another server, or whose session does not see the projects,
    /// reads nothing and has nothing to read.
    #[test]
    fn passes_without_a_heartbeat_do_not_keep_the_cache_young() {
        let progress = LogProgress::default();
        let start = Instant::now();
        progress.record_pass(start, &Tail { heartbeat_at: None, ..tail(10, 10) });
        assert_eq!(progress.age(), None, "no heartbeat was seen yet");
        let long_ago = start.checked_sub(HEARTBEAT_TTL + Duration::from_mins(1));
        progress.record_pass(start, &Tail { heartbeat_at: long_ago, ..tail(10, 10) });
        assert!(progress.age() >= Some(Duration::from_mins(1)), "{:?}", progress.age());
        progress.record_pass(start, &Tail { heartbeat_at: None, ..tail(10, 10) });
        assert!(progress.age() >= Some(Duration::from_mins(1)), "{:?}", progress.age());
        progress.record_pass(start, &tail(10, 10));
        assert!(progress.age() < Some(Duration::from_mins(1)), "{:?}", progress.age());
        progress.reset();
        assert_eq!(progress.age(), None);
    }

    #[test]
    fn an_incomplete_pass_makes_no_progress() {
        let progress = LogProgress::default();
        let start = Instant::now();
        let cut = Tail { has_more: true, ..tail(10, 10) };
        progress.record_pass(start, &cut);
        assert_eq!((complete_until(&progress), progress.lag()), (None, None));
        progress.record_pass(start + Duration::from_millis(1), &tail(10, 10));
        assert_eq!(complete_until(&progress), Some(start + Duration::from_millis(1)));
    }

    #[test]
    fn open_passes_are_bounded_while_a_writer_hangs() {
        let progress = LogProgress::default();
        let start = Instant::now();
        for n in 0..10_000 {
            progress.record_pass(start + Duration::from_millis(n), &tail(1, 2));
        }
        assert_eq!(lock(&progress.open_passes).len(), MAX_OPEN_PASSES);
        let end = start + Duration::from_mins(1);
        progress.record_pass(end, &tail(2, 2));
        assert!(complete_until(&progress).is_some());
        progress.record_pass(end, &tail(2, 2));
        assert_eq!(complete_until(&progress), Some(end));
    }

    #[test]
    fn the_next_pass_recovers_after_a_reset() {
        let progress = LogProgress::default();
        let start = Instant::now();
        progress.record_pass(start, &tail(10, 10));
        progress.record_pass(start, &tail(10, 30));
        progress.reset();
        assert_eq!((progress.age(), progress.lag()), (None, None));
        progress.record_pass(start, &tail(20, 20));
        assert_eq!(complete_until(&progress), Some(start));
    }

    #[tokio::test]
    async fn a_fence_fails_while_no_heartbeat_is_seen() {
        let progress = LogProgress::default();
        progress.set_followed(true);
        let since = Instant::now();
        progress.record_pass(Instant::now(), &Tail { heartbeat_at: None, ..tail(10, 10) });
        assert!(!progress.fence(since).await);
        progress.record_pass(Instant::now(), &tail(10, 10));
        assert!(progress.fence(since).await);
    }

    #[tokio::test]
    async fn a_fence_fails_at_once_without_a_follower() {
        let progress = LogProgress::default();
        assert!(!progress.fence(Instant::now()).await);
        assert!(!progress.has_open_fence());
    }

    #[tokio::test]
    async fn a_fence_wakes_the_follower_and_returns_when_all_is_read() {
        let progress = LogProgress::default();
        progress.set_followed(true);
        let since = Instant::now();
        let follower = async {
            progress.fence_requested().await;
            progress.record_pass(since, &tail(4, 5));
            assert!(progress.has_open_fence(), "a writer is not finished");
            progress.record_pass(Instant::now(), &tail(5, 5));
            assert!(!progress.has_open_fence());
        };
        let (was_reached, ()) = tokio::join!(progress.fence(since), follower);
        assert!(was_reached);
        assert!(progress.fence(since).await, "no further pass is needed");
    }
}
