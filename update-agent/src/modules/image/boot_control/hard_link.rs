//! Another name for a spooled file, for programs that recognise the format by the name.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::file_failure;
use crate::durable;
use crate::model::Failure;
use crate::modules::image::device::storage_failure;
use crate::modules::image::spool::SpooledImage;

/// A hard link to a spooled file. Removed on drop.
#[derive(Debug)]
pub struct SpoolLink(PathBuf);

impl SpoolLink {
    /// Creates the link with this name next to the file.
    pub fn create(spooled: &SpooledImage, name: &str) -> Result<Self, Failure> {
        let link = spooled.path.with_file_name(name);
        durable::remove_file(&link).map_err(file_failure)?;
        fs::hard_link(&spooled.path, &link).map_err(|error| {
            storage_failure(format!("cannot create {}: {error}", link.display()))
        })?;
        Ok(Self(link))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SpoolLink {
    fn drop(&mut self) {
        // If this fails, the next `create` removes the link.
        fs::remove_file(&self.0).ok();
    }
}
