//! For tests of kills and power cuts: stops the agent for ever after a given write of the journal,
//! or makes it write in a wrong order.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::journal::{Journal, JournalEntry, JournalError, JournalPoint};

/// Whether slots are armed in the wrong order.
static ARMS_EARLY: AtomicBool = AtomicBool::new(false);

/// Arms slots before their kernel is written from now on. A replay of power cuts must detect this
/// wrong order.
pub fn arm_early() {
    ARMS_EARLY.store(true, Ordering::SeqCst);
}

/// Whether [`arm_early`] was called.
pub fn arms_early() -> bool {
    ARMS_EARLY.load(Ordering::SeqCst)
}

/// A journal that prints the name of a point and stops there.
pub struct HaltingJournal {
    inner: Box<dyn Journal>,
    after: String,
}

impl std::fmt::Debug for HaltingJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HaltingJournal").field("after", &self.after).finish_non_exhaustive()
    }
}

impl HaltingJournal {
    /// Creates a journal that stops after the point with this name.
    pub fn new(inner: Box<dyn Journal>, after: String) -> Self {
        Self { inner, after }
    }

    fn halt_if_reached(&self, point: &str) {
        if point != self.after {
            return;
        }
        let mut out = io::stdout().lock();
        // The reader of this line kills the agent. Without a reader, the agent must stop as well.
        writeln!(out, "halted after {point}").and_then(|()| out.flush()).ok();
        loop {
            std::thread::park();
        }
    }
}

impl Journal for HaltingJournal {
    fn read(&self) -> Result<Option<JournalEntry>, JournalError> {
        self.inner.read()
    }

    fn write(&self, point: &JournalPoint, entry: &JournalEntry) -> Result<(), JournalError> {
        self.inner.write(point, entry)?;
        self.halt_if_reached(point.name());
        Ok(())
    }

    fn clear(&self) -> Result<(), JournalError> {
        self.inner.clear()?;
        self.halt_if_reached("closed");
        Ok(())
    }
}
