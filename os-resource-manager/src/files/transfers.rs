//! Limits the number of concurrent transfers, in total and per caller.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::TransferOwner;

/// Counts the running transfers.
#[derive(Debug)]
pub(super) struct TransferLimiter {
    slots: Arc<Semaphore>,
    /// Maximum per caller; 0 for no limit.
    max_per_owner: usize,
    counts: Arc<Mutex<HashMap<TransferOwner, usize>>>,
}

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferLimit {
    /// The limit for all callers.
    Total,
    PerCaller,
}

/// A running transfer. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct Transfer {
    counts: Arc<Mutex<HashMap<TransferOwner, usize>>>,
    owner: TransferOwner,
    _permit: OwnedSemaphorePermit,
}

impl TransferLimiter {
    pub fn new(max_total: usize, max_per_owner: usize) -> Self {
        let max_total = max_total.clamp(1, Semaphore::MAX_PERMITS);
        Self { slots: Arc::new(Semaphore::new(max_total)), max_per_owner, counts: Arc::default() }
    }

    /// Starts a transfer.
    pub fn acquire(&self, owner: TransferOwner) -> Result<Transfer, TransferLimit> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&owner).copied().unwrap_or_default();
        if self.max_per_owner > 0 && count >= self.max_per_owner {
            return Err(TransferLimit::PerCaller);
        }
        let permit = Arc::clone(&self.slots).try_acquire_owned();
        let permit = permit.map_err(|_| TransferLimit::Total)?;
        counts.insert(owner.clone(), count + 1);
        drop(counts);
        Ok(Transfer { counts: Arc::clone(&self.counts), owner, _permit: permit })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&self.owner) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> TransferOwner {
        TransferOwner::Subject(name.to_owned())
    }

    #[test]
    fn the_limits_per_caller_and_in_total_hold() {
        let limiter = TransferLimiter::new(3, 2);
        let first = limiter.acquire(node("one")).expect("a transfer");
        let second = limiter.acquire(node("one")).expect("a transfer");
        assert_eq!(limiter.acquire(node("one")).unwrap_err(), TransferLimit::PerCaller);
        let third = limiter.acquire(node("two")).expect("a transfer");
        assert_eq!(limiter.acquire(node("three")).unwrap_err(), TransferLimit::Total);
        drop(first);
        assert!(limiter.acquire(node("three")).is_ok());
        drop((second, third));
        assert!(
            limiter.counts.lock().expect("a lock").is_empty(),
            "callers without transfers are not stored"
        );
    }

    #[test]
    fn the_limit_per_caller_can_be_switched_off() {
        let limiter = TransferLimiter::new(9, 0);
        let all: Vec<_> = (0..9).map(|_| limiter.acquire(node("one"))).collect();
        assert!(all.iter().all(Result::is_ok));
    }
}
