//! What has come over one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tonic::Request;

/// What has come over one connection: the server puts it into the extensions of each of its requests. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Carried(Arc<All>);

#[derive(Debug, Default)]
struct All {
    held: AtomicU32,
    is_known: AtomicBool,
}

impl Carried {
    /// Whether a call has come that proved whose it is. Until then it is anybody's.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.0.is_known.load(Ordering::Relaxed)
    }

    /// Notes that a call proved whose it is.
    pub(crate) fn prove<T>(request: &Request<T>) {
        let carried: Option<&Self> = request.extensions().get();
        // It is read by all calls and written by one.
        if let Some(Self(all)) = carried.filter(|carried| !carried.is_known()) {
            all.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// How many polls are held that came over it.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// One more is held.
    pub fn hold(&self) {
        self.0.held.fetch_add(1, Ordering::Relaxed);
    }

    /// One is held no more.
    pub(crate) fn let_go(&self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}
