//! Debian packages, their versions and their changes.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::lookup::find_first;

/// Name of a package as in deb-control(5), with an optional architecture after a colon.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageName(String);

impl PackageName {
    /// Parses a name: at least two of `a-z 0-9 + - .`, beginning with a letter or digit (Debian Policy section 5.6.1), and
    /// optionally `:architecture`.
    ///
    /// # Errors
    /// The text is not a package name.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        let (name, architecture) = text.split_once(':').unwrap_or((text, "any"));
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let good = (2..=128).contains(&name.len())
            && name.bytes().all(|b| lower(b) || b"+-.".contains(&b))
            && name.bytes().next().is_some_and(lower)
            && (1..=32).contains(&architecture.len())
            && architecture.bytes().all(|b| lower(b) || b == b'-')
            && !architecture.starts_with('-');
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(Invalid::new(field, format!("{text:?} is not the name of a Debian package")))
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for PackageName {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::parse("package", &text)
    }
}

impl From<PackageName> for String {
    fn from(name: PackageName) -> Self {
        name.0
    }
}

/// Version of a package (deb-version(7)). Ordered as dpkg orders versions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageVersion(String);

impl PackageVersion {
    /// Parses a version.
    ///
    /// # Errors
    /// The text is not a version.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        let bad =
            || Invalid::new(field, format!("{text:?} is not the version of a Debian package"));
        let upstream = text.split_once(':').map_or(text, |(_, rest)| rest);
        let good = text.len() <= 256
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.~:".contains(&b))
            && upstream.bytes().next().is_some_and(|b| b.is_ascii_digit());
        if !good || debversion::Version::from_str(text).is_err() {
            return Err(bad());
        }
        Ok(Self(text.to_owned()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for PackageVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        let read = |version: &Self| debversion::Version::from_str(&version.0);
        match (read(self), read(other)) {
            (Ok(this), Ok(that)) => this.cmp(&that),
            _ => self.0.cmp(&other.0),
        }
    }
}

impl PartialOrd for PackageVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PackageVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PackageVersion {}

impl fmt::Display for PackageVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for PackageVersion {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::parse("version", &text)
    }
}

impl From<PackageVersion> for String {
    fn from(version: PackageVersion) -> Self {
        version.0
    }
}

/// A package that must be installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageRequirement {
    pub name: PackageName,
    /// The required version; `None` for the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<PackageVersion>,
}

impl PackageRequirement {
    /// Parses a list with one package a line, `name` or `name=version` as for apt-get(8). Skips empty lines.
    ///
    /// # Errors
    /// Names the first invalid line, or the first duplicate package.
    pub fn parse_list(field: &'static str, text: &str) -> Result<Vec<Self>, Invalid> {
        let mut list: Vec<Self> = Vec::new();
        let mut names = HashSet::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, version) = match line.split_once('=') {
                None => (line, None),
                Some((name, version)) => (name, Some(PackageVersion::parse(field, version)?)),
            };
            let name = PackageName::parse(field, name)?;
            if !names.insert(name.clone()) {
                return Err(Invalid::new(field, format!("{name} is listed twice")));
            }
            list.push(Self { name, version });
        }
        Ok(list)
    }

    /// Formats the list as text, one package a line.
    #[must_use]
    pub fn format_list(list: &[Self]) -> String {
        let lines: Vec<String> = list.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

impl fmt::Display for PackageRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            None => write!(f, "{}", self.name),
            Some(version) => write!(f, "{}={version}", self.name),
        }
    }
}

/// A package in a run: its version before, the desired version, and the version after. Versions are stored as the node
/// reported them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageChange {
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Version before the run; `None` if it was not installed.
    pub before: Option<String>,
    /// Version that the plan installs; `None` if the plan removes the package.
    pub desired: Option<String>,
    /// State after the run; `None` until the node has checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedPackage>,
    /// Suites and codenames that contain the desired version; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suites: Vec<String>,
    /// Labels of the repositories that contain the desired version; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<String>,
}

impl PackageChange {
    /// Whether the desired version is a security update; `None` if its suites are unknown, or if the package is removed.
    #[must_use]
    pub fn is_security(&self) -> Option<bool> {
        find_security(&self.suites, &self.origins)
    }

    /// Whether the package ended as planned.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| {
            observed.version == self.desired
                && (self.desired.is_none() || observed.state == "installed")
        })
    }
}

/// State of a package after a run, as the node observed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedPackage {
    /// The installed version; `None` if it is not installed.
    pub version: Option<String>,
    /// State of dpkg, such as `installed` or `half-configured`.
    pub state: String,
}

/// A package version as nodes report it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObservedVersion {
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Version as reported.
    pub version: String,
}

/// Result of one package after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageResult {
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Its state.
    pub observed: ObservedPackage,
}

/// Labels of repositories that contain only security updates.
const SECURITY_ORIGINS: &[&str] = &["Debian-Security", "UbuntuESM", "UbuntuESMApps"];

/// Whether a version is a security update, from the suites and codenames that contain it and the labels of their
/// repositories. One of these is sufficient:
///
/// - A suite ends with `-security`, as `bookworm-security`, `noble-security` and Ubuntu's `jammy-infra-security`, or with
///   `/updates`, as the security suites of Debian 10 and older (`buster/updates`).
/// - A repository has the label of Debian's security archive or of Ubuntu's extended maintenance.
///
/// A version that a point release has copied to the main suite remains one while the security suite contains it.
#[must_use]
pub fn is_security_update(suites: &[String], origins: &[String]) -> bool {
    let is_security_suite = |suite: &String| {
        let suite = suite.to_ascii_lowercase();
        suite.ends_with("-security") || suite.ends_with("/updates")
    };
    suites.iter().any(is_security_suite)
        || origins.iter().any(|origin| SECURITY_ORIGINS.contains(&origin.as_str()))
}

/// Whether a version is a security update; `None` if neither its suites nor its repositories are known, for example because
/// an agent of EIM reports it.
#[must_use]
pub fn find_security(suites: &[String], origins: &[String]) -> Option<bool> {
    let is_known = !suites.is_empty() || !origins.is_empty();
    is_known.then(|| is_security_update(suites, origins))
}

/// Adds the observed results to the planned changes. Of several results of a package, the first one is used. Ignores
/// packages that were not planned.
pub fn record_results<'a>(
    plan: &mut [PackageChange],
    results: impl IntoIterator<Item = &'a PackageResult>,
) {
    let results = results
        .into_iter()
        .map(|result| ((result.name.as_str(), result.architecture.as_str()), &result.observed));
    let planned = plan.iter().map(|change| (change.name.as_str(), change.architecture.as_str()));
    let observed = find_first(results, planned);
    for (change, observed) in plan.iter_mut().zip(observed) {
        if let Some(observed) = observed {
            change.observed = Some(observed.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_printed() {
        let text = "curl=7.88.1-10+deb12u5\njq\n\n  libc6:amd64 \n";
        let list = PackageRequirement::parse_list("updatePackages", text).expect("a list");
        assert_eq!(
            PackageRequirement::format_list(&list),
            "curl=7.88.1-10+deb12u5\njq\nlibc6:amd64"
        );
    }

    #[test]
    fn text_that_a_shell_or_apt_could_misread_is_rejected() {
        for bad in [
            "curl;reboot",
            "-o",
            "--allow",
            "curl jq",
            "$(id)",
            "Curl",
            "c",
            "curl=",
            "curl=-1",
            "curl=$(id)",
            "curl=a b",
            "curl/bookworm",
            "curl:",
            "curl:-o",
            "../x",
            "ä2",
        ] {
            assert!(PackageRequirement::parse_list("updatePackages", bad).is_err(), "{bad}");
        }
        let twice =
            PackageRequirement::parse_list("updatePackages", "jq\njq=1.6").expect_err("twice");
        assert_eq!(twice.why, "jq is listed twice");
    }

    #[test]
    fn a_security_update_is_recognized_by_its_suite_or_its_origin() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (suites, origins, expected) in [
            (&["bookworm-security", "oldstable-security"][..], &["Debian-Security"][..], true),
            (&["stable-security"], &[], true),
            (&["bookworm", "bookworm-security"], &["Debian", "Debian-Security"], true),
            (&["noble-security"], &["Ubuntu"], true),
            (&["jammy-infra-security"], &["UbuntuESM"], true),
            (&["jammy-apps-security"], &["UbuntuESMApps"], true),
            (&["buster/updates"], &[], true),
            (&[], &["Debian-Security"], true),
            (&["oldoldstable"], &["Debian-Security"], true),
            (&["bookworm"], &["Debian"], false),
            (&["bookworm-updates"], &["Debian"], false),
            (&["bookworm-backports"], &["Debian Backports"], false),
            (&["noble-updates"], &["Ubuntu"], false),
            (&["security-tools"], &["Security Tools"], false),
            (&["stable"], &["Debian-Security-Mirror"], false),
            (&[], &[], false),
        ] {
            let result = is_security_update(&texts(suites), &texts(origins));
            assert_eq!(result, expected, "{suites:?} {origins:?}");
            let is_known = !suites.is_empty() || !origins.is_empty();
            let found = find_security(&texts(suites), &texts(origins));
            assert_eq!(found, is_known.then_some(expected), "{suites:?} {origins:?}");
        }
    }

    #[test]
    fn versions_are_ordered_as_dpkg_orders_them() {
        let version = |text| PackageVersion::parse("version", text).expect("a version");
        let ascending = ["1.0~rc1", "1.0", "1.0-1", "1.0-1+b1", "1.2", "1.10", "1:0.1"];
        for pair in ascending.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
        assert_eq!(version("1.0"), version("0:1.0"));
    }
}
