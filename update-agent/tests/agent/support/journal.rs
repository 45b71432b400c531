//! Journals that kill or stop the agent.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel_update_agent::durable::FileError;
use evenkeel_update_agent::journal::{
    FileJournal, Journal, JournalEntry, JournalError, JournalPoint,
};
use tokio_util::sync::CancellationToken;

use super::system::FakeSystem;

/// Whether the agent is killed before or after the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSide {
    Before,
    After,
}

/// Fails from the n-th write on, as if the agent had been killed there. Adds every write to the log of the system.
pub struct BreakingJournal {
    inner: FileJournal,
    writes_left: Arc<AtomicUsize>,
    dead: AtomicBool,
    side: WriteSide,
    system: Arc<FakeSystem>,
}

impl BreakingJournal {
    pub fn new(path: &Path, system: &Arc<FakeSystem>, at: usize, side: WriteSide) -> Self {
        Self::with_counter(path, system, &Arc::new(AtomicUsize::new(at)), side)
    }

    /// As `new`, with a counter that the following agents share. It kills one agent only.
    pub fn with_counter(
        path: &Path,
        system: &Arc<FakeSystem>,
        writes_left: &Arc<AtomicUsize>,
        side: WriteSide,
    ) -> Self {
        Self {
            inner: FileJournal::new(path),
            writes_left: Arc::clone(writes_left),
            dead: AtomicBool::new(false),
            side,
            system: Arc::clone(system),
        }
    }

    fn write_unless_killed(
        &self,
        point: &str,
        write: impl FnOnce() -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(killed_error());
        }
        let breaks = match self.writes_left.load(Ordering::SeqCst) {
            usize::MAX => false,
            0 => {
                self.writes_left.store(usize::MAX, Ordering::SeqCst);
                self.dead.store(true, Ordering::SeqCst);
                true
            }
            writes_left => {
                self.writes_left.store(writes_left - 1, Ordering::SeqCst);
                false
            }
        };
        if breaks && self.side == WriteSide::Before {
            return Err(killed_error());
        }
        write()?;
        self.system.log_action(&format!("journal {point}"));
        if breaks { Err(killed_error()) } else { Ok(()) }
    }
}

fn killed_error() -> JournalError {
    JournalError::File(FileError {
        action: "write",
        path: "journal".into(),
        source: io::Error::other("killed"),
    })
}

impl Journal for BreakingJournal {
    fn read(&self) -> Result<Option<JournalEntry>, JournalError> {
        self.inner.read()
    }

    fn write(&self, point: &JournalPoint, entry: &JournalEntry) -> Result<(), JournalError> {
        self.write_unless_killed(point.name(), || self.inner.write(point, entry))
    }

    fn clear(&self) -> Result<(), JournalError> {
        self.write_unless_killed("closed", || self.inner.clear())
    }
}

/// Asks the agent to stop as soon as the journal shows that the change has begun.
pub struct StoppingJournal {
    pub inner: FileJournal,
    pub stop: CancellationToken,
}

impl Journal for StoppingJournal {
    fn read(&self) -> Result<Option<JournalEntry>, JournalError> {
        self.inner.read()
    }

    fn write(&self, point: &JournalPoint, entry: &JournalEntry) -> Result<(), JournalError> {
        self.inner.write(point, entry)?;
        if entry.has_begun() {
            self.stop.cancel();
        }
        Ok(())
    }

    fn clear(&self) -> Result<(), JournalError> {
        self.inner.clear()
    }
}
