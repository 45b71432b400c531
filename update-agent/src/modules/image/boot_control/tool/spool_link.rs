//! The paths and file extensions that the tool accepts.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::files::file_failure;
use crate::durable;
use crate::model::{Failure, FailureKind};
use crate::modules::image::device::storage_failure;
use crate::modules::image::spool::SpooledImage;
use crate::modules::image::unpack::ImageFormat;

/// Whether the tool accepts a path: it may have only letters, digits and `._/-`.
pub fn is_accepted_path(path: &Path) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    path.to_str().is_some_and(|path| path.bytes().all(is_letter))
}

/// The failure of an image that is compressed with zstd.
pub fn zstd_unsupported() -> Failure {
    Failure::new(
        FailureKind::Unsupported,
        "the image tool does not support zstd: publish the image as .raw, .raw.gz or .raw.xz",
    )
}

/// A hard link to a spooled file, with the extension by which the tool recognises the format.
/// Removed on drop.
#[derive(Debug)]
pub struct SpoolLink(PathBuf);

impl SpoolLink {
    /// Creates the link next to the file. Fails if the tool would not accept it.
    pub fn create(spooled: &SpooledImage) -> Result<Self, Failure> {
        let ending = match spooled.format {
            ImageFormat::Raw => "raw",
            ImageFormat::Gzip => "raw.gz",
            ImageFormat::Xz => "raw.xz",
            ImageFormat::Zstd => return Err(zstd_unsupported()),
        };
        let link = spooled.path.with_file_name(format!("image.{ending}"));
        if !is_accepted_path(&link) {
            return Err(Failure::new(
                FailureKind::Unsupported,
                format!(
                    "the image tool does not accept a path such as {}: use a state directory whose path has only letters, \
                     digits and ._/-",
                    link.display()
                ),
            ));
        }
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
