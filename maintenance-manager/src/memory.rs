//! Whether this process has little memory left, and who is turned away then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether memory is short. While it is, no further poll is held: one that is answered costs nothing until the next one.
/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<AtomicBool>);

impl Memory {
    /// Whether there is little left.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Says whether there is little left. True if that is new.
    pub fn note(&self, is_short: bool) -> bool {
        self.0.swap(is_short, Ordering::Relaxed) != is_short
    }
}

/// Marks the requests of a connection that there is no memory for: all of them are refused before they are read, with a time
/// after which to try again. The server puts it into their extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnedAway;
