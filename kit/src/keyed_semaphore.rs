//! Limits how many permits each key uses at once, so that no key uses all of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of permits that one project may use, so that others always get some: three quarters,
/// at least one, and not all if there are several.
#[must_use]
pub fn max_per_project(total: usize) -> usize {
    (total - total / 4).min(total.saturating_sub(1)).max(1)
}

/// A semaphore for each key, all with the same number of permits. Only keys that are in use, or that somebody waits for,
/// need memory. Cheap to clone.
#[derive(Debug)]
pub struct KeyedSemaphore<K> {
    /// Permits per key; 0 for no limit.
    permits_per_key: usize,
    keys: Arc<Mutex<HashMap<K, KeyState>>>,
}

/// The permits of a key, and the number of permits and waits that refer to them.
#[derive(Debug)]
struct KeyState {
    permits: Arc<Semaphore>,
    references: usize,
}

/// A permit of a key. Dropping it returns it.
#[derive(Debug)]
pub struct KeyedPermit<K: Eq + Hash> {
    /// Dropped first, so that a key without references has all its permits.
    _permit: Option<OwnedSemaphorePermit>,
    _reference: Option<KeyReference<K>>,
}

/// Keeps the state of a key in memory.
#[derive(Debug)]
struct KeyReference<K: Eq + Hash> {
    keys: Arc<Mutex<HashMap<K, KeyState>>>,
    key: K,
}

impl<K> Clone for KeyedSemaphore<K> {
    fn clone(&self) -> Self {
        Self { permits_per_key: self.permits_per_key, keys: Arc::clone(&self.keys) }
    }
}

impl<K: Clone + Eq + Hash> KeyedSemaphore<K> {
    /// A semaphore with this number of permits per key; 0 for no limit.
    #[must_use]
    pub fn new(permits_per_key: usize) -> Self {
        Self { permits_per_key: permits_per_key.min(Semaphore::MAX_PERMITS), keys: Arc::default() }
    }

    /// Takes a permit of the key; none if all are taken.
    #[must_use]
    pub fn try_acquire(&self, key: K) -> Option<KeyedPermit<K>> {
        let Some((permits, reference)) = self.refer_to(key) else {
            return Some(KeyedPermit { _permit: None, _reference: None });
        };
        let permit = permits.try_acquire_owned().ok()?;
        Some(KeyedPermit { _permit: Some(permit), _reference: Some(reference) })
    }

    /// Waits for a permit of the key. Callers get it in the order of their calls.
    pub async fn acquire(&self, key: K) -> KeyedPermit<K> {
        let Some((permits, reference)) = self.refer_to(key) else {
            return KeyedPermit { _permit: None, _reference: None };
        };
        // Nothing closes the semaphore.
        let permit = permits.acquire_owned().await.ok();
        KeyedPermit { _permit: permit, _reference: Some(reference) }
    }

    /// The number of keys in memory.
    #[must_use]
    pub fn key_count(&self) -> usize {
        lock(&self.keys).len()
    }

    /// The permits of a key; none without a limit.
    fn refer_to(&self, key: K) -> Option<(Arc<Semaphore>, KeyReference<K>)> {
        if self.permits_per_key == 0 {
            return None;
        }
        let mut keys = lock(&self.keys);
        let state = keys.entry(key.clone()).or_insert_with(|| KeyState {
            permits: Arc::new(Semaphore::new(self.permits_per_key)),
            references: 0,
        });
        state.references += 1;
        let permits = Arc::clone(&state.permits);
        drop(keys);
        Some((permits, KeyReference { keys: Arc::clone(&self.keys), key }))
    }
}

impl<K: Eq + Hash> Drop for KeyReference<K> {
    fn drop(&mut self) {
        let mut keys = lock(&self.keys);
        if let Some(state) = keys.get_mut(&self.key) {
            state.references = state.references.saturating_sub(1);
            if state.references == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

fn lock<K>(keys: &Mutex<HashMap<K, KeyState>>) -> MutexGuard<'_, HashMap<K, KeyState>> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn a_project_leaves_permits_to_others() {
        let parts = [0, 1, 2, 3, 4, 8, 16].map(max_per_project);
        assert_eq!(parts, [1, 1, 1, 2, 3, 6, 12]);
    }

    #[test]
    fn each_key_has_its_own_permits() {
        let semaphore = KeyedSemaphore::new(2);
        let first = semaphore.try_acquire("one").expect("a permit");
        let second = semaphore.try_acquire("one").expect("a permit");
        assert!(semaphore.try_acquire("one").is_none());
        assert!(semaphore.try_acquire("other").is_some());
        drop(first);
        assert!(semaphore.try_acquire("one").is_some());
        drop(second);
        assert_eq!(semaphore.key_count(), 0, "unused keys need no memory");
    }

    #[test]
    fn without_a_limit_no_key_is_stored() {
        let semaphore = KeyedSemaphore::new(0);
        let permits: Vec<_> = (0..1_000).map(|_| semaphore.try_acquire("one")).collect();
        assert!(permits.iter().all(Option::is_some));
        assert_eq!(semaphore.key_count(), 0);
    }

    #[test]
    fn a_permit_goes_to_the_next_caller_that_still_waits() {
        let mut context = Context::from_waker(Waker::noop());
        let semaphore = KeyedSemaphore::new(1);
        let only = semaphore.try_acquire("one").expect("a permit");
        let mut cancelled = Box::pin(semaphore.acquire("one"));
        let mut waiter = pin!(semaphore.acquire("one"));
        assert!(cancelled.as_mut().poll(&mut context).is_pending());
        assert!(waiter.as_mut().poll(&mut context).is_pending());
        drop(cancelled);
        drop(only);
        let Poll::Ready(permit) = waiter.as_mut().poll(&mut context) else {
            panic!("the permit is free");
        };
        assert!(semaphore.try_acquire("one").is_none());
        drop(permit);
        assert_eq!(semaphore.key_count(), 0, "also after a wait that was given up");
    }
}
