//! The paths and file extensions that the tool accepts.

use std::path::Path;

use super::super::hard_link::SpoolLink;
use crate::model::{Failure, FailureKind};
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

/// Links a spooled file with the extension by which the tool recognises the format. Fails if the
/// tool would not accept it.
pub fn create_link(spooled: &SpooledImage) -> Result<SpoolLink, Failure> {
    let ending = match spooled.format {
        ImageFormat::Raw => "raw",
        ImageFormat::Gzip => "raw.gz",
        ImageFormat::Xz => "raw.xz",
        ImageFormat::Zstd => return Err(zstd_unsupported()),
    };
    let name = format!("image.{ending}");
    let path = spooled.path.with_file_name(&name);
    if !is_accepted_path(&path) {
        return Err(Failure::new(
            FailureKind::Unsupported,
            format!(
                "the image tool does not accept a path such as {}: use a state directory whose path has only letters, digits \
                 and ._/-",
                path.display()
            ),
        ));
    }
    SpoolLink::create(spooled, &name)
}
