//! The record on the disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_kit::chain;
use evenkeel_kit::clock::Clock;

use super::{BootObservation, BootRepair, Slot, SlotEvent, Slots, reconcile, record, step};
use crate::durable::{self, FileError};
use crate::model::{Failure, FailureKind, Sha256};

/// Stores the record. Every record that it returns is on disk.
#[derive(Debug)]
pub struct SlotFile {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    /// The record, as it is on disk.
    slots: Mutex<Slots>,
}

impl SlotFile {
    /// Opens the record. Without a file, nothing is known of the slots, and no slot is written
    /// until something is known. An invalid record is never overwritten: it may hold the only
    /// evidence that a slot failed.
    pub fn open(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let content = durable::read_file(path).map_err(|error| storage_failure(&error))?;
        let slots = match content {
            None => Slots::default(),
            Some(content) => record::parse_slots(&content).map_err(|why| {
                Failure::new(
                    FailureKind::Storage,
                    format!(
                        "cannot parse the record of the slots {}: {why}; no image is installed until the file is repaired. \
                         If you remove it, the agent starts with a new record: the running image counts as good if its boot \
                         entry has no counter, and failed images are forgotten",
                        path.display()
                    ),
                )
            })?,
        };
        Ok(Self { path: path.to_owned(), clock, slots: Mutex::new(slots) })
    }

    /// Returns a copy of the record.
    pub fn get(&self) -> Slots {
        self.lock().clone()
    }

    /// Applies an event to a slot. The new record is on disk when this returns. If this fails, the
    /// caller must not continue.
    pub fn step(
        &self,
        slot: Slot,
        event: &SlotEvent,
        observed: &BootObservation,
    ) -> Result<Slots, Failure> {
        let mut slots = self.lock();
        let next = step(&slots, slot, event, observed, self.clock.now())?;
        self.store(&mut slots, next)?;
        Ok(slots.clone())
    }

    /// Reconciles the record with the observation and returns the necessary repairs; see
    /// [`reconcile()`]. The new record is on disk when this returns.
    pub fn reconcile(&self, observed: &BootObservation) -> Result<Vec<BootRepair>, Failure> {
        let mut slots = self.lock();
        let (next, repairs) = reconcile(&slots, observed, self.clock.now());
        self.store(&mut slots, next)?;
        Ok(repairs)
    }

    /// Forgets that an image failed. Returns whether it was remembered.
    pub fn forget_bad(&self, file: &Sha256) -> Result<bool, Failure> {
        let mut slots = self.lock();
        let mut next = slots.clone();
        let was_known = next.forget_bad(file);
        self.store(&mut slots, next)?;
        Ok(was_known)
    }

    /// Writes a changed record to disk before it is visible in memory. An unchanged record is not
    /// written.
    fn store(&self, slots: &mut Slots, next: Slots) -> Result<(), Failure> {
        if *slots == next {
            return Ok(());
        }
        let content = record::encode_slots(&next).map_err(|error| {
            Failure::new(
                FailureKind::Storage,
                format!("the record of the slots cannot be written as JSON: {error}"),
            )
        })?;
        durable::replace_file(&self.path, &content, 0o600)
            .map_err(|error| storage_failure(&error))?;
        *slots = next;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn storage_failure(error: &FileError) -> Failure {
    Failure::new(FailureKind::Storage, chain(error).to_string())
}
