//! Revisions of profiles: which tags of a registry are wanted, and which one is the newer.

use std::cmp::Ordering;
use std::fmt;

use semver::{BuildMetadata, Prerelease, Version};

use crate::invalid::Invalid;

/// The longest tag that a registry knows, in bytes.
const LONGEST: usize = 128;

/// Which tags are wanted: one, or the patches of a release.
///
/// `0.3.1` and `main` mean that very tag. `~0.3.1` means 0.3.1 and every later patch of 0.3, but no pre-release;
/// `~0.3.1-dev` means pre-releases too, from this one on. `~0.3` and `~1` mean the releases of 0.3 and of 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    text: String,
    range: Range,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Range {
    Exactly,
    PatchesFrom(Version),
    Minor(u64, u64),
    Major(u64),
}

impl Wanted {
    /// Reads what is wanted.
    ///
    /// # Errors
    /// It is neither a tag nor a range.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let range = match text.strip_prefix('~') {
            None if is_tag(text) => Range::Exactly,
            None => return Err(bad("is no tag that a registry could have")),
            Some(_) if text.len() > LONGEST => return Err(bad("is too long")),
            Some(range) => read_range(range).ok_or_else(|| {
                bad("is no range; write ~0.3.1, ~0.3.1-dev, ~0.3 or ~0 for the patches of a release")
            })?,
        };
        Ok(Self {
            text: text.to_owned(),
            range,
        })
    }

    /// Whether a tag is wanted.
    #[must_use]
    pub fn admits(&self, tag: &str) -> bool {
        let is_release = |version: &Version| version.pre.is_empty();
        match &self.range {
            Range::Exactly => self.text == tag,
            Range::PatchesFrom(least) => read(tag).is_some_and(|version| {
                (version.major, version.minor) == (least.major, least.minor)
                    && version.cmp_precedence(least) != Ordering::Less
                    && (is_release(&version) || !is_release(least))
            }),
            Range::Minor(major, minor) => read(tag).is_some_and(|version| {
                (version.major, version.minor) == (*major, *minor) && is_release(&version)
            }),
            Range::Major(major) => {
                read(tag).is_some_and(|version| version.major == *major && is_release(&version))
            }
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Which of two revisions is the newer. None if one of them is no revision, such as the name of a branch. Two that
/// differ only in `v`, in leading zeros or in what follows a plus are equal.
#[must_use]
pub fn order(one: &str, other: &str) -> Option<Ordering> {
    Some(read(one)?.cmp_precedence(&read(other)?))
}

fn bad(why: &'static str) -> Invalid {
    Invalid::new("revision", why)
}

fn is_tag(text: &str) -> bool {
    let is_inside = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    text.len() <= LONGEST
        && text.bytes().all(is_inside)
        && text.bytes().next().is_some_and(|b| b != b'.' && b != b'-')
}

fn read_range(text: &str) -> Option<Range> {
    if let [major, rest @ ..] = text.split('.').collect::<Vec<_>>().as_slice() {
        match rest {
            [] => return Some(Range::Major(number(major)?)),
            [minor] => return Some(Range::Minor(number(major)?, number(minor)?)),
            _ => {}
        }
    }
    let least = read_numbers(text)?;
    least.build.is_empty().then_some(Range::PatchesFrom(least))
}

/// Reads a tag as a version: perhaps a `v`, three numbers, and what semver lets follow them.
fn read(tag: &str) -> Option<Version> {
    if tag.len() > LONGEST {
        return None;
    }
    read_numbers(tag.strip_prefix('v').unwrap_or(tag))
}

fn read_numbers(text: &str) -> Option<Version> {
    let (text, build) = match text.split_once('+') {
        Some((text, build)) => (text, not_empty(build)?),
        None => (text, ""),
    };
    let (numbers, pre) = match text.split_once('-') {
        Some((numbers, pre)) => (numbers, not_empty(pre)?),
        None => (text, ""),
    };
    let mut parts = numbers.split('.');
    let (major, minor, patch) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some(Version {
        major: number(major)?,
        minor: number(minor)?,
        patch: number(patch)?,
        pre: Prerelease::new(pre).ok()?,
        build: BuildMetadata::new(build).ok()?,
    })
}

/// A number with or without leading zeros: `24.04` is a release of Ubuntu.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

fn not_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted(text: &str) -> Wanted {
        Wanted::parse(text).expect("it can be wanted")
    }

    #[test]
    fn a_range_admits_the_patches_of_its_release() {
        for (range, admitted, refused) in [
            (
                "~0.3.1",
                "0.3.1 0.3.9 v0.3.6 0.3.1+meta 0.3.10",
                "0.3.0 0.4.0 0.3.2-dev 0.3.1-dev v1.3.6 main 0.3 0.3.1.5 vv0.3.6",
            ),
            (
                "~0.3.1-0",
                "0.3.2-dev 0.3.1 0.3.1-dev 0.3.1-0",
                "0.3.0 0.3.0-dev 0.4.0-dev",
            ),
            (
                "~0.3.1-dev",
                "0.3.1-dev 0.3.1-dev.1 0.3.2-alpha 0.3.1",
                "0.3.1-alpha 0.3.0 0.4.0",
            ),
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
            (
                "~24.04.20250217",
                "24.04.20250318 24.4.20250318",
                "24.04.20250216 24.10.20250318",
            ),
            ("~0.8.11", "0.8.11 0.8.12", "0.8.12-dev v1.8.12 0.8.9"),
            ("~0.8.0", "0.8.0", "main 0.8.12-dev sha256-ab.sig"),
        ] {
            let range = wanted(range);
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
            let wanted = wanted(text);
            assert!(wanted.admits(text) && !wanted.admits(other), "{text}");
            assert_eq!(wanted.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_tag_and_no_range_cannot_be_wanted() {
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
            let error = Wanted::parse(text).expect_err(text);
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
            assert_eq!(order(older, older), Some(Ordering::Equal), "{older}");
            for newer in &ascending[n + 1..] {
                assert_eq!(order(older, newer), Some(Ordering::Less), "{older} {newer}");
                assert_eq!(order(newer, older), Some(Ordering::Greater), "{newer}");
            }
        }
        assert_eq!(order("v0.3.1", "0.03.1+other"), Some(Ordering::Equal));
        for none in ["main", "3.0.20250504-0732", "1.2.3.4", "sha256-00.sig", ""] {
            assert_eq!(order(none, "0.3.1"), None, "{none}");
            assert_eq!(order("0.3.1", none), None, "{none}");
        }
    }

    /// A version as the tests see it: three numbers, and a word and a number if it is a pre-release.
    type Parts = (u64, u64, u64, Option<(String, u64)>);

    fn parts() -> impl Strategy<Value = Parts> {
        let pre = prop::option::of(("(alpha|dev|rc)", 0u64..3));
        (0u64..3, 0u64..3, 0u64..4, pre)
    }

    fn shown((major, minor, patch, pre): &Parts) -> String {
        match pre {
            None => format!("{major}.{minor}.{patch}"),
            Some((word, number)) => format!("{major}.{minor}.{patch}-{word}.{number}"),
        }
    }

    /// Makes tuples that compare as versions do: a release comes after all of its pre-releases.
    fn rank((major, minor, patch, pre): &Parts) -> (u64, u64, u64, bool, Option<(String, u64)>) {
        (*major, *minor, *patch, pre.is_none(), pre.clone())
    }

    proptest! {
        #[test]
        fn a_range_is_what_its_words_say(least in parts(), tag in parts(), v in any::<bool>(), zeros in 0usize..3) {
            let (numbers, pre) = ((least.0, least.1), least.3.is_some());
            let text = format!("{}{}{}", if v { "v" } else { "" }, "0".repeat(zeros), shown(&tag));
            let said = (tag.0, tag.1) == numbers
                && rank(&tag) >= rank(&least)
                && (tag.3.is_none() || pre);
            prop_assert_eq!(wanted(&format!("~{}", shown(&least))).admits(&text), said);
            let minor = (tag.0, tag.1) == numbers && tag.3.is_none();
            prop_assert_eq!(wanted(&format!("~{}.{}", least.0, least.1)).admits(&text), minor);
            let major = tag.0 == least.0 && tag.3.is_none();
            prop_assert_eq!(wanted(&format!("~{}", least.0)).admits(&text), major);
        }

        #[test]
        fn the_order_is_that_of_the_tuples(one in parts(), other in parts()) {
            prop_assert_eq!(order(&shown(&one), &shown(&other)), Some(rank(&one).cmp(&rank(&other))));
        }

        #[test]
        fn any_text_is_judged(text in "\\PC{0,40}", tag in "\\PC{0,40}") {
            let _ = order(&text, &tag);
            if let Ok(wanted) = Wanted::parse(&text) {
                let _ = wanted.admits(&tag);
                prop_assert_eq!(wanted.to_string(), text);
            }
        }
    }
}
