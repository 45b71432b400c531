//! Kills a run before a call with a given number.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::files::FaultPoint;
use crate::run::{BegunStep, CompletedStep, JournalError, MemoryJournal, RunJournal, RunPass};

/// Number of points of a fuse that a test has burnt.
const BURNT: usize = usize::MAX / 2;

/// Counts the points at which a run can be killed. After the given number nothing has an effect any
/// more, as far as the machine is concerned.
#[derive(Clone, Debug)]
pub(super) struct Fuse {
    points: Arc<AtomicUsize>,
    limit: usize,
    /// Calls on paths with this text fail as on a full disk.
    full_path: Option<&'static str>,
}

impl Fuse {
    pub fn endless() -> Self {
        Self::after(usize::MAX)
    }

    pub fn after(limit: usize) -> Self {
        Self { points: Arc::default(), limit, full_path: None }
    }

    pub fn with_full_path(path: &'static str) -> Self {
        Self { full_path: Some(path), ..Self::endless() }
    }

    /// Passes a point. Returns whether the run is still alive.
    pub fn pass(&self) -> bool {
        self.points.fetch_add(1, Ordering::Relaxed) < self.limit.min(BURNT)
    }

    /// Kills the run now.
    pub fn burn(&self) {
        self.points.store(BURNT, Ordering::Relaxed);
    }

    pub fn is_burnt(&self) -> bool {
        self.points() > self.limit.min(BURNT - 1)
    }

    pub fn points(&self) -> usize {
        self.points.load(Ordering::Relaxed)
    }
}

impl FaultPoint for Fuse {
    fn before(&self, _call: &'static str, path: &str) -> Result<(), Errno> {
        if self.full_path.is_some_and(|full| path.contains(full)) {
            return Err(Errno::IO);
        }
        if self.pass() { Ok(()) } else { Err(Errno::IO) }
    }
}

/// A journal whose process may be killed before and after each call.
pub(super) struct FusedJournal<'a> {
    pub journal: &'a mut MemoryJournal,
    pub fuse: &'a Fuse,
}

impl FusedJournal<'_> {
    fn pass(&self) -> Result<(), JournalError> {
        if self.fuse.pass() { Ok(()) } else { Err(JournalError("killed".to_owned())) }
    }
}

impl RunJournal for FusedJournal<'_> {
    fn begin_pass(&mut self, pass: &RunPass) -> Result<(), JournalError> {
        self.pass()?;
        // What is stored can be read again.
        let json = serde_json::to_string(pass).unwrap();
        let read: RunPass = serde_json::from_str(&json).unwrap();
        assert_eq!(&read, pass);
        self.journal.begin_pass(&read)?;
        self.pass()
    }

    fn begin_step(&mut self, step: &BegunStep) -> Result<(), JournalError> {
        self.pass()?;
        self.journal.begin_step(step)?;
        self.pass()
    }

    fn complete_step(&mut self, step: &CompletedStep) -> Result<(), JournalError> {
        self.pass()?;
        self.journal.complete_step(step)?;
        self.pass()
    }
}
