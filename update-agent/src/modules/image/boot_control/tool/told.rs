//! What the loader was told to start.

use std::path::Path;

use super::super::efi::Efi;
use super::super::failed;
use super::super::files;
use super::KERNELS;
use super::names::{is, kernels};
use crate::model::{Failure, Sha256};

/// What the loader was told, and what it did.
#[derive(Clone, Debug)]
pub struct Told {
    /// The kernel that it started.
    pub selected: String,
    /// The one that it starts if nothing else is said.
    pub default: Option<String>,
    /// The one that it starts next, and only then.
    pub once: Option<String>,
}

impl Told {
    /// Reads it from the firmware's variables.
    pub fn read(efi: &Efi) -> Result<Self, Failure> {
        let text = |name: &str| efi.text(name).map_err(failed);
        let selected = text("LoaderEntrySelected")?
            .ok_or_else(|| failed("the boot loader does not tell which kernel it started"))?;
        Ok(Self {
            selected,
            default: text("LoaderEntryDefault")?,
            once: text("LoaderEntryOneShot")?,
        })
    }

    /// Fails unless the next boot, and only that, starts the kernel that does not run, and that is `kernel`, whole and
    /// on the disk. Blocks.
    pub fn judge(&self, esp: &Path, kernel: &Sha256) -> Result<(), Failure> {
        let (running, other) = kernels(&self.selected);
        // What is compared is read from the disk then.
        files::flush(esp)?;
        if files::digest(&esp.join(KERNELS).join(other))? != *kernel {
            return Err(failed(format!(
                "{other} on the ESP is not the kernel of the image: the tool did not copy it whole"
            )));
        }
        if !is(self.once.as_deref(), other) {
            return Err(failed(format!("the next boot would not start {other}")));
        }
        if !is(self.default.as_deref(), running) {
            return Err(failed(
                "the kernel that runs is no longer the one that starts by default",
            ));
        }
        Ok(())
    }
}
