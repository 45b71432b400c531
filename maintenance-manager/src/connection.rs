//! The state of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tonic::Request;

/// The state of a connection. The server puts it into the extensions of each request of the
/// connection. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionState(Arc<ConnectionInner>);

#[derive(Debug, Default)]
struct ConnectionInner {
    long_polls: AtomicU32,
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
    pub fn long_polls(&self) -> u32 {
        self.0.long_polls.load(Ordering::Relaxed)
    }

    /// Counts one more long poll.
    pub fn add_long_poll(&self) {
        self.0.long_polls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one long poll less.
    pub(crate) fn remove_long_poll(&self) {
        self.0.long_polls.fetch_sub(1, Ordering::Relaxed);
    }
}
