//! Revisions of profiles: selects tags of a registry and compares them.

use std::cmp::Ordering;
use std::fmt;

use semver::{BuildMetadata, Prerelease, Version};

use crate::invalid::Invalid;

/// Maximum length of a tag in a registry, in bytes.
const MAX_TAG_BYTES: usize = 128;

/// Selects tags: one tag, or the patches of a release.
///
/// `0.3.1` and `main` select exactly that tag. `~0.3.1` selects 0.3.1 and every later patch of 0.3, but no pre-release;
/// `~0.3.1-dev` includes pre-releases from this one on. `~0.3` and `~1` select the releases of 0.3 and of 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RevisionSelector {
    text: String,
    range: RevisionRange,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RevisionRange {
    Exactly,
    PatchesFrom(Version),
    Minor(u64, u64),
    Major(u64),
}

impl RevisionSelector {
    /// Parses a selector.
    ///
    /// # Errors
    /// The text is neither a tag nor a range.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let range = match text.strip_prefix('~') {
            None if is_tag(text) => RevisionRange::Exactly,
            None => return Err(invalid_revision("is not a valid tag of a registry")),
            Some(_) if text.len() > MAX_TAG_BYTES => return Err(invalid_revision("is too long")),
            Some(range) => parse_range(range).ok_or_else(|| {
                invalid_revision("is not a range; write ~0.3.1, ~0.3.1-dev, ~0.3 or ~0 for the patches of a release")
            })?,
        };
        Ok(Self { text: text.to_owned(), range })
    }

    /// Whether a tag is selected.
    #[must_use]
    pub fn admits(&self, tag: &str) -> bool {
        let is_release = |version: &Version| version.pre.is_empty();
        match &self.range {
            RevisionRange::Exactly => self.text == tag,
            RevisionRange::PatchesFrom(least) => parse_version(tag).is_some_and(|version| {
                (version.major, version.minor) == (least.major, least.minor)
                    && version.cmp_precedence(least) != Ordering::Less
                    && (is_release(&version) || !is_release(least))
            }),
            RevisionRange::Minor(major, minor) => parse_version(tag).is_some_and(|version| {
                (version.major, version.minor) == (*major, *minor) && is_release(&version)
            }),
            RevisionRange::Major(major) => parse_version(tag)
                .is_some_and(|version| version.major == *major && is_release(&version)),
        }
    }
}

impl fmt::Display for RevisionSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Compares two revisions. `None` if one of them is not a revision, such as the name of a branch. Revisions that differ
/// only in a leading `v`, in leading zeros or in the build metadata after a plus are equal.
#[must_use]
pub fn compare_revisions(one: &str, other: &str) -> Option<Ordering> {
    Some(parse_version(one)?.cmp_precedence(&parse_version(other)?))
}

fn invalid_revision(why: &'static str) -> Invalid {
    Invalid::new("revision", why)
}

fn is_tag(text: &str) -> bool {
    let is_inside = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    text.len() <= MAX_TAG_BYTES
        && text.bytes().all(is_inside)
        && text.bytes().next().is_some_and(|b| b != b'.' && b != b'-')
}

fn parse_range(text: &str) -> Option<RevisionRange> {
    if let [major, rest @ ..] = text.split('.').collect::<Vec<_>>().as_slice() {
        match rest {
            [] => return Some(RevisionRange::Major(parse_number(major)?)),
            [minor] => {
                return Some(RevisionRange::Minor(parse_number(major)?, parse_number(minor)?));
            }
            _ => {}
        }
    }
    let least = parse_numbers(text)?;
    least.build.is_empty().then_some(RevisionRange::PatchesFrom(least))
}

/// Parses a tag as a version: an optional `v`, three numbers, and what semver allows after them.
fn parse_version(tag: &str) -> Option<Version> {
    if tag.len() > MAX_TAG_BYTES {
        return None;
    }
    parse_numbers(tag.strip_prefix('v').unwrap_or(tag))
}

fn parse_numbers(text: &str) -> Option<Version> {
    let (text, build) = match text.split_once('+') {
        Some((text, build)) => (text, non_empty(build)?),
        None => (text, ""),
    };
    let (numbers, pre) = match text.split_once('-') {
        Some((numbers, pre)) => (numbers, non_empty(pre)?),
        None => (text, ""),
    };
    let mut parts = numbers.split('.');
    let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some(Version {
        major: parse_number(major)?,
        minor: parse_number(minor)?,
        patch: parse_number(patch)?,
        pre: Prerelease::new(pre).ok()?,
        build: BuildMetadata::new(build).ok()?,
    })
}

/// Parses a number with or without leading zeros: `24.04` is a release of Ubuntu.
fn parse_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn selector(text: &str) -> RevisionSelector {
        RevisionSelector::parse(text).expect("a valid selector")
    }

    #[test]
    fn a_range_admits_the_patches_of_its_release() {
        for (range, admitted, refused) in [
            (
                "~0.3.1",
                "0.3.1 0.3.9 v0.3.6 0.3.1+meta 0.3.10",
                "0.3.0 0.4.0 0.3.2-dev 0.3.1-dev v1.3.6 main 0.3 0.3.1.5 vv0.3.6",
            ),
            ("~0.3.1-0", "0.3.2-dev 0.3.1 0.3.1-dev 0.3.1-0", "0.3.0 0.3.0-dev 0.4.0-dev"),
            ("~0.3.1-dev", "0.3.1-dev 0.3.1-dev.1 0.3.2-alpha 0.3.1", "0.3.1-alpha 0.3.0 0.4.0"),
            ("~0.3", "0.3.0 0.3.99", "0.4.0 0.3.1-dev 1.3.0"),
            ("~1", "1.0.0 1.9.3", "2.0.0 0.9.0 1.0.0-rc1"),
            (
                "~3.0.20250504",
                "3.0.20250504 3.0.20250717",
                "3.0.20250504-2200 3.0.20250717-2300 3.1.0",
            ),
            (
                "~3.0.20250504-2200",
                "3.0.20250504-2200 3.0.20250504-2300 3.0.20250717",
                "3.0.20250504-0732 3.0.20250504-2100 3.1.0",
            ),
            ("~24.04.20250217", "24.04.20250318 24.4.20250318", "24.04.20250216 24.10.20250318"),
            ("~0.8.11", "0.8.11 0.8.12", "0.8.12-dev v1.8.12 0.8.9"),
            ("~0.8.0", "0.8.0", "main 0.8.12-dev sha256-ab.sig"),
        ] {
            let range = selector(range);
            for tag in admitted.split(' ') {
                assert!(range.admits(tag), "{range} admits {tag}");
            }
            for tag in refused.split(' ') {
                assert!(!range.admits(tag), "{range} does not admit {tag}");
            }
        }
    }

    #[test]
    fn exactly_means_exactly() {
        for (text, other) in [("0.3.1", "v0.3.1"), ("main", "Main"), ("v1.0", "v1.0.0")] {
            let selector = selector(text);
            assert!(selector.admits(text) && !selector.admits(other), "{text}");
            assert_eq!(selector.to_string(), text);
        }
    }

    #[test]
    fn text_that_is_neither_a_tag_nor_a_range_is_rejected() {
        let long = format!("~0.3.{}", "1".repeat(200));
        for text in [
            "",
            "~",
            "~main",
            "~0.3.1.2",
            "~v0.3.1",
            "~0.3.1+meta",
            "~0.3.1-01",
            "~0.3.1-",
            "~-1",
            "~0..1",
            "~0.3.",
            ".3",
            "-3",
            "^0.3.1",
            ">=0.3.1",
            "0.3.1 ",
            "0.3.1/x",
            "a b",
            "é",
            "~99999999999999999999",
            long.as_str(),
            &long[1..],
        ] {
            let error = RevisionSelector::parse(text).expect_err(text);
            assert_eq!(error.field, "revision");
        }
    }

    #[test]
    fn revisions_are_ordered_by_their_numbers() {
        let ascending = [
            "0.3.1-alpha",
            "0.3.1-dev",
            "0.3.1",
            "0.3.9",
            "v0.3.10",
            "0.4.0-dev",
            "0.4.0",
            "1.0.0",
            "24.04.20250217",
            "24.4.20250318",
        ];
        for (n, older) in ascending.iter().enumerate() {
            assert_eq!(compare_revisions(older, older), Some(Ordering::Equal), "{older}");
            for newer in &ascending[n + 1..] {
                assert_eq!(
                    compare_revisions(older, newer),
                    Some(Ordering::Less),
                    "{older} {newer}"
                );
                assert_eq!(compare_revisions(newer, older), Some(Ordering::Greater), "{newer}");
            }
        }
        assert_eq!(compare_revisions("v0.3.1", "0.03.1+other"), Some(Ordering::Equal));
        for none in ["main", "3.0.20250504-0732", "1.2.3.4", "sha256-00.sig", ""] {
            assert_eq!(compare_revisions(none, "0.3.1"), None, "{none}");
            assert_eq!(compare_revisions("0.3.1", none), None, "{none}");
        }
    }

    /// Parts of a version: three numbers, and a word and a number for a pre-release.
    type Parts = (u64, u64, u64, Option<(String, u64)>);

    fn parts() -> impl Strategy<Value = Parts> {
        let pre = prop::option::of(("(alpha|dev|rc)", 0u64..3));
        (0u64..3, 0u64..3, 0u64..4, pre)
    }

    fn format_version((major, minor, patch, pre): &Parts) -> String {
        match pre {
            None => format!("{major}.{minor}.{patch}"),
            Some((label, number)) => format!("{major}.{minor}.{patch}-{label}.{number}"),
        }
    }

    /// A tuple that compares as versions do: a release comes after all of its pre-releases.
    fn rank((major, minor, patch, pre): &Parts) -> (u64, u64, u64, bool, Option<(String, u64)>) {
        (*major, *minor, *patch, pre.is_none(), pre.clone())
    }

    proptest! {
        #[test]
        fn a_range_admits_what_it_describes(least in parts(), tag in parts(), v in any::<bool>(), zeros in 0usize..3) {
            let (numbers, pre) = ((least.0, least.1), least.3.is_some());
            let text = format!("{}{}{}", if v { "v" } else { "" }, "0".repeat(zeros), format_version(&tag));
            let expected = (tag.0, tag.1) == numbers
                && rank(&tag) >= rank(&least)
                && (tag.3.is_none() || pre);
            prop_assert_eq!(selector(&format!("~{}", format_version(&least))).admits(&text), expected);
            let minor = (tag.0, tag.1) == numbers && tag.3.is_none();
            prop_assert_eq!(selector(&format!("~{}.{}", least.0, least.1)).admits(&text), minor);
            let major = tag.0 == least.0 && tag.3.is_none();
            prop_assert_eq!(selector(&format!("~{}", least.0)).admits(&text), major);
        }

        #[test]
        fn the_order_is_that_of_the_tuples(one in parts(), other in parts()) {
            prop_assert_eq!(compare_revisions(&format_version(&one), &format_version(&other)), Some(rank(&one).cmp(&rank(&other))));
        }

        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,40}", tag in "\\PC{0,40}") {
            let _ = compare_revisions(&text, &tag);
            if let Ok(selector) = RevisionSelector::parse(&text) {
                let _ = selector.admits(&tag);
                prop_assert_eq!(selector.to_string(), text);
            }
        }
    }
}
