//! Validates names, versions, rules and sources of a spec. They come from the server and are passed to apt on its command
//! line, where some characters have a special meaning. Names that do not follow Debian's policy are rejected here.

use std::collections::BTreeSet;

use evenkeel_domain::package_source;

use super::rules::is_excluded;
use crate::model::{Failure, FailureKind, PackageMode, PackageSpec};

/// Most packages in one spec.
const MAX_PACKAGES: usize = 10_000;

/// Most suites or patterns in one spec, and the longest of them in bytes.
const MAX_RULES: usize = 1_000;
const MAX_RULE_BYTES: usize = 200;

/// Rejects a spec that must not be passed to apt.
pub fn validate(spec: &PackageSpec) -> Result<(), Failure> {
    if let PackageMode::Exactly(packages) = &spec.mode {
        if packages.len() > MAX_PACKAGES {
            return Err(invalid_spec(format!(
                "{} packages are requested, more than {MAX_PACKAGES}",
                packages.len()
            )));
        }
        if packages.is_empty() {
            return Err(invalid_spec("no package is named".to_owned()));
        }
        let mut names = BTreeSet::new();
        for package in packages {
            if !names.insert(&package.name) {
                return Err(invalid_spec(format!("{} is named twice", package.name)));
            }
            if !is_name(&package.name) {
                return Err(invalid_spec(format!("{:?} is not a package name", package.name)));
            }
            let version = package.version.as_deref();
            if let Some(version) = version.filter(|version| !is_version(version)) {
                return Err(invalid_spec(format!(
                    "{version:?} is not a version of {}",
                    package.name
                )));
            }
        }
    }
    validate_rules(spec)?;
    spec.sources.iter().try_for_each(|stanza| {
        package_source::check(stanza)
            .map_err(|why| invalid_spec(format!("a source is not usable: {why}")))
    })
}

/// Validates suites, which are compared with names, and patterns, which are written to a preferences file of apt.
fn validate_rules(spec: &PackageSpec) -> Result<(), Failure> {
    let rules = &spec.rules;
    if rules.suites.len() > MAX_RULES || rules.exclude.len() > MAX_RULES {
        return Err(invalid_spec(format!("more than {MAX_RULES} suites or patterns are named")));
    }
    if let Some(suite) = rules.suites.iter().find(|suite| !is_suite(suite)) {
        return Err(invalid_spec(format!("{suite:?} is not a suite")));
    }
    let pattern = rules.exclude.iter().find(|pattern| !is_pattern(pattern));
    if let Some(pattern) = pattern {
        return Err(invalid_spec(format!("{pattern:?} is not a pattern of package names")));
    }
    let PackageMode::Exactly(packages) = &spec.mode else {
        return Ok(());
    };
    match packages.iter().find(|package| is_excluded(rules, &package.name)) {
        Some(package) => Err(invalid_spec(format!(
            "{} is requested and excluded by the same policy",
            package.name
        ))),
        None => Ok(()),
    }
}

fn is_suite(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_RULE_BYTES
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._~/".contains(&byte))
}

fn is_pattern(text: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.*?".contains(&byte);
    !text.is_empty() && text.len() <= MAX_RULE_BYTES && text.bytes().all(plain)
}

fn invalid_spec(reason: String) -> Failure {
    Failure::new(FailureKind::Plan, reason)
}

/// Debian policy §5.6.1, optionally with an architecture after a colon. A hyphen at the end is not accepted: apt would
/// remove the package.
pub fn is_name(text: &str) -> bool {
    let (name, architecture) = match text.split_once(':') {
        Some((name, architecture)) => (name, Some(architecture)),
        None => (text, None),
    };
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() >= 2
        && name.len() <= 200
        && name.bytes().next().is_some_and(lower)
        && name.bytes().all(|byte| lower(byte) || b"+-.".contains(&byte))
        && !name.ends_with('-')
        && architecture.is_none_or(|text| {
            !text.is_empty()
                && text.len() <= 50
                && text.bytes().next().is_some_and(lower)
                && text.bytes().all(|byte| lower(byte) || byte == b'-')
        })
}

/// Debian policy §5.6.12.
pub fn is_version(text: &str) -> bool {
    text.len() <= 200
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-~:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::PackageRequirement;

    #[test]
    fn names_follow_debian_policy() {
        for name in ["g++", "libc6", "0ad", "libstdc++6", "a2", "libc6:i386", "linux-image-6.1"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            "a",
            "-o",
            "--yes",
            "Curl",
            "curl-",
            "a b",
            "curl;id",
            "curl=1",
            "curl/sid",
            "curl^",
            "curl*",
            "../a.deb",
            "./a.deb",
            "a_b",
            "libc6:",
            "libc6:-x",
            "libc6:i386:x",
            "cürl",
            "$(id)",
            "a\nb",
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn versions_follow_debian_policy() {
        for version in ["1", "1:2.36-9+deb12u10", "0~rc1", "2.0.0.really.1", "7.88.1-10"] {
            assert!(is_version(version), "{version}");
        }
        for version in ["", "*", "1*", "v1", "1 2", "-1", "1;id", "1/2", "1_2", "1\n"] {
            assert!(!is_version(version), "{version}");
        }
    }

    fn spec(names: &[&str], sources: &[&str]) -> PackageSpec {
        let package = |name: &&str| PackageRequirement { name: (*name).to_owned(), version: None };
        PackageSpec {
            sources: sources.iter().map(|&text| text.to_owned()).collect(),
            ..PackageSpec::new(PackageMode::Exactly(names.iter().map(package).collect()))
        }
    }

    #[test]
    fn an_invalid_spec_is_refused_with_its_reason() {
        let refusal = |names: &[&str]| validate(&spec(names, &[])).unwrap_err().reason;
        assert_eq!(refusal(&["curl", "-o"]), "\"-o\" is not a package name");
        assert_eq!(refusal(&[]), "no package is named");
        assert_eq!(refusal(&["curl", "curl"]), "curl is named twice");
        let many: Vec<_> = (0..=MAX_PACKAGES).map(|number| format!("p{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(refusal(&many), "10001 packages are requested, more than 10000");
        validate(&spec(&many[1..], &[])).unwrap();
    }

    #[test]
    fn a_source_is_checked_with_the_rules_of_the_server() {
        let good = "# ours\nTypes: deb\nURIs: https://deb.example/debian\nSuites: stable\nComponents: main\n\
            Signed-By: /etc/evenkeel/keys.d/own.asc\n";
        validate(&spec(&["curl"], &[good])).unwrap();
        let no_key = good.replace("Signed-By:", "Signed-By:\n -----BEGIN\n .\n");
        for (source, why) in [
            (good.replace("Components", "Trusted"), "the field \"Trusted\" is not allowed"),
            (no_key, "the key in Signed-By cannot be read: there is no public key block"),
        ] {
            let reason = validate(&spec(&["curl"], &[&source])).unwrap_err().reason;
            assert_eq!(reason, format!("a source is not usable: {why}"));
        }
    }

    #[test]
    fn rules_with_a_meaning_to_apt_are_refused() {
        let refusal = |suites: &[&str], exclude: &[&str]| {
            let mut spec = spec(&["curl"], &[]);
            spec.rules.suites = suites.iter().map(|&text| text.to_owned()).collect();
            spec.rules.exclude = exclude.iter().map(|&text| text.to_owned()).collect();
            validate(&spec).err().map(|failure| failure.reason)
        };
        assert_eq!(refusal(&["bookworm-security", "stable/updates"], &["linux-*", "lib?"]), None);
        for suite in ["", "a b", "a\nb", "*"] {
            assert!(refusal(&[suite], &[]).is_some(), "{suite:?}");
        }
        for pattern in ["", "/^lib/", "a b", "a\nPin: x", "[a]", "libc6:i386", "Curl"] {
            assert!(refusal(&[], &[pattern]).is_some(), "{pattern:?}");
        }
        assert_eq!(
            refusal(&[], &["c*"]).unwrap(),
            "curl is requested and excluded by the same policy"
        );
    }
}
