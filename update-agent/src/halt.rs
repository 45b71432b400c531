//! For tests of kills and power cuts: stops the agent for ever right after a certain write of the journal, or lets it
//! write in a wrong order.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::journal::{Entry, Journal, JournalError, Point};

/// Whether slots are armed in the wrong order.
static ARMS_EARLY: AtomicBool = AtomicBool::new(false);

/// From now on a slot is armed before its kernel is there: a replay of power cuts that does not see this sees nothing.
pub fn arm_early() {
    ARMS_EARLY.store(true, Ordering::SeqCst);
}

/// Whether [`arm_early`] was called.
pub fn arms_early() -> bool {
    ARMS_EARLY.load(Ordering::SeqCst)
}

/// A journal that says the name of a point and stops there.
pub struct HaltingJournal {
    inner: Box<dyn Journal>,
    after: String,
}

impl std::fmt::Debug for HaltingJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HaltingJournal")
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl HaltingJournal {
    /// Stops after the point with this name.
    pub fn new(inner: Box<dyn Journal>, after: String) -> Self {
        Self { inner, after }
    }

    fn passed(&self, point: &str) {
        if point != self.after {
            return;
        }
        let mut out = io::stdout().lock();
        // Whoever reads this kills the agent; if nobody does, there is nothing better to do than to stop as well.
        writeln!(out, "halted after {point}")
            .and_then(|()| out.flush())
            .ok();
        loop {
            std::thread::park();
        }
    }
}

impl Journal for HaltingJournal {
    fn read(&self) -> Result<Option<Entry>, JournalError> {
        self.inner.read()
    }

    fn write(&self, point: &Point, entry: &Entry) -> Result<(), JournalError> {
        self.inner.write(point, entry)?;
        self.passed(point.name());
        Ok(())
    }

    fn clear(&self) -> Result<(), JournalError> {
        self.inner.clear()?;
        self.passed("closed");
        Ok(())
    }
}
