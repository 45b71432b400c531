//! Limits what is in use at once, such as calls, bytes and permits to write.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{KeyedPermit, KeyedSemaphore, max_per_project};
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

/// Counts the units in use, such as calls or bytes, in total and per project. Only projects with
/// units need memory. A mutex is cheap enough: what is counted costs much more.
#[derive(Debug)]
pub struct ProjectSemaphore<P> {
    all: Arc<PrioritySemaphore>,
    per_project: Arc<Mutex<HashMap<P, u64>>>,
}

/// Units of a project in use. Dropping the permit returns them.
#[derive(Debug)]
pub struct ProjectUnitPermit<P: Eq + Hash> {
    permit: UnitPermit,
    per_project: Arc<Mutex<HashMap<P, u64>>>,
    project: P,
}

/// A call of a project that uses the database or waits for it, until it is dropped.
pub type DatabasePermit = ProjectUnitPermit<TenantId>;

impl<P> Default for ProjectSemaphore<P> {
    fn default() -> Self {
        Self { all: Arc::default(), per_project: Arc::default() }
    }
}

impl<P: Copy + Eq + Hash> ProjectSemaphore<P> {
    /// The number of units of all projects.
    pub fn in_use(&self) -> u64 {
        self.all.in_use()
    }

    /// Takes units, unless more units than the limit would be in use, or more of the project than
    /// its limit; 0 for no limit.
    pub fn try_acquire(
        &self,
        project: P,
        units: u64,
        (max, max_of_project): (u64, u64),
    ) -> Option<ProjectUnitPermit<P>> {
        let permit = self.all.try_acquire(units, unlimited_if_zero(max))?;
        // Dropping a permit returns its units, so it is created only when they are counted.
        if !count_units(&self.per_project, project, units, max_of_project) {
            return None;
        }
        Some(ProjectUnitPermit { permit, per_project: Arc::clone(&self.per_project), project })
    }
}

impl<P: Copy + Eq + Hash> ProjectUnitPermit<P> {
    /// The number of units.
    pub fn units(&self) -> u64 {
        self.permit.units()
    }

    /// Takes more units of the same project, within limits as for
    /// [`ProjectSemaphore::try_acquire`]. Returns whether it took them.
    pub fn try_grow(&mut self, units: u64, (max, max_of_project): (u64, u64)) -> bool {
        let more = self.permit.semaphore.try_acquire(units, unlimited_if_zero(max));
        let Some(more) = more else {
            return false;
        };
        let is_counted = count_units(&self.per_project, self.project, units, max_of_project);
        if is_counted {
            self.permit.merge(more);
        }
        is_counted
    }
}

/// Counts units for a project, unless it would have more than `max` units; 0 for no limit.
fn count_units<P: Eq + Hash>(
    per_project: &Mutex<HashMap<P, u64>>,
    project: P,
    units: u64,
    max: u64,
) -> bool {
    let mut per_project = lock(per_project);
    let used = per_project.get(&project).copied().unwrap_or_default();
    let total = used.saturating_add(units);
    let fits = total <= unlimited_if_zero(max);
    if fits {
        per_project.insert(project, total);
    }
    fits
}

fn unlimited_if_zero(limit: u64) -> u64 {
    if limit == 0 { u64::MAX } else { limit }
}

impl<P: Eq + Hash> Drop for ProjectUnitPermit<P> {
    fn drop(&mut self) {
        let mut per_project = lock(&self.per_project);
        if let Some(used) = per_project.get_mut(&self.project) {
            *used = used.saturating_sub(self.permit.units());
            if *used == 0 {
                per_project.remove(&self.project);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A [`WaitQueue`] in which a project can use only a part of the permits, and only a part of the
/// callers that wait can belong to it. So a caller of another project gets in.
#[derive(Debug)]
pub struct ProjectWaitQueue {
    queue: WaitQueue,
    running: KeyedSemaphore<TenantId>,
    waiting: KeyedSemaphore<TenantId>,
}

/// A permit of a project. Dropping it returns it.
#[derive(Debug)]
pub struct ProjectPermit {
    _permit: OwnedSemaphorePermit,
    _project: KeyedPermit<TenantId>,
}

impl ProjectWaitQueue {
    /// A queue for a number of permits, at least one.
    pub fn new(permits: usize, max_waiting: usize, timeout: Duration) -> Self {
        Self {
            queue: WaitQueue::new(permits, max_waiting, timeout),
            running: KeyedSemaphore::new(max_per_project(permits)),
            waiting: KeyedSemaphore::new(max_per_project(max_waiting)),
        }
    }

    /// Waits for a permit. `None` if too many callers wait, or after the timeout.
    pub async fn acquire(&self, project: TenantId) -> Option<ProjectPermit> {
        let queue = &self.queue;
        if let Some(of_project) = self.running.try_acquire(project)
            && let Ok(permit) = Arc::clone(&queue.permits).try_acquire_owned()
        {
            return Some(ProjectPermit { _permit: permit, _project: of_project });
        }
        let _waiting_in_project = self.waiting.try_acquire(project)?;
        let _waiting = queue.waiting.try_acquire(1, queue.max_waiting)?;
        let permit = async {
            // In this order, a caller that waits for its project uses no permit.
            let of_project = self.running.acquire(project).await;
            let permit = Arc::clone(&queue.permits).acquire_owned().await.ok()?;
            Some(ProjectPermit { _permit: permit, _project: of_project })
        };
        tokio::time::timeout(queue.timeout, permit).await.ok()?
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use tokio::time::Instant;
    use uuid::Uuid;

    use super::*;

    fn project(number: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(number))
    }

    #[test]
    fn the_units_of_each_project_have_a_limit() {
        let calls = ProjectSemaphore::default();
        let first = calls.try_acquire(project(1), 1, (4, 2)).expect("a call");
        let second = calls.try_acquire(project(1), 1, (4, 2)).expect("a call");
        assert!(calls.try_acquire(project(1), 1, (4, 2)).is_none());
        assert!(calls.try_acquire(project(1), 1, (4, 3)).is_some(), "a higher limit");
        let other = calls.try_acquire(project(2), 1, (4, 2)).expect("a call of another project");
        assert!(calls.try_acquire(project(3), 1, (3, 2)).is_none(), "the limit of all");
        assert!(calls.try_acquire(project(1), 1, (0, 0)).is_some(), "no limit");
        drop(first);
        assert!(calls.try_acquire(project(1), 1, (4, 2)).is_some());
        drop((second, other));
        assert!(lock(&calls.per_project).is_empty(), "projects without calls need no memory");
        assert_eq!(calls.in_use(), 0);
    }

    #[test]
    fn a_permit_grows_up_to_the_limit_of_its_project() {
        let bytes = ProjectSemaphore::default();
        let mut permit = bytes.try_acquire(project(1), 50, (100, 75)).expect("it fits");
        assert!(permit.try_grow(25, (100, 75)));
        assert!(!permit.try_grow(1, (100, 75)), "the limit of the project");
        assert!(bytes.try_acquire(project(1), 1, (100, 75)).is_none());
        let mut other = bytes.try_acquire(project(2), 20, (100, 75)).expect("it fits");
        assert!(!other.try_grow(6, (100, 75)), "the limit of all");
        assert_eq!((permit.units(), other.units(), bytes.in_use()), (75, 20, 95));
        drop(permit);
        assert!(other.try_grow(55, (100, 75)), "all units were returned");
        drop(other);
        assert!(lock(&bytes.per_project).is_empty());
        assert_eq!(bytes.in_use(), 0);
    }

    #[tokio::test]
    async fn a_caller_of_another_project_needs_not_wait() {
        let queue = ProjectWaitQueue::new(4, 4, Duration::from_secs(10));
        let mut running = Vec::new();
        for _ in 0..3 {
            running.push(queue.acquire(project(1)).await.expect("a permit"));
        }
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(queue.acquire(project(1)))).collect();
        for waiter in &mut waiting {
            assert!(waiter.now_or_never().is_none(), "the project uses its part");
        }
        let refused = queue.acquire(project(1)).now_or_never().expect("an answer at once");
        assert!(refused.is_none(), "no more callers of the project may wait");
        let other = queue.acquire(project(2)).now_or_never().flatten().expect("a permit at once");
        let mut third = pin!(queue.acquire(project(3)));
        assert!(third.as_mut().now_or_never().is_none(), "it waits until a permit is free");
        drop(other);
        assert!(third.now_or_never().flatten().is_some(), "ahead of the project that waits");
        drop(running);
        assert!(waiting.remove(0).now_or_never().flatten().is_some());
        waiting.clear();
        assert_eq!((queue.running.key_count(), queue.waiting.key_count()), (0, 0));
    }

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
