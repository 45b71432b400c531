//! The update that is available for a node, as it is displayed.

use std::cmp::Ordering;

use crate::decide::NodeFacts;
use crate::os::{Image, OsKind, compare_versions};
use crate::text;

/// Maximum stored size of a node's list of available packages, in bytes.
pub const MAX_AVAILABLE_BYTES: usize = 500_000;

/// The update that is available for a node: the package list that the node sent, or the name of a newer image of its
/// profile. Empty if the node is up to date, `None` if nothing is known, so that the stored value stays.
///
/// A list that is too large is dropped without rejecting the rest of the sample. An older image is not an update.
#[must_use]
pub fn available_update(facts: &NodeFacts, images: &[Image], reported: &str) -> Option<String> {
    match facts.os_kind {
        OsKind::Mutable => {
            // The storable text is at least as long.
            let reported =
                (reported.len() <= MAX_AVAILABLE_BYTES).then(|| text::storable(reported));
            reported.filter(|reported| reported.len() <= MAX_AVAILABLE_BYTES)
        }
        OsKind::Immutable => newer_image_name(&facts.running, images),
    }
}

/// Name of the newest image for the architecture of the running one, if it is newer than the running one. Empty if it
/// is not newer or the versions cannot be compared, `None` if there are no images.
#[must_use]
pub fn newer_image_name(running: &Image, images: &[Image]) -> Option<String> {
    let fits = |image: &&Image| image.fits(&running.architecture);
    let newest = Image::newest(images.iter().filter(fits))?;
    let order = compare_versions(&newest.image_id, &running.image_id);
    let is_newer = newest.os != running.os && order == Some(Ordering::Greater);
    Some(if is_newer { newest.name.clone() } else { String::new() })
}
