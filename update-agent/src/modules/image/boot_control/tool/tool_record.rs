//! The record of the tool's work. It is separate from the record of the slots.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::apply_failure;
use super::super::files::file_failure;
use crate::durable;
use crate::model::{Failure, Sha256};
use crate::modules::image::slots::Slot;

/// The last image that the tool wrote, and whether its slot has a one-shot order since then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolRecord {
    /// Digest of the image file that was written.
    pub file: Sha256,
    /// Digest of the backup kernel.
    pub kernel: Sha256,
    /// Set before a one-shot order is given, removed when it is cleared.
    #[serde(default)]
    pub mark: Option<TrialMark>,
}

/// Marks that a slot has a one-shot order. On disk before the order is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialMark {
    /// The slot to start once.
    pub slot: Slot,
    /// The boot in which the order was given.
    pub boot_id: String,
}

impl ToolRecord {
    /// Reads the record in a file. `None` if there is no file or it is invalid.
    pub fn read(file: &Path) -> Result<Option<Self>, Failure> {
        let content = durable::read_file(file).map_err(file_failure)?;
        Ok(content.and_then(|content| serde_json::from_slice(&content).ok()))
    }

    /// Replaces the record in a file, and returns when it is on disk.
    pub fn write(&self, file: &Path) -> Result<(), Failure> {
        let content = serde_json::to_vec(self).map_err(|error| apply_failure(error.to_string()))?;
        durable::replace_file(file, &content, 0o600).map_err(file_failure)
    }

    /// Removes the mark of a slot from the record in a file, and returns when that is on disk.
    pub fn remove_mark(file: &Path, slot: Slot) -> Result<(), Failure> {
        let is_its = |mark: &TrialMark| mark.slot == slot;
        match Self::read(file)? {
            Some(note) if note.mark.as_ref().is_some_and(is_its) => {
                Self { mark: None, ..note }.write(file)
            }
            _ => Ok(()),
        }
    }

    /// Whether a slot may have a one-shot order from this boot. The mark is stored before the order
    /// is given.
    pub fn is_one_shot_set(&self, slot: Slot, boot_id: &str) -> bool {
        let is_it = |mark: &TrialMark| mark.slot == slot && mark.boot_id == boot_id;
        self.mark.as_ref().is_some_and(is_it)
    }

    /// Whether a one-shot order for a slot was given in an earlier boot. In the boot of the order
    /// itself the loader still has it, and the mark means nothing.
    pub fn was_tried(&self, slot: Slot, boot_id: &str) -> bool {
        let is_it = |mark: &TrialMark| mark.slot == slot && mark.boot_id != boot_id;
        self.mark.as_ref().is_some_and(is_it)
    }
}
