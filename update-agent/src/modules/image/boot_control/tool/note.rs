//! What is noted of the tool's work, beside the record of the slots.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::failed;
use super::super::files::broken;
use crate::durable;
use crate::model::{Failure, Sha256};
use crate::modules::image::slots::Slot;

/// What was there when the tool had written a slot, and whether it was told since to start it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// The file that was written.
    pub file: Sha256,
    /// The kernel that the tool set aside.
    pub kernel: Sha256,
    /// That the slot is to be started once; none before that is ordered, and after it was taken back.
    #[serde(default)]
    pub mark: Option<Mark>,
}

/// That a slot is to be started once. On the disk before it is ordered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Which slot.
    pub slot: Slot,
    /// The boot in which it is ordered.
    pub boot_id: String,
}

impl Note {
    /// The note in a file; none if there is none, or none that can be understood.
    pub fn read(file: &Path) -> Result<Option<Self>, Failure> {
        let content = durable::read(file).map_err(broken)?;
        Ok(content.and_then(|content| serde_json::from_slice(&content).ok()))
    }

    /// Puts the note in the place of what is in a file, and returns when it is on the disk.
    pub fn write(&self, file: &Path) -> Result<(), Failure> {
        let content = serde_json::to_vec(self).map_err(|error| failed(error.to_string()))?;
        durable::replace(file, &content, 0o600).map_err(broken)
    }

    /// Removes the mark of a slot from the note in a file, and returns when that is on the disk.
    pub fn unmark(file: &Path, slot: Slot) -> Result<(), Failure> {
        let is_its = |mark: &Mark| mark.slot == slot;
        match Self::read(file)? {
            Some(note) if note.mark.as_ref().is_some_and(is_its) => {
                Self { mark: None, ..note }.write(file)
            }
            _ => Ok(()),
        }
    }

    /// Whether a slot is to be started once from this boot, as far as the note says. The order may not have been given.
    pub fn is_ordered(&self, slot: Slot, boot_id: &str) -> bool {
        let is_it = |mark: &Mark| mark.slot == slot && mark.boot_id == boot_id;
        self.mark.as_ref().is_some_and(is_it)
    }

    /// Whether a slot was to be started once by a boot that has been since. In the boot of the order itself the loader
    /// still has it, and the mark says nothing.
    pub fn was_tried(&self, slot: Slot, boot_id: &str) -> bool {
        let is_it = |mark: &Mark| mark.slot == slot && mark.boot_id != boot_id;
        self.mark.as_ref().is_some_and(is_it)
    }
}
