//! What the tool can take: its paths, and its endings.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::files::broken;
use crate::durable;
use crate::model::{Failure, FailureKind};
use crate::modules::image::device::storage;
use crate::modules::image::spool::Spooled;
use crate::modules::image::unpack::Form;

/// The letters that the tool takes in a path.
pub fn is_taken(path: &Path) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._/-".contains(&byte);
    path.to_str()
        .is_some_and(|path| path.bytes().all(is_letter))
}

/// Why an image that is packed with zstd cannot be written.
pub fn no_zstd() -> Failure {
    Failure::new(
        FailureKind::Unsupported,
        "the image tool does not know zstd: publish the image as .raw, .raw.gz or .raw.xz",
    )
}

/// A second name of a spooled file, with the ending by which the tool knows its form.
#[derive(Debug)]
pub struct Link(PathBuf);

impl Link {
    /// Makes it beside the file. Fails if the tool would not take it.
    pub fn make(spooled: &Spooled) -> Result<Self, Failure> {
        let ending = match spooled.form {
            Form::Raw => "raw",
            Form::Gzip => "raw.gz",
            Form::Xz => "raw.xz",
            Form::Zstd => return Err(no_zstd()),
        };
        let link = spooled.path.with_file_name(format!("image.{ending}"));
        if !is_taken(&link) {
            return Err(Failure::new(
                FailureKind::Unsupported,
                format!(
                    "the image tool takes no path such as {}: put the state folder where names have letters, digits and \
                     ._/- only",
                    link.display()
                ),
            ));
        }
        durable::remove(&link).map_err(broken)?;
        fs::hard_link(&spooled.path, &link)
            .map_err(|error| storage(format!("cannot make {}: {error}", link.display())))?;
        Ok(Self(link))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // What stays goes when the next one is made.
        fs::remove_file(&self.0).ok();
    }
}
