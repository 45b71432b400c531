//! How many passwords are checked at the same time.
//!
//! A check needs CPU time, memory, a blocking thread and a connection to the database.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_kit::{KeyedPermit, KeyedSemaphore};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::attempts::client_network;

/// Maximum number of concurrent checks.
const MAX_CHECKS: usize = 2;

/// Maximum number of concurrent checks of one address, so that no address has all of them.
const MAX_CHECKS_PER_ADDRESS: usize = 1;

/// Limits the concurrent checks.
#[derive(Debug)]
pub(super) struct PasswordChecks {
    all: Arc<Semaphore>,
    per_address: KeyedSemaphore<Option<IpAddr>>,
}

/// Permission to check one password; returned on drop.
#[derive(Debug)]
pub(super) struct PasswordCheckPermit {
    _check: Option<OwnedSemaphorePermit>,
    _address: KeyedPermit<Option<IpAddr>>,
}

impl Default for PasswordChecks {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX_CHECKS)),
            per_address: KeyedSemaphore::new(MAX_CHECKS_PER_ADDRESS),
        }
    }
}

impl PasswordChecks {
    /// Waits for permission to check a password from this address. The limit of the address comes
    /// first, so that those who wait for it do not delay others.
    pub(super) async fn acquire(&self, client: Option<IpAddr>) -> PasswordCheckPermit {
        let address = self.per_address.acquire(client.map(client_network)).await;
        // Nothing closes the semaphore.
        let check = Arc::clone(&self.all).acquire_owned().await.ok();
        PasswordCheckPermit { _check: check, _address: address }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn an_address_leaves_a_check_to_others() {
        let mut context = Context::from_waker(Waker::noop());
        let checks = PasswordChecks::default();
        let first = checks.acquire(Some(address("2001:db8::1"))).await;
        // An owner usually has a network of addresses.
        let mut waiting: Vec<_> = (2..30)
            .map(|last| Box::pin(checks.acquire(Some(address(&format!("2001:db8::{last}"))))))
            .collect();
        for one in &mut waiting {
            assert!(one.as_mut().poll(&mut context).is_pending());
        }
        let other =
            timeout(Duration::from_mins(1), checks.acquire(Some(address("192.0.2.1")))).await;
        assert!(other.is_ok(), "a check is free");
        let mut third = pin!(checks.acquire(Some(address("192.0.2.2"))));
        assert!(third.as_mut().poll(&mut context).is_pending(), "all checks are in use");
        drop(other);
        let Poll::Ready(third) = third.as_mut().poll(&mut context) else {
            panic!("a check is free");
        };
        drop(first);
        let Poll::Ready(next) = waiting[0].as_mut().poll(&mut context) else {
            panic!("the first one has its turn");
        };
        assert!(waiting[1].as_mut().poll(&mut context).is_pending());
        drop((third, next, waiting));
        assert_eq!(checks.per_address.key_count(), 0, "unused addresses need no memory");
    }
}
