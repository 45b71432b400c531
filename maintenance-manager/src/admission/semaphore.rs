//! Limits what is in use at once, such as calls, bytes and permits to write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts the units in use, and refuses at once. Each caller passes the limit of its priority: the
/// lower the limit, the sooner it is refused. Every call takes and returns several units, so both
/// are one atomic addition; tokio's semaphore locks a mutex when a permit is returned.
#[derive(Debug, Default)]
pub struct PrioritySemaphore(AtomicU64);

impl PrioritySemaphore {
    /// The number of units in use.
    pub fn in_use(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes units, unless more than `limit` units would be in use.
    pub fn try_acquire(self: &Arc<Self>, units: u64, limit: u64) -> Option<UnitPermit> {
        let (before, permit) = self.add(units);
        (before.saturating_add(units) <= limit).then_some(permit)
    }

    /// Takes a unit without a limit.
    pub fn acquire_unlimited(self: &Arc<Self>) -> UnitPermit {
        let (_, permit) = self.add(1);
        permit
    }

    fn add(self: &Arc<Self>, units: u64) -> (u64, UnitPermit) {
        let before = self.0.fetch_add(units, Ordering::Relaxed);
        (before, UnitPermit { semaphore: Arc::clone(self), units })
    }
}

/// Units in use. Dropping the permit returns them.
#[derive(Debug)]
pub struct UnitPermit {
    semaphore: Arc<PrioritySemaphore>,
    units: u64,
}

impl UnitPermit {
    /// The number of units.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Takes the units of another permit of the same semaphore.
    pub fn merge(&mut self, mut other: Self) {
        debug_assert!(
            Arc::ptr_eq(&self.semaphore, &other.semaphore),
            "the permits are of different semaphores"
        );
        self.units += std::mem::take(&mut other.units);
    }
}

impl Drop for UnitPermit {
    fn drop(&mut self) {
        self.semaphore.0.fetch_sub(self.units, Ordering::Relaxed);
    }
}

/// A semaphore whose callers wait in turn: a limited number of them, each for a limited time.
#[derive(Debug)]
pub struct WaitQueue {
    permits: Arc<Semaphore>,
    waiting: Arc<PrioritySemaphore>,
    max_waiting: u64,
    timeout: Duration,
}

impl WaitQueue {
    /// A queue for a number of permits, at least one.
    pub fn new(permits: usize, max_waiting: usize, timeout: Duration) -> Self {
        let permits = permits.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            waiting: Arc::default(),
            max_waiting: u64::try_from(max_waiting).unwrap_or(u64::MAX),
            timeout,
        }
    }

    /// Waits for a permit. `None` if too many callers wait, or after the timeout.
    pub async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Some(permit);
        }
        let _waiting = self.waiting.try_acquire(1, self.max_waiting)?;
        let permit = Arc::clone(&self.permits).acquire_owned();
        tokio::time::timeout(self.timeout, permit).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn a_lower_limit_refuses_sooner() {
        let semaphore = Arc::<PrioritySemaphore>::default();
        let low: Vec<_> = std::iter::from_fn(|| semaphore.try_acquire(1, 8)).collect();
        let high: Vec<_> = std::iter::from_fn(|| semaphore.try_acquire(1, 10)).collect();
        assert_eq!((low.len(), high.len(), semaphore.in_use()), (8, 2, 10));
        drop(high);
        assert!(semaphore.try_acquire(1, 8).is_none(), "the units of both count");
        drop(low);
        assert!(semaphore.try_acquire(8, 8).is_some());
        assert_eq!(semaphore.in_use(), 0, "also after a refusal");
    }

    #[test]
    fn a_permit_grows_and_returns_all_its_units() {
        let semaphore = Arc::<PrioritySemaphore>::default();
        let mut permit = semaphore.try_acquire(60, 100).expect("it fits");
        permit.merge(semaphore.try_acquire(40, 100).expect("it fits"));
        assert!(semaphore.try_acquire(1, 100).is_none());
        let _other = semaphore.acquire_unlimited();
        assert_eq!((permit.units(), semaphore.in_use()), (100, 101));
        drop(permit);
        assert_eq!(semaphore.in_use(), 1);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "different semaphores")]
    fn permits_of_different_semaphores_cannot_be_merged() {
        let (one, other) = (Arc::<PrioritySemaphore>::default(), Arc::default());
        one.acquire_unlimited().merge(PrioritySemaphore::acquire_unlimited(&other));
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_no_longer_counts_as_waiting() {
        let queue = WaitQueue::new(1, 1, Duration::from_secs(10));
        let only = queue.acquire().await.expect("a permit");
        let mut cancelled = Box::pin(queue.acquire());
        assert!(cancelled.as_mut().now_or_never().is_none(), "it waits");
        assert_eq!(queue.waiting.in_use(), 1);
        drop(cancelled);
        assert_eq!(queue.waiting.in_use(), 0);
        drop(only);
        assert!(queue.acquire().now_or_never().flatten().is_some(), "at once");
    }

    #[tokio::test]
    async fn the_permit_goes_to_the_next_caller_that_still_waits() {
        let queue = WaitQueue::new(1, 2, Duration::from_secs(10));
        let only = queue.acquire().await.expect("a permit");
        let (mut cancelled, mut waiter) = (Box::pin(queue.acquire()), Box::pin(queue.acquire()));
        assert!(cancelled.as_mut().now_or_never().is_none());
        assert!(waiter.as_mut().now_or_never().is_none());
        drop(cancelled);
        drop(only);
        assert!(waiter.now_or_never().flatten().is_some());
        assert_eq!(queue.waiting.in_use(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_number_of_callers_waits_for_a_limited_time() {
        let queue = WaitQueue::new(0, 1, Duration::from_secs(10));
        let first = queue.acquire().await.expect("at least one permit");
        {
            let mut second = pin!(queue.acquire());
            assert!(second.as_mut().now_or_never().is_none(), "it waits");
            assert!(queue.acquire().await.is_none(), "one waits");
            drop(first);
            assert!(second.await.is_some());
            assert_eq!(queue.waiting.in_use(), 0);
        }
        let _first = queue.acquire().await.expect("it was returned");
        let started = Instant::now();
        assert!(queue.acquire().await.is_none());
        assert_eq!(started.elapsed(), Duration::from_secs(10));
        assert_eq!(queue.waiting.in_use(), 0);
    }
}
