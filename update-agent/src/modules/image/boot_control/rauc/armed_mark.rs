//! The mark of a slot that was armed with RAUC, and the boot entries that follow from it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::apply_failure;
use super::super::files::file_failure;
use super::status::RaucStatus;
use crate::durable;
use crate::model::Failure;
use crate::modules::image::slots::{BootEntry, Slot};

/// A slot that was armed and neither blessed nor withdrawn since then. RAUC does not report how
/// many boots a slot has left, so only the mark distinguishes a slot on trial from a good one. It is
/// on disk before RAUC activates the slot.
///
/// The agent of another version may read it, so unknown fields are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmedMark {
    pub slot: Slot,
    /// The boot in which the slot was armed.
    pub boot_id: String,
    /// Name of the slot for the boot loader. The guard of the image compares it with the running
    /// slot, because it may have to act without an agent (`deploy/image/rauc-trial-guard`).
    #[serde(default)]
    pub bootname: String,
    /// Time after which the guard resets the machine if no agent of the image has started.
    #[serde(default)]
    pub guard_seconds: u64,
}

impl ArmedMark {
    /// Reads the mark in a file. `None` if there is none. An invalid mark is an error: without it,
    /// an image on trial would look like a good one.
    pub fn read(file: &Path) -> Result<Option<Self>, Failure> {
        let Some(content) = durable::read_file(file).map_err(file_failure)? else {
            return Ok(None);
        };
        let mark = serde_json::from_slice(&content).map_err(|error| {
            apply_failure(format!(
                "cannot read {}, which names the slot on trial: {error}; remove the file if no image is on trial",
                file.display()
            ))
        })?;
        Ok(Some(mark))
    }

    /// Replaces the mark in a file, and returns when it is on disk.
    pub fn write(&self, file: &Path) -> Result<(), Failure> {
        let content = serde_json::to_vec(self).map_err(|error| apply_failure(error.to_string()))?;
        durable::replace_file(file, &content, 0o600).map_err(file_failure)
    }

    /// Removes the mark of a slot, and returns when that is on disk.
    pub fn remove(file: &Path, slot: Slot) -> Result<(), Failure> {
        match Self::read(file)? {
            Some(mark) if mark.slot == slot => durable::remove_file(file).map_err(file_failure),
            _ => Ok(()),
        }
    }
}

/// The boot entry that corresponds to the state of a slot.
pub fn boot_entry(
    slot: Slot,
    status: &RaucStatus,
    mark: Option<&ArmedMark>,
    boot_id: &str,
) -> BootEntry {
    let is_running = status.booted == Some(slot);
    let is_primary = status.primary == Some(slot);
    match mark.filter(|mark| mark.slot == slot) {
        // The agent was killed before it activated the slot, or a person activated the other one.
        Some(mark) if !is_running && !is_primary && mark.boot_id == boot_id => BootEntry::Absent,
        Some(_) => BootEntry::OneShot,
        // A running slot without a mark was not started on trial, although the boot loader may have
        // counted this boot. A primary slot without a mark was activated by a person.
        None if is_running || is_primary || status.slot(slot).is_good => BootEntry::Plain,
        None => BootEntry::Absent,
    }
}
