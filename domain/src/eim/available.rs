//! What could be updated, for people to see.

use std::cmp::Ordering;

use crate::decide::NodeFacts;
use crate::os::{Image, OsKind, compare_versions};
use crate::text;

/// The most that is kept of a node's list of packages, in bytes (northbound section 1.3).
pub const MAX_AVAILABLE: usize = 500_000;

/// What could be updated on a node: the list of packages that it sent, or the name of a newer image of its profile; empty
/// if it has what is newest. None says that nothing is known, so that what was known before stays (M8).
///
/// A list that is too large is not kept, and nothing else is lost for it (M25). An older image is no update (M9).
#[must_use]
pub fn available(known: &NodeFacts, images: &[Image], said: &str) -> Option<String> {
    match known.os_kind {
        OsKind::Mutable => {
            let said = text::storable(said);
            (said.len() <= MAX_AVAILABLE).then_some(said)
        }
        OsKind::Immutable => available_for(&known.running, images),
    }
}

/// The name of the newest of some images, of those for the architecture of the one that runs, if it is newer than that;
/// empty if it is not, or cannot be compared with it. None if there are no images: then nothing is known.
#[must_use]
pub fn available_for(running: &Image, images: &[Image]) -> Option<String> {
    let fits = |image: &&Image| image.fits(&running.architecture);
    let newest = Image::newest(images.iter().filter(fits))?;
    let order = compare_versions(&newest.image_id, &running.image_id);
    let is_newer = newest.os != running.os && order == Some(Ordering::Greater);
    Some(if is_newer {
        newest.name.clone()
    } else {
        String::new()
    })
}
