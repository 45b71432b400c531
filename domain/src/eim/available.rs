//! The update that is available for a node, as it is displayed.

use std::cmp::Ordering;

use serde_json::value::RawValue;

use crate::Time;
use crate::condition::{self, Condition, ConditionKind};
use crate::decide::NodeFacts;
use crate::os::{Image, OsKind, compare_versions};
use crate::text;

/// Maximum stored size of a node's list of available packages, in bytes.
pub const MAX_AVAILABLE_BYTES: usize = 500_000;

/// The update that is available for a node: the package list that the node sent, or the name of a newer image of its
/// profile. Empty if the node is up to date, `None` if nothing is known, so that the stored value stays.
///
/// A list that is too large is cut. An older image is not an update.
#[must_use]
pub fn available_update(facts: &NodeFacts, images: &[Image], reported: &str) -> Option<String> {
    match facts.os_kind {
        OsKind::Mutable => Some(cut_list(reported).0),
        OsKind::Immutable => newer_image_name(&facts.running, images),
    }
}

/// Raises the condition of a list of available packages that is too large, or clears it.
pub fn mark_cut_list(
    conditions: &mut Vec<Condition>,
    facts: &NodeFacts,
    reported: &str,
    now: Time,
) {
    let cut = match facts.os_kind {
        OsKind::Mutable => cut_list(reported).1,
        OsKind::Immutable => None,
    };
    let is_marked = conditions.iter().any(|one| {
        one.kind == ConditionKind::DetailCut && one.text.ends_with(condition::CUT_LIST_SUFFIX)
    });
    let covers = |kind| kind == ConditionKind::DetailCut && (is_marked || cut.is_some());
    let holds = cut.clone().map(|text| (ConditionKind::DetailCut, text));
    condition::replace(conditions, covers, holds, now);
}

/// The part of a package list that is stored, and the text of the condition if that is not all of it.
fn cut_list(reported: &str) -> (String, Option<String>) {
    let reported = text::storable(reported);
    if reported.len() <= MAX_AVAILABLE_BYTES {
        return (reported, None);
    }
    let suffix = condition::CUT_LIST_SUFFIX;
    let Ok(packages) = serde_json::from_str::<Vec<&RawValue>>(&reported) else {
        let text = format!("its list of packages is too long; {MAX_AVAILABLE_BYTES} bytes{suffix}");
        return (text::cut(&reported, MAX_AVAILABLE_BYTES), Some(text));
    };
    let mut stored = String::from("[");
    let mut count = 0;
    for package in &packages {
        if stored.len() + package.get().len() + 2 > MAX_AVAILABLE_BYTES {
            break;
        }
        if count > 0 {
            stored.push(',');
        }
        stored.push_str(package.get());
        count += 1;
    }
    stored.push(']');
    let all = packages.len();
    (stored, Some(format!("{all} packages could be updated; the first {count}{suffix}")))
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
