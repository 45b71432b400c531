//! Memory pressure of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether memory is short. If so, no new long polls are accepted: an answered poll uses no memory
/// until the next one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct MemoryPressure(Arc<AtomicBool>);

impl MemoryPressure {
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets whether memory is short. Returns true if this is a change.
    pub fn set_short(&self, is_short: bool) -> bool {
        self.0.swap(is_short, Ordering::Relaxed) != is_short
    }
}

/// Marks the requests of a connection that the server has no memory for. They are refused with a
/// retry delay before they are read. The server puts the mark into the extensions of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;
