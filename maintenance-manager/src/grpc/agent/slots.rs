//! The image slots of a node, and the images that failed on it.

use std::collections::HashSet;

use evenkeel_domain::Time;
use evenkeel_domain::decide::QuarantinedImage;
use evenkeel_domain::instance::{FailedImage, ImageSlot};
use evenkeel_domain::lookup::find_first;
use evenkeel_domain::os::Sha256;
use evenkeel_domain::text::{cut, storable};
use evenkeel_proto::agent as wire;

/// The maximum number of failed images and of slots that are stored for a node.
const MAX_FAILED_IMAGES: usize = 256;
const MAX_SLOTS: usize = 8;

/// The maximum length of a name, state or version, and of a reason, in bytes.
const MAX_NAME_BYTES: usize = 256;
const MAX_REASON_BYTES: usize = 512;

/// The digests of the bad images.
pub fn bad_image_digests(reported: &[wire::BadImage]) -> Vec<Sha256> {
    distinct_files(reported).into_iter().map(|(sha256, _)| sha256).collect()
}

/// Merges the digests of the reported bad images with the stored ones: stored images keep their
/// time, images that are no longer reported are removed.
pub fn merge_bad_images(
    before: &[QuarantinedImage],
    reported: Vec<Sha256>,
    now: Time,
) -> Vec<QuarantinedImage> {
    let before = before.iter().map(|image| (&image.sha256, image.since));
    let since = find_first(before, &reported);
    let merged = reported
        .into_iter()
        .zip(since)
        .map(|(sha256, since)| QuarantinedImage { sha256, since: since.unwrap_or(now) });
    merged.collect()
}

/// The failed images, for the REST API.
pub fn failed_images(reported: &[wire::BadImage]) -> Vec<FailedImage> {
    let failed = distinct_files(reported).into_iter().map(|(sha256, image)| FailedImage {
        sha256: sha256.as_str().to_owned(),
        image_id: cut(&storable(&image.image_id), MAX_NAME_BYTES),
        reason: cut(&storable(&image.reason), MAX_REASON_BYTES),
    });
    failed.collect()
}

/// The image slots, for the REST API.
pub fn image_slots(reported: &[wire::ImageSlot]) -> Vec<ImageSlot> {
    let name = |text: &str| cut(&storable(text), MAX_NAME_BYTES);
    let slots = reported.iter().take(MAX_SLOTS).map(|slot| ImageSlot {
        name: name(&slot.name),
        state: name(&slot.state),
        image_id: name(&slot.image_id),
    });
    slots.collect()
}

/// The bad images by the digest of their file. Of several entries for a file the last one is used;
/// entries without a valid digest are skipped.
fn distinct_files(reported: &[wire::BadImage]) -> Vec<(Sha256, &wire::BadImage)> {
    let mut distinct = HashSet::new();
    let read = reported.iter().rev().filter_map(|image| {
        let sha256 = Sha256::parse("facts.bad_images", &image.sha256).ok()?;
        let is_new = sha256 != Sha256::NONE && distinct.insert(sha256.clone());
        is_new.then_some((sha256, image))
    });
    let mut last: Vec<_> = read.take(MAX_FAILED_IMAGES).collect();
    last.reverse();
    last
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};

    use super::*;

    fn digest(n: usize) -> String {
        format!("{n:064x}")
    }

    fn bad(sha256: &str, why: &str) -> wire::BadImage {
        wire::BadImage { sha256: sha256.into(), image_id: "3.0.2".into(), reason: why.into() }
    }

    #[test]
    fn a_known_image_keeps_its_time_and_an_unreported_one_is_forgotten() {
        let start = DateTime::UNIX_EPOCH;
        let later = start + TimeDelta::hours(1);
        let of = |all: &[QuarantinedImage]| -> Vec<_> {
            let one = |entry: &QuarantinedImage| (entry.sha256.as_str().to_owned(), entry.since);
            all.iter().map(one).collect()
        };
        let merge = |before: &[_], reported: &[_], now| {
            merge_bad_images(before, bad_image_digests(reported), now)
        };
        let first = merge(&[], &[bad(&digest(1), "a"), bad(&digest(2), "b")], start);
        assert_eq!(of(&first), [(digest(1), start), (digest(2), start)]);
        let then = merge(&first, &[bad(&digest(2), "c"), bad(&digest(3), "d")], later);
        assert_eq!(of(&then), [(digest(2), start), (digest(3), later)]);
        assert_eq!(merge(&then, &[], later), []);
    }

    #[test]
    fn entries_without_a_digest_are_skipped_and_the_last_report_of_a_file_wins() {
        let upper = "A".repeat(64);
        let reported = [
            bad(&digest(7), "first"),
            bad("", "nothing"),
            bad("deadbeef", "too short"),
            bad(&upper, "too loud"),
            bad(Sha256::NONE.as_str(), "no image"),
            bad(&digest(8), "a\0b"),
            bad(&digest(7), &"x".repeat(1_000)),
        ];
        let failed = failed_images(&reported);
        let digests: Vec<_> = failed.iter().map(|one| one.sha256.as_str()).collect();
        assert_eq!(digests, [digest(8), digest(7)]);
        assert_eq!(failed[0].reason, "a\u{fffd}b");
        assert!(failed[1].reason.ends_with("[cut]") && failed[1].reason.len() <= MAX_REASON_BYTES);
    }

    #[test]
    fn of_too_many_images_the_last_ones_are_stored() {
        let reported: Vec<_> = (1..=300).map(|n| bad(&digest(n), "")).collect();
        let merged = merge_bad_images(&[], bad_image_digests(&reported), DateTime::UNIX_EPOCH);
        assert_eq!(merged.len(), MAX_FAILED_IMAGES);
        assert_eq!(merged[0].sha256.as_str(), digest(45));
        assert_eq!(merged[255].sha256.as_str(), digest(300));
        let slots = vec![wire::ImageSlot::default(); 9];
        assert_eq!(image_slots(&slots).len(), MAX_SLOTS);
    }
}
