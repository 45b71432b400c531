//! The state of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Request;

use crate::admission::semaphore::{PrioritySemaphore, UnitPermit};

/// The state of a connection. The server puts it into the extensions of each request of the
/// connection. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionState(Arc<ConnectionInner>);

#[derive(Debug, Default)]
struct ConnectionInner {
    long_polls: Arc<PrioritySemaphore>,
    is_authenticated: AtomicBool,
}

impl ConnectionState {
    /// Whether an authenticated call has arrived on the connection.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.0.is_authenticated.load(Ordering::Relaxed)
    }

    /// Records that a call on the connection was authenticated.
    pub(crate) fn mark_authenticated<T>(request: &Request<T>) {
        let connection: Option<&Self> = request.extensions().get();
        // All calls read the flag; only the first one writes it.
        if let Some(Self(inner)) = connection.filter(|connection| !connection.is_authenticated()) {
            inner.is_authenticated.store(true, Ordering::Relaxed);
        }
    }

    /// The number of long polls on the connection.
    #[must_use]
    pub fn long_polls(&self) -> u64 {
        self.0.long_polls.in_use()
    }

    /// Counts one more long poll, up to a number, until the permit is dropped.
    #[must_use]
    pub fn acquire_long_poll(&self, max: u32) -> Option<UnitPermit> {
        self.0.long_polls.try_acquire(1, max.into())
    }
}
