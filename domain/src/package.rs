//! Debian packages, their versions and how they change.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// The name of a package, as deb-control(5) has it, with an architecture behind a colon where one is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageName(String);

impl PackageName {
    /// Reads a name: at least two of `a-z 0-9 + - .`, beginning with a letter or digit (Debian Policy section 5.6.1),
    /// and perhaps `:architecture`.
    ///
    /// # Errors
    /// The text is not such a name.
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
            Err(Invalid::new(
                field,
                format!("{text:?} is not the name of a Debian package"),
            ))
        }
    }

    /// The text.
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

/// The version of a package (deb-version(7)). Ordered as dpkg orders versions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageVersion(String);

impl PackageVersion {
    /// Reads a version.
    ///
    /// # Errors
    /// The text is not a version.
    pub fn parse(field: &'static str, text: &str) -> Result<Self, Invalid> {
        let bad = || {
            Invalid::new(
                field,
                format!("{text:?} is not the version of a Debian package"),
            )
        };
        let upstream = text.split_once(':').map_or(text, |(_, rest)| rest);
        let good = text.len() <= 256
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.~:".contains(&b))
            && upstream.bytes().next().is_some_and(|b| b.is_ascii_digit());
        if !good || debversion::Version::from_str(text).is_err() {
            return Err(bad());
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
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

/// A package that should be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedPackage {
    /// Which.
    pub name: PackageName,
    /// In this version; else in the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<PackageVersion>,
}

impl WantedPackage {
    /// Reads a list with one package a line, `name` or `name=version` as apt-get(8) takes them. Empty lines are skipped.
    ///
    /// # Errors
    /// Names the first line that is neither, or a package that stands twice.
    pub fn parse_list(field: &'static str, text: &str) -> Result<Vec<Self>, Invalid> {
        let mut list: Vec<Self> = Vec::new();
        let mut seen = HashSet::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, version) = match line.split_once('=') {
                None => (line, None),
                Some((name, version)) => (name, Some(PackageVersion::parse(field, version)?)),
            };
            let name = PackageName::parse(field, name)?;
            if !seen.insert(name.clone()) {
                return Err(Invalid::new(field, format!("{name} stands twice")));
            }
            list.push(Self { name, version });
        }
        Ok(list)
    }

    /// The list as text, one package a line.
    #[must_use]
    pub fn list_text(list: &[Self]) -> String {
        let lines: Vec<String> = list.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

impl fmt::Display for WantedPackage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            None => write!(f, "{}", self.name),
            Some(version) => write!(f, "{}={version}", self.name),
        }
    }
}

/// A package in an attempt: how it was, how it should be, how it was found afterwards. Versions are kept as the node
/// said them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageChange {
    /// Which.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version before; none if it was not installed.
    pub before: Option<String>,
    /// The version that the plan leads to; none if it is to be removed.
    pub wanted: Option<String>,
    /// What was found after the attempt; none until the node has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundPackage>,
}

impl PackageChange {
    /// Whether the package ended as the plan wanted it.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.found.as_ref().is_some_and(|found| {
            found.version == self.wanted && (self.wanted.is_none() || found.state == "installed")
        })
    }
}

/// A package as the node found it after an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundPackage {
    /// The version; none if it is not installed.
    pub version: Option<String>,
    /// dpkg's state, such as `installed` or `half-configured`.
    pub state: String,
}

/// A version of a package as nodes name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FoundVersion {
    /// Of which package.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version, as the node said it.
    pub version: String,
}

/// What a node found of one package after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageResult {
    /// Which.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// How it was found.
    pub found: FoundPackage,
}

/// Puts what was found to what was planned. What was not planned is left out.
pub fn settle(plan: &mut [PackageChange], results: &[PackageResult]) {
    for change in plan {
        let same = |result: &&PackageResult| {
            result.name == change.name && result.architecture == change.architecture
        };
        if let Some(result) = results.iter().find(same) {
            change.found = Some(result.found.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_shown_again() {
        let text = "curl=7.88.1-10+deb12u5\njq\n\n  libc6:amd64 \n";
        let list = WantedPackage::parse_list("updatePackages", text).expect("a list");
        assert_eq!(
            WantedPackage::list_text(&list),
            "curl=7.88.1-10+deb12u5\njq\nlibc6:amd64"
        );
    }

    #[test]
    fn what_a_shell_or_apt_would_read_otherwise_is_no_package() {
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
            assert!(
                WantedPackage::parse_list("updatePackages", bad).is_err(),
                "{bad}"
            );
        }
        let twice = WantedPackage::parse_list("updatePackages", "jq\njq=1.6").expect_err("twice");
        assert_eq!(twice.why, "jq stands twice");
    }

    #[test]
    fn versions_are_ordered_as_dpkg_orders_them() {
        let version = |text| PackageVersion::parse("version", text).expect("a version");
        let ascending = [
            "1.0~rc1", "1.0", "1.0-1", "1.0-1+b1", "1.2", "1.10", "1:0.1",
        ];
        for pair in ascending.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
        assert_eq!(version("1.0"), version("0:1.0"));
    }
}
