//! The rules of the policy and the machine's owner: suites, names and minimum age of versions. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::parse::{PlannedInstall, Simulation};
use super::plan::strip_native_architecture;
use crate::model::{Failure, FailureKind, PackageMode, PackageRules, PackageSpec};
use crate::owner::{OwnerLimits, SourceSuite};

/// The suites that packages may come from. Policy and owner must both allow a suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedSuites {
    policy: Vec<String>,
    owner: Vec<String>,
}

impl AllowedSuites {
    /// The allowed suites of a policy and an owner.
    pub fn new(rules: &PackageRules, limits: &OwnerLimits) -> Self {
        Self { policy: rules.suites.clone(), owner: limits.suites.clone() }
    }

    /// Whether any suite is excluded.
    pub fn is_limited(&self) -> bool {
        !self.policy.is_empty() || !self.owner.is_empty()
    }

    /// Whether the policy allows a suite with these names, which may come from its Release file.
    pub fn policy_allows(&self, names: &BTreeSet<String>) -> bool {
        self.policy.is_empty() || self.policy.iter().any(|suite| names.contains(suite))
    }

    /// Whether the owner allows a suite. Only its name in the source counts: a repository could use
    /// any name in its Release file.
    pub fn owner_allows(&self, suite: SourceSuite<'_>) -> bool {
        suite.is_allowed(&self.owner)
    }

    /// The failure if no source has an allowed suite.
    pub fn missing_failure(&self) -> Failure {
        let policy = self.policy.join(", ");
        let owner = self.owner.join(", ");
        let (kind, reason) = match (self.policy.is_empty(), self.owner.is_empty()) {
            (_, true) => (
                FailureKind::Plan,
                format!("no source has the suites that the policy names: {policy}"),
            ),
            (true, false) => (
                FailureKind::Limits,
                format!("no source has the suites that the machine's owner allows: {owner}"),
            ),
            (false, false) => (
                FailureKind::Limits,
                format!(
                    "no source has a suite that the policy names ({policy}) and the machine's owner allows ({owner})"
                ),
            ),
        };
        Failure::new(kind, reason)
    }
}

/// Whether a name matches a pattern with `*` and `?`.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut here) = (0, 0);
    // Position of the last `*`, and up to where it was tried.
    let mut star: Option<(usize, usize)> = None;
    while here < name.len() {
        match (pattern.get(at), name.get(here)) {
            (Some(b'*'), _) => {
                star = Some((at, here));
                at += 1;
            }
            (Some(expected), Some(actual)) if *expected == b'?' || expected == actual => {
                at += 1;
                here += 1;
            }
            _ => {
                let Some((before, tried)) = star else {
                    return false;
                };
                star = Some((before, tried + 1));
                at = before + 1;
                here = tried + 1;
            }
        }
    }
    pattern.iter().skip(at).all(|left| *left == b'*')
}

/// Whether a policy excludes a package by its name.
pub fn is_excluded(rules: &PackageRules, package: &str) -> bool {
    let name = package.split(':').next().unwrap_or_default();
    rules.exclude.iter().any(|pattern| matches_pattern(pattern, name))
}

/// Name of a package in apt, and a version of it.
pub type AptVersion = (String, String);

/// The versions that apt would install against the rules. A version that the spec requires explicitly is allowed.
pub fn find_offenders(
    spec: &PackageSpec,
    simulation: &Simulation,
    native: &str,
) -> BTreeSet<AptVersion> {
    let aged_versions = AgedVersions::new(spec);
    let older = |install: &PlannedInstall| {
        spec.mode == PackageMode::Latest
            && !spec.rules.allow_downgrades
            && simulation.downgrades.contains(&install.package)
    };
    let offends = |install: &&PlannedInstall| {
        !is_requested(spec, install, native)
            && (is_excluded(&spec.rules, &install.package)
                || aged_versions.is_too_young(install)
                || older(install))
    };
    let offenders = simulation.installs.iter().filter(offends);
    offenders.map(|install| (install.package.clone(), install.after.clone())).collect()
}

/// The versions that are old enough for a policy.
#[derive(Debug)]
pub struct AgedVersions<'a> {
    has_minimum: bool,
    /// The architectures in which a version of a package is old enough.
    architectures: BTreeMap<(&'a str, &'a str), Vec<&'a str>>,
}

impl<'a> AgedVersions<'a> {
    pub fn new(spec: &'a PackageSpec) -> Self {
        let mut architectures: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for aged in &spec.aged_versions {
            let version = (aged.name.as_str(), aged.version.as_str());
            architectures.entry(version).or_default().push(aged.architecture.as_str());
        }
        Self { has_minimum: spec.rules.min_age_days > 0, architectures }
    }

    /// Whether a version is younger than the policy allows.
    pub fn is_too_young(&self, install: &PlannedInstall) -> bool {
        let same = |architecture: &str| {
            architecture == install.architecture
                || architecture == "all"
                || install.architecture == "all"
        };
        let architectures = self.architectures.get(&(install.name(), install.after.as_str()));
        self.has_minimum
            && !architectures.is_some_and(|architectures| {
                architectures.iter().any(|&architecture| same(architecture))
            })
    }
}

fn is_requested(spec: &PackageSpec, install: &PlannedInstall, native: &str) -> bool {
    let PackageMode::Exactly(packages) = &spec.mode else {
        return false;
    };
    packages.iter().any(|package| {
        package.version.as_ref() == Some(&install.after)
            && strip_native_architecture(&package.name, native) == install.package
    })
}

/// Preferences that keep apt from installing excluded packages and the given versions. See `apt_preferences(5)`: a priority
/// below zero prevents the installation.
pub fn pin_preferences(rules: &PackageRules, offenders: &BTreeSet<AptVersion>) -> String {
    let mut text = String::new();
    let mut pin = |packages: &str, version: &str| {
        // Writing to a String does not fail.
        write!(text, "Package: {packages}\nPin: version {version}\nPin-Priority: -1\n\n").ok();
    };
    if !rules.exclude.is_empty() {
        let patterns = rules.exclude.iter().map(|pattern| {
            // apt interprets a lone `*` differently and matches no version.
            let pattern = match pattern.as_str() {
                "*" => "?*",
                pattern => pattern,
            };
            format!("{pattern} {pattern}:any")
        });
        pin(&patterns.collect::<Vec<_>>().join(" "), "*");
    }
    for (package, version) in offenders {
        pin(package, version);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{PackageRequirement, PackageVersion};

    #[test]
    fn a_pattern_fits_as_in_the_shell() {
        for (pattern, name, expected) in [
            ("linux-*", "linux-image-amd64", true),
            ("linux-*", "util-linux", false),
            ("*linux*", "util-linux-extra", true),
            ("lib?", "libc", true),
            ("lib?", "lib", false),
            ("lib?", "libc6", false),
            ("*", "anything", true),
            ("*a*b*c", "xxaxxbxbxc", true),
            ("*a*b*c", "xxaxxbxbx", false),
            ("", "", true),
            ("", "a", false),
            ("curl", "curl", true),
            ("curl", "libcurl", false),
            ("g++*", "g++-12", true),
            ("**", "x", true),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} and {name}");
        }
    }

    fn install(package: &str, version: &str, architecture: &str) -> PlannedInstall {
        PlannedInstall {
            package: package.into(),
            before: Some("0".into()),
            after: version.into(),
            architecture: architecture.into(),
            origins: Vec::new(),
        }
    }

    fn version(name: &str, architecture: &str, version: &str) -> PackageVersion {
        PackageVersion {
            name: name.into(),
            architecture: architecture.into(),
            version: version.into(),
        }
    }

    fn names(offenders: &BTreeSet<AptVersion>) -> Vec<&str> {
        offenders.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn only_settled_versions_are_taken() {
        let simulation = Simulation {
            installs: vec![
                install("old", "1", "amd64"),
                install("old:i386", "1", "i386"),
                install("newer", "2", "amd64"),
                install("now-all", "1", "all"),
                install("unheard", "1", "amd64"),
            ],
            ..Simulation::default()
        };
        let mut spec = PackageSpec::new(PackageMode::Latest);
        spec.aged_versions = vec![
            version("old", "amd64", "1"),
            version("newer", "amd64", "1"),
            version("now-all", "amd64", "1"),
        ];
        assert!(find_offenders(&spec, &simulation, "amd64").is_empty());
        spec.rules.min_age_days = 3;
        let offenders = find_offenders(&spec, &simulation, "amd64");
        assert_eq!(names(&offenders), ["newer", "old:i386", "unheard"]);
    }

    #[test]
    fn excluded_and_older_versions_are_not_taken_unless_requested_exactly() {
        let simulation = Simulation {
            installs: vec![
                install("linux-image-amd64", "2", "amd64"),
                install("demo", "1", "all"),
                install("older:i386", "1", "i386"),
            ],
            downgrades: vec!["older:i386".into()],
            ..Simulation::default()
        };
        let mut spec = PackageSpec::new(PackageMode::Latest);
        spec.rules.exclude = vec!["linux-*".into()];
        let excluded = find_offenders(&spec, &simulation, "amd64");
        assert_eq!(names(&excluded), ["linux-image-amd64", "older:i386"]);

        spec.rules.min_age_days = 1;
        spec.mode = PackageMode::Exactly(vec![PackageRequirement {
            name: "demo:amd64".into(),
            version: Some("1".into()),
        }]);
        let excluded = find_offenders(&spec, &simulation, "amd64");
        assert_eq!(names(&excluded), ["linux-image-amd64", "older:i386"]);
    }

    #[test]
    fn pins_name_patterns_and_versions() {
        let rules =
            PackageRules { exclude: vec!["linux-*".into(), "*".into()], ..PackageRules::default() };
        let offenders = [("demo:i386".to_owned(), "1:2.0~x".to_owned())].into();
        assert_eq!(
            pin_preferences(&rules, &offenders),
            "Package: linux-* linux-*:any ?* ?*:any\nPin: version *\nPin-Priority: -1\n\n\
             Package: demo:i386\nPin: version 1:2.0~x\nPin-Priority: -1\n\n"
        );
        assert_eq!(pin_preferences(&PackageRules::default(), &BTreeSet::new()), "");
    }

    #[test]
    fn a_suite_must_be_allowed_by_policy_and_owner() {
        let names = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|&name| name.to_owned()).collect()
        };
        let security = names(&["bookworm-security", "oldstable-security"]);
        let suites = |policy: &[&str], owner: &[&str]| AllowedSuites {
            policy: policy.iter().map(|&name| name.to_owned()).collect(),
            owner: owner.iter().map(|&name| name.to_owned()).collect(),
        };
        assert!(!suites(&[], &[]).is_limited());
        assert!(suites(&[], &[]).policy_allows(&security));
        let both = suites(&["bookworm-security"], &["oldstable-security"]);
        assert!(both.policy_allows(&security));
        assert!(!both.policy_allows(&names(&["bookworm", "oldstable"])));
        let source = |suite| SourceSuite { uri: "http://x", suite, is_own: true };
        assert!(both.owner_allows(source("oldstable-security")));
        assert!(!both.owner_allows(source("bookworm-security")));
        let missing = suites(&["a", "b"], &["c"]).missing_failure();
        assert_eq!(missing.kind, FailureKind::Limits);
        assert_eq!(
            missing.reason,
            "no source has a suite that the policy names (a, b) and the machine's owner allows (c)"
        );
    }
}
