//! The record on the disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_kit::chain;
use evenkeel_kit::clock::Clock;

use super::{Event, Mend, Seen, Slot, Slots, reconcile, record, step};
use crate::durable::{self, FileError};
use crate::model::{Failure, FailureKind, Sha256};

/// Keeps the record. What it has said is on the disk.
#[derive(Debug)]
pub struct SlotFile {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    /// As it is on the disk.
    slots: Mutex<Slots>,
}

impl SlotFile {
    /// Goes on with the record that is there. Without a file nothing is known of the slots, and nothing is written
    /// before something is. A record that cannot be understood is never overwritten: what it says may be all that tells
    /// a slot that failed from a good one.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let content = durable::read(path).map_err(|error| storage(&error))?;
        let slots = match content {
            None => Slots::default(),
            Some(content) => record::read(&content).map_err(|why| {
                Failure::new(
                    FailureKind::Storage,
                    format!(
                        "cannot understand the record of the slots {}: {why}; no image is installed until it is put \
                         right. If it is removed, the agent starts anew: what runs then counts as good if its boot \
                         entry has no counter, and images that failed are forgotten",
                        path.display()
                    ),
                )
            })?,
        };
        Ok(Self {
            path: path.to_owned(),
            clock,
            slots: Mutex::new(slots),
        })
    }

    /// The record.
    pub fn get(&self) -> Slots {
        self.lock().clone()
    }

    /// Takes a step of the table. It is on the disk when this returns; if this fails nothing may be built on it.
    pub fn step(&self, slot: Slot, event: &Event, seen: &Seen) -> Result<Slots, Failure> {
        let mut slots = self.lock();
        let next = step(&slots, slot, event, seen, self.clock.now())?;
        self.keep(&mut slots, next)?;
        Ok(slots.clone())
    }

    /// Brings the record to what is seen, and says what is to be mended besides; see [`reconcile()`]. The record is on
    /// the disk when this returns.
    pub fn reconcile(&self, seen: &Seen) -> Result<Vec<Mend>, Failure> {
        let mut slots = self.lock();
        let (next, mends) = reconcile(&slots, seen, self.clock.now());
        self.keep(&mut slots, next)?;
        Ok(mends)
    }

    /// Forgets that an image failed here, and says whether it was remembered.
    pub fn forget_bad(&self, file: &Sha256) -> Result<bool, Failure> {
        let mut slots = self.lock();
        let mut next = slots.clone();
        let was_known = next.forget_bad(file);
        self.keep(&mut slots, next)?;
        Ok(was_known)
    }

    /// The disk first: what is in memory was never ahead of it. What says nothing new is not written.
    fn keep(&self, slots: &mut Slots, next: Slots) -> Result<(), Failure> {
        if *slots == next {
            return Ok(());
        }
        let content = record::write(&next).map_err(|error| {
            Failure::new(
                FailureKind::Storage,
                format!("the record of the slots cannot be written as JSON: {error}"),
            )
        })?;
        durable::replace(&self.path, &content, 0o600).map_err(|error| storage(&error))?;
        *slots = next;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn storage(error: &FileError) -> Failure {
    Failure::new(FailureKind::Storage, chain(error).to_string())
}
