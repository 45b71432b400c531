//! Limits the number of concurrent transfers, in total and per caller.

use std::sync::Arc;

use evenkeel_kit::{KeyedPermit, KeyedSemaphore};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::TransferOwner;

/// Counts the running transfers.
#[derive(Debug)]
pub(super) struct TransferLimiter {
    slots: Arc<Semaphore>,
    per_owner: KeyedSemaphore<TransferOwner>,
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
    _owner: KeyedPermit<TransferOwner>,
    _permit: OwnedSemaphorePermit,
}

impl TransferLimiter {
    /// A limiter; 0 transfers per owner for no limit.
    pub fn new(max_total: usize, max_per_owner: usize) -> Self {
        let max_total = max_total.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            slots: Arc::new(Semaphore::new(max_total)),
            per_owner: KeyedSemaphore::new(max_per_owner),
        }
    }

    /// Starts a transfer.
    pub fn acquire(&self, owner: TransferOwner) -> Result<Transfer, TransferLimit> {
        let owner = self.per_owner.try_acquire(owner).ok_or(TransferLimit::PerCaller)?;
        let permit = Arc::clone(&self.slots).try_acquire_owned();
        let permit = permit.map_err(|_| TransferLimit::Total)?;
        Ok(Transfer { _owner: owner, _permit: permit })
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
        assert_eq!(limiter.per_owner.key_count(), 0, "callers without transfers are not stored");
    }

    #[test]
    fn the_limit_per_caller_can_be_switched_off() {
        let limiter = TransferLimiter::new(9, 0);
        let all: Vec<_> = (0..9).map(|_| limiter.acquire(node("one"))).collect();
        assert!(all.iter().all(Result::is_ok));
    }
}
