//! A journal that breaks off.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel_update_agent::durable::FileError;
use evenkeel_update_agent::journal::{Entry, FileJournal, Journal, JournalError, Point};

use super::system::FakeSystem;

/// On which side of the write that breaks off the agent dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Before,
    After,
}

/// Breaks off at the n-th write, as if the agent had been killed there, and tells the system's log of every write.
pub struct BreakingJournal {
    inner: FileJournal,
    left: Arc<AtomicUsize>,
    dead: AtomicBool,
    side: Side,
    system: Arc<FakeSystem>,
}

impl BreakingJournal {
    pub fn new(path: &Path, system: &Arc<FakeSystem>, at: usize, side: Side) -> Self {
        Self::counting(path, system, &Arc::new(AtomicUsize::new(at)), side)
    }

    /// The same, with a count that goes on in the agents that follow. It strikes once.
    pub fn counting(
        path: &Path,
        system: &Arc<FakeSystem>,
        left: &Arc<AtomicUsize>,
        side: Side,
    ) -> Self {
        Self {
            inner: FileJournal::at(path),
            left: Arc::clone(left),
            dead: AtomicBool::new(false),
            side,
            system: Arc::clone(system),
        }
    }

    fn pass(
        &self,
        point: &str,
        write: impl FnOnce() -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(killed());
        }
        let breaks = match self.left.load(Ordering::SeqCst) {
            usize::MAX => false,
            0 => {
                self.left.store(usize::MAX, Ordering::SeqCst);
                self.dead.store(true, Ordering::SeqCst);
                true
            }
            left => {
                self.left.store(left - 1, Ordering::SeqCst);
                false
            }
        };
        if breaks && self.side == Side::Before {
            return Err(killed());
        }
        write()?;
        self.system.note(&format!("journal {point}"));
        if breaks { Err(killed()) } else { Ok(()) }
    }
}

fn killed() -> JournalError {
    JournalError::File(FileError {
        doing: "write",
        path: "journal".into(),
        source: io::Error::other("killed"),
    })
}

impl Journal for BreakingJournal {
    fn read(&self) -> Result<Option<Entry>, JournalError> {
        self.inner.read()
    }

    fn write(&self, point: &Point, entry: &Entry) -> Result<(), JournalError> {
        self.pass(point.name(), || self.inner.write(point, entry))
    }

    fn clear(&self) -> Result<(), JournalError> {
        self.pass("closed", || self.inner.clear())
    }
}
