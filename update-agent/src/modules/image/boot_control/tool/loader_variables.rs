//! The variables that select the kernel to start.

use std::path::Path;

use super::super::apply_failure;
use super::super::efi::EfiVariables;
use super::super::files;
use super::KERNELS_FOLDER;
use super::names::{is_kernel, started_and_other_kernel};
use crate::model::{Failure, Sha256};

/// The variables of the loader that name kernels.
#[derive(Clone, Debug)]
pub struct LoaderVariables {
    /// The kernel that it started.
    pub selected: String,
    /// The kernel that it starts by default.
    pub default: Option<String>,
    /// The kernel that it starts at the next boot only: the one-shot order.
    pub once: Option<String>,
}

impl LoaderVariables {
    /// Reads the variables from the firmware.
    pub fn read(efi: &EfiVariables) -> Result<Self, Failure> {
        let text = |name: &str| efi.read_text(name).map_err(apply_failure);
        let selected = text("LoaderEntrySelected")?.ok_or_else(|| {
            apply_failure("the boot loader does not report which kernel it started")
        })?;
        Ok(Self {
            selected,
            default: text("LoaderEntryDefault")?,
            once: text("LoaderEntryOneShot")?,
        })
    }

    /// Fails unless only the next boot starts the kernel that does not run, and that kernel has the
    /// digest `kernel` on disk. Blocks.
    pub fn check_one_shot(&self, esp: &Path, kernel: &Sha256) -> Result<(), Failure> {
        let (running, other) = started_and_other_kernel(&self.selected);
        // The digest must be that of the data on disk.
        files::flush(esp)?;
        if files::file_sha256(&esp.join(KERNELS_FOLDER).join(other))? != *kernel {
            return Err(apply_failure(format!(
                "{other} on the ESP is not the kernel of the image: the tool did not copy it completely"
            )));
        }
        if !is_kernel(self.once.as_deref(), other) {
            return Err(apply_failure(format!("the next boot would not start {other}")));
        }
        if !is_kernel(self.default.as_deref(), running) {
            return Err(apply_failure("the running kernel is no longer the default"));
        }
        Ok(())
    }
}
