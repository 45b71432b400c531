//! Ranges of affected versions in OSV records.

use evenkeel_domain::package::PackageVersion;
use serde::Deserialize;

use super::lenient::{BoundedList, LenientString};

/// Most events of a package that are compared. With more, the package counts as affected.
const MAX_COMPARED_EVENTS: usize = 64;

/// The affected versions of a package.
#[derive(Clone, Copy)]
pub(super) struct AffectedVersions<'a> {
    pub ranges: &'a BoundedList<VersionRange>,
    /// Affected versions besides those in the ranges.
    pub versions: &'a BoundedList<LenientString>,
}

#[derive(Deserialize)]
pub(super) struct VersionRange {
    #[serde(default, rename = "type")]
    kind: LenientString,
    #[serde(default)]
    events: BoundedList<RangeEvent>,
}

#[derive(Deserialize)]
struct RangeEvent {
    #[serde(default)]
    introduced: LenientString,
    #[serde(default)]
    fixed: LenientString,
    #[serde(default)]
    last_affected: LenientString,
}

impl AffectedVersions<'_> {
    /// Number of versions to compare with.
    pub fn count(self) -> usize {
        let events = self.ranges.entries.iter().map(|range| range.events.entries.len());
        self.versions.entries.len() + events.sum::<usize>().min(MAX_COMPARED_EVENTS)
    }

    /// Whether a version is affected, as OSV evaluates ranges. Also true if the version cannot be
    /// judged.
    pub fn include(self, installed: &str) -> bool {
        let ranges = self.ranges;
        let comparable = || ranges.entries.iter().filter(|range| range.kind.0 != "GIT");
        let events: usize = comparable().map(|range| range.events.entries.len()).sum();
        let is_cut = ranges.is_truncated
            || self.versions.is_truncated
            || comparable().any(|range| range.events.is_truncated);
        if is_cut
            || events > MAX_COMPARED_EVENTS
            || (events == 0 && self.versions.entries.is_empty())
        {
            return true;
        }
        let installed = without_rebuild(installed);
        if self.versions.entries.iter().any(|version| version.0 == installed) {
            return true;
        }
        let Ok(version) = PackageVersion::parse("version", installed) else {
            return true;
        };
        comparable().any(|range| range.includes(&version).unwrap_or(true))
    }
}

/// A version cannot be compared with those of a range.
struct Incomparable;

impl VersionRange {
    fn includes(&self, version: &PackageVersion) -> Result<bool, Incomparable> {
        let (mut introduced, mut ended): (Option<Bound>, Option<Bound>) = (None, None);
        for event in &self.events.entries {
            let introduction = Bound::parse(&event.introduced.0, version)?;
            introduced = introduced.max(introduction.filter(|bound| bound.reaches(version)));
            let fix = Bound::parse(&event.fixed.0, version)?;
            ended = ended.max(fix.filter(|bound| bound.reaches(version)));
            let last = Bound::parse(&event.last_affected.0, version)?;
            ended = ended.max(last.filter(|bound| bound.is_below(version)));
        }
        Ok(introduced.is_some() && introduced > ended)
    }
}

/// A version in a range. The first one, written `0`, is before every version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound(Option<PackageVersion>);

impl Bound {
    /// Reads a bound; none for the empty text.
    fn parse(text: &str, version: &PackageVersion) -> Result<Option<Self>, Incomparable> {
        match text {
            "" => return Ok(None),
            "0" => return Ok(Some(Self(None))),
            _ => {}
        }
        let bound = PackageVersion::parse("version", text).map_err(|_| Incomparable)?;
        // A binary package with another epoch is not numbered as its source package.
        if epoch(bound.as_str()) == epoch(version.as_str()) {
            Ok(Some(Self(Some(bound))))
        } else {
            Err(Incomparable)
        }
    }

    fn reaches(&self, version: &PackageVersion) -> bool {
        self.0.as_ref().is_none_or(|bound| bound <= version)
    }

    fn is_below(&self, version: &PackageVersion) -> bool {
        self.0.as_ref().is_none_or(|bound| bound < version)
    }
}

fn epoch(version: &str) -> &str {
    version.split_once(':').map_or("0", |(epoch, _)| epoch)
}

/// The version of the source of a package that was built again without a change: `1.2-3+b1` is
/// built from `1.2-3`.
fn without_rebuild(version: &str) -> &str {
    match version.rsplit_once("+b") {
        Some((source, number))
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            source
        }
        _ => version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        ranges: BoundedList<VersionRange>,
        #[serde(default)]
        versions: BoundedList<LenientString>,
    }

    fn includes(affected: &str, installed: &str) -> bool {
        let entry: Entry = serde_json::from_str(affected).expect("versions");
        AffectedVersions { ranges: &entry.ranges, versions: &entry.versions }.include(installed)
    }

    fn range(events: &str) -> String {
        format!(r#"{{"ranges":[{{"type":"ECOSYSTEM","events":[{events}]}}]}}"#)
    }

    #[test]
    fn a_version_is_affected_between_its_introduction_and_its_fix() {
        let fixed = range(r#"{"introduced":"0"},{"fixed":"7.88.1-10+deb12u4"}"#);
        let twice = range(r#"{"fixed":"3"},{"introduced":"5"},{"introduced":"1"},{"fixed":"7"}"#);
        let last = range(r#"{"introduced":"2"},{"last_affected":"4"}"#);
        for (affected, installed, is_affected) in [
            (&fixed, "7.88.1-10+deb12u3", true),
            (&fixed, "7.88.1-10", true),
            (&fixed, "7.88.1-10+deb12u4", false),
            (&fixed, "7.88.1-10+deb12u8", false),
            (&fixed, "7.88.1-10+deb12u4+b1", false),
            (&twice, "0.9", false),
            (&twice, "1", true),
            (&twice, "3", false),
            (&twice, "4", false),
            (&twice, "6", true),
            (&twice, "7", false),
            (&last, "1", false),
            (&last, "4", true),
            (&last, "4.1", false),
        ] {
            assert_eq!(includes(affected, installed), is_affected, "{affected} {installed}");
        }
    }

    #[test]
    fn a_listed_version_is_affected() {
        let listed = r#"{"versions":["1.0-1","1.0-2"]}"#;
        assert!(includes(listed, "1.0-2") && !includes(listed, "1.0-3"));
        let both = r#"{"versions":["9"],"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":"2"}]}]}"#;
        assert!(includes(both, "9") && includes(both, "1") && !includes(both, "3"));
    }

    #[test]
    fn a_version_that_cannot_be_judged_is_affected() {
        let fixed = range(r#"{"introduced":"0"},{"fixed":"2.03.16-2"}"#);
        let git = r#"{"ranges":[{"type":"GIT","events":[{"introduced":"0"},{"fixed":"abc"}]}]}"#;
        let many = range(&vec![r#"{"introduced":"0"},{"fixed":"1"}"#; 40].join(","));
        for (affected, installed) in [
            ("{}", "1"),
            (git, "1"),
            (&fixed, "no version"),
            // dmsetup is built from lvm2.
            (&fixed, "2:1.02.185-2"),
            (&range(r#"{"introduced":"0"},{"fixed":"?"}"#), "9"),
            (&many, "9"),
        ] {
            assert!(includes(affected, installed), "{affected} {installed}");
        }
    }
}
