//! What a node with slots for images says of them, and of images that failed on it.

use std::collections::HashSet;

use evenkeel_domain::Time;
use evenkeel_domain::decide::KnownBad;
use evenkeel_domain::instance::{FailedImage, ImageSlot};
use evenkeel_domain::os::Sha256;
use evenkeel_domain::text::{cut, storable};
use evenkeel_proto::agent as wire;

/// The most images that failed that are kept of a node, and the most slots.
const MAX_FAILED: usize = 256;
const MAX_SLOTS: usize = 8;

/// The longest name, state or version, and the longest reason, in bytes.
const MAX_NAME: usize = 256;
const MAX_WHY: usize = 512;

/// The files that failed, by what the node says now and what was known before. What was known keeps its time; what is
/// not told any more is forgotten.
pub fn known(before: &[KnownBad], told: &[wire::BadImage], now: Time) -> Vec<KnownBad> {
    let since = |sha256: &Sha256| {
        let same = before.iter().find(|known| known.sha256 == *sha256);
        same.map_or(now, |known| known.since)
    };
    let known = files(told).into_iter().map(|(sha256, _)| KnownBad {
        since: since(&sha256),
        sha256,
    });
    known.collect()
}

/// The images that failed, for people.
pub fn failed(told: &[wire::BadImage]) -> Vec<FailedImage> {
    let failed = files(told).into_iter().map(|(sha256, image)| FailedImage {
        sha256: sha256.as_str().to_owned(),
        image_id: cut(&storable(&image.image_id), MAX_NAME),
        why: cut(&storable(&image.why), MAX_WHY),
    });
    failed.collect()
}

/// The slots, for people.
pub fn shown(told: &[wire::ImageSlot]) -> Vec<ImageSlot> {
    let name = |text: &str| cut(&storable(text), MAX_NAME);
    let slots = told.iter().take(MAX_SLOTS).map(|slot| ImageSlot {
        name: name(&slot.name),
        state: name(&slot.state),
        image_id: name(&slot.image_id),
    });
    slots.collect()
}

/// What failed, by the digest of its file: each once, the last ones. What names no file is left out, and all else that
/// the node says is taken.
fn files(told: &[wire::BadImage]) -> Vec<(Sha256, &wire::BadImage)> {
    let mut seen = HashSet::new();
    let read = told.iter().rev().filter_map(|image| {
        let sha256 = Sha256::parse("facts.bad_images", &image.sha256).ok()?;
        let is_new = sha256 != Sha256::NONE && seen.insert(sha256.clone());
        is_new.then_some((sha256, image))
    });
    let mut last: Vec<_> = read.take(MAX_FAILED).collect();
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
        wire::BadImage {
            sha256: sha256.into(),
            image_id: "3.0.2".into(),
            why: why.into(),
        }
    }

    #[test]
    fn what_is_known_keeps_its_time_and_what_is_not_told_any_more_is_forgotten() {
        let start = DateTime::UNIX_EPOCH;
        let later = start + TimeDelta::hours(1);
        let of = |all: &[KnownBad]| -> Vec<_> {
            let one = |known: &KnownBad| (known.sha256.as_str().to_owned(), known.since);
            all.iter().map(one).collect()
        };
        let first = known(&[], &[bad(&digest(1), "a"), bad(&digest(2), "b")], start);
        assert_eq!(of(&first), [(digest(1), start), (digest(2), start)]);
        let then = known(&first, &[bad(&digest(2), "c"), bad(&digest(3), "d")], later);
        assert_eq!(of(&then), [(digest(2), start), (digest(3), later)]);
        assert_eq!(known(&then, &[], later), []);
    }

    #[test]
    fn what_names_no_file_is_left_out_and_the_last_word_of_one_counts() {
        let upper = "A".repeat(64);
        let told = [
            bad(&digest(7), "first"),
            bad("", "nothing"),
            bad("deadbeef", "too short"),
            bad(&upper, "too loud"),
            bad(Sha256::NONE.as_str(), "no image"),
            bad(&digest(8), "a\0b"),
            bad(&digest(7), &"x".repeat(1_000)),
        ];
        let failed = failed(&told);
        let found: Vec<_> = failed.iter().map(|one| one.sha256.as_str()).collect();
        assert_eq!(found, [digest(8), digest(7)]);
        assert_eq!(failed[0].why, "a\u{fffd}b");
        assert!(failed[1].why.ends_with("[cut]") && failed[1].why.len() <= MAX_WHY);
    }

    #[test]
    fn of_too_many_the_last_ones_are_kept() {
        let told: Vec<_> = (1..=300).map(|n| bad(&digest(n), "")).collect();
        let known = known(&[], &told, DateTime::UNIX_EPOCH);
        assert_eq!(known.len(), MAX_FAILED);
        assert_eq!(known[0].sha256.as_str(), digest(45));
        assert_eq!(known[255].sha256.as_str(), digest(300));
        let slots = vec![wire::ImageSlot::default(); 9];
        assert_eq!(shown(&slots).len(), MAX_SLOTS);
    }
}
