//! What a policy and the machine's owner leave out: suites, names, and versions that are too young. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::parse::{Install, Simulation};
use super::plan::named;
use crate::model::{Failure, FailureKind, PackageMode, PackageRules, PackageWish};
use crate::owner::OwnerLimits;

/// The suites that packages may come from. Both must let one through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suites {
    policy: Vec<String>,
    owner: Vec<String>,
}

impl Suites {
    /// Those of a policy and an owner.
    pub fn of(rules: &PackageRules, limits: &OwnerLimits) -> Self {
        Self {
            policy: rules.suites.clone(),
            owner: limits.suites.clone(),
        }
    }

    /// Whether any suite is left out.
    pub fn are_limited(&self) -> bool {
        !self.policy.is_empty() || !self.owner.is_empty()
    }

    /// Whether a suite with these names is let through.
    pub fn let_through(&self, names: &BTreeSet<String>) -> bool {
        are_among(names, &self.policy) && are_among(names, &self.owner)
    }

    /// That no source has them.
    pub fn missing(&self) -> Failure {
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

/// Whether one of the names is in a list of suites; no list has all.
pub fn are_among(names: &BTreeSet<String>, suites: &[String]) -> bool {
    suites.is_empty() || suites.iter().any(|suite| names.contains(suite))
}

/// Whether a name fits a pattern with `*` and `?`.
pub fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut here) = (0, 0);
    // Where the last `*` was, and up to where it was tried.
    let mut star: Option<(usize, usize)> = None;
    while here < name.len() {
        match (pattern.get(at), name.get(here)) {
            (Some(b'*'), _) => {
                star = Some((at, here));
                at += 1;
            }
            (Some(wanted), Some(found)) if *wanted == b'?' || wanted == found => {
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

/// Whether a policy leaves a package as it is, by its name.
pub fn is_excluded(rules: &PackageRules, package: &str) -> bool {
    let name = package.split(':').next().unwrap_or_default();
    rules.exclude.iter().any(|pattern| fits(pattern, name))
}

/// A package as apt says it, and a version of it.
pub type Version = (String, String);

/// The versions that apt would take although they may not be taken. What a wish names with its version is taken.
pub fn offenders(wish: &PackageWish, simulation: &Simulation, native: &str) -> BTreeSet<Version> {
    let settled = settled(wish);
    let young = |install: &Install| {
        let known = settled.get(&(install.name(), install.after.as_str()));
        let same = |architecture: &str| {
            architecture == install.architecture
                || architecture == "all"
                || install.architecture == "all"
        };
        wish.rules.min_age_days > 0
            && !known.is_some_and(|known| known.iter().any(|&architecture| same(architecture)))
    };
    let older = |install: &Install| {
        wish.mode == PackageMode::Latest
            && !wish.rules.allow_downgrades
            && simulation.downgrades.contains(&install.package)
    };
    let offends = |install: &&Install| {
        !is_named(wish, install, native)
            && (is_excluded(&wish.rules, &install.package) || young(install) || older(install))
    };
    let offenders = simulation.installs.iter().filter(offends);
    offenders
        .map(|install| (install.package.clone(), install.after.clone()))
        .collect()
}

/// The architectures in which a version of a name is old enough.
fn settled(wish: &PackageWish) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut settled: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for known in &wish.settled {
        let version = (known.name.as_str(), known.version.as_str());
        settled
            .entry(version)
            .or_default()
            .push(known.architecture.as_str());
    }
    settled
}

fn is_named(wish: &PackageWish, install: &Install, native: &str) -> bool {
    let PackageMode::Exactly(packages) = &wish.mode else {
        return false;
    };
    packages.iter().any(|package| {
        package.version.as_ref() == Some(&install.after)
            && named(&package.name, native) == install.package
    })
}

/// Preferences that keep apt from taking what is excluded, and the versions that were found to offend. `apt_preferences`
/// says what they mean; a priority below zero is never taken.
pub fn pins(rules: &PackageRules, offenders: &BTreeSet<Version>) -> String {
    let mut text = String::new();
    let mut pin = |packages: &str, version: &str| {
        // Writing to a String does not fail.
        write!(
            text,
            "Package: {packages}\nPin: version {version}\nPin-Priority: -1\n\n"
        )
        .ok();
    };
    if !rules.exclude.is_empty() {
        let patterns = rules.exclude.iter().map(|pattern| {
            // apt reads a lone `*` as something else, and knows no version for it.
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
    use crate::model::{KnownVersion, WantedPackage};

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
            assert_eq!(fits(pattern, name), expected, "{pattern} and {name}");
        }
    }

    fn install(package: &str, version: &str, architecture: &str) -> Install {
        Install {
            package: package.into(),
            before: Some("0".into()),
            after: version.into(),
            architecture: architecture.into(),
            origins: Vec::new(),
        }
    }

    fn known(name: &str, architecture: &str, version: &str) -> KnownVersion {
        KnownVersion {
            name: name.into(),
            architecture: architecture.into(),
            version: version.into(),
        }
    }

    fn names(offenders: &BTreeSet<Version>) -> Vec<&str> {
        offenders.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn only_versions_that_are_old_enough_are_taken() {
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
        let mut wish = PackageWish::new(PackageMode::Latest);
        wish.settled = vec![
            known("old", "amd64", "1"),
            known("newer", "amd64", "1"),
            known("now-all", "amd64", "1"),
        ];
        assert!(offenders(&wish, &simulation, "amd64").is_empty());
        wish.rules.min_age_days = 3;
        let offenders = offenders(&wish, &simulation, "amd64");
        assert_eq!(names(&offenders), ["newer", "old:i386", "unheard"]);
    }

    #[test]
    fn what_is_excluded_or_older_is_not_taken_unless_it_was_named_with_its_version() {
        let simulation = Simulation {
            installs: vec![
                install("linux-image-amd64", "2", "amd64"),
                install("demo", "1", "all"),
                install("older:i386", "1", "i386"),
            ],
            downgrades: vec!["older:i386".into()],
            ..Simulation::default()
        };
        let mut wish = PackageWish::new(PackageMode::Latest);
        wish.rules.exclude = vec!["linux-*".into()];
        let found = offenders(&wish, &simulation, "amd64");
        assert_eq!(names(&found), ["linux-image-amd64", "older:i386"]);

        wish.rules.min_age_days = 1;
        wish.mode = PackageMode::Exactly(vec![WantedPackage {
            name: "demo:amd64".into(),
            version: Some("1".into()),
        }]);
        let found = offenders(&wish, &simulation, "amd64");
        assert_eq!(names(&found), ["linux-image-amd64", "older:i386"]);
    }

    #[test]
    fn preferences_name_patterns_and_versions() {
        let rules = PackageRules {
            exclude: vec!["linux-*".into(), "*".into()],
            ..PackageRules::default()
        };
        let offenders = [("demo:i386".to_owned(), "1:2.0~x".to_owned())].into();
        assert_eq!(
            pins(&rules, &offenders),
            "Package: linux-* linux-*:any ?* ?*:any\nPin: version *\nPin-Priority: -1\n\n\
             Package: demo:i386\nPin: version 1:2.0~x\nPin-Priority: -1\n\n"
        );
        assert_eq!(pins(&PackageRules::default(), &BTreeSet::new()), "");
    }

    #[test]
    fn a_suite_must_be_let_through_by_the_policy_and_by_the_owner() {
        let names = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|&name| name.to_owned()).collect()
        };
        let security = names(&["bookworm-security", "oldstable-security"]);
        let suites = |policy: &[&str], owner: &[&str]| Suites {
            policy: policy.iter().map(|&name| name.to_owned()).collect(),
            owner: owner.iter().map(|&name| name.to_owned()).collect(),
        };
        assert!(!suites(&[], &[]).are_limited());
        assert!(suites(&[], &[]).let_through(&security));
        let both = suites(&["bookworm-security"], &["oldstable-security"]);
        assert!(both.let_through(&security));
        assert!(!both.let_through(&names(&["bookworm", "oldstable"])));
        assert!(!suites(&["bookworm-security"], &["stable"]).let_through(&security));
        let missing = suites(&["a", "b"], &["c"]).missing();
        assert_eq!(missing.kind, FailureKind::Limits);
        assert_eq!(
            missing.reason,
            "no source has a suite that the policy names (a, b) and the machine's owner allows (c)"
        );
    }
}
