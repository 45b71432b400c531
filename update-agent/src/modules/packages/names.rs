//! What a package may be called. Names and versions come from the server and end on command lines of apt, which gives
//! some characters a meaning of its own; what is not a name by Debian's policy gets no further than this file.

use std::collections::BTreeSet;

use super::rules::is_excluded;
use crate::model::{Failure, FailureKind, PackageMode, PackageWish};

/// More packages than this in one wish are a mistake.
const MOST_PACKAGES: usize = 10_000;

/// More suites or patterns than this in one wish are a mistake, and so is a longer one.
const MOST_RULES: usize = 1_000;
const MOST_TEXT: usize = 200;

/// The fields that a source may have.
const SOURCE_FIELDS: [&str; 9] = [
    "Types",
    "URIs",
    "Suites",
    "Components",
    "Architectures",
    "Signed-By",
    "Enabled",
    "Languages",
    "Targets",
];

/// The ways in which a source may be reached.
const SCHEMES: [&str; 3] = ["https://", "http://", "file:/"];

/// Refuses a wish that cannot be put to apt.
pub fn validate(wish: &PackageWish) -> Result<(), Failure> {
    if let PackageMode::Exactly(packages) = &wish.mode {
        if packages.len() > MOST_PACKAGES {
            return Err(refuse(format!(
                "{} packages are wanted, more than {MOST_PACKAGES}",
                packages.len()
            )));
        }
        if packages.is_empty() {
            return Err(refuse("no package is named".to_owned()));
        }
        let mut named = BTreeSet::new();
        for package in packages {
            if !named.insert(&package.name) {
                return Err(refuse(format!("{} is named twice", package.name)));
            }
            if !is_name(&package.name) {
                return Err(refuse(format!("{:?} is no package's name", package.name)));
            }
            let version = package.version.as_deref();
            if let Some(version) = version.filter(|version| !is_version(version)) {
                return Err(refuse(format!(
                    "{version:?} is no version of {}",
                    package.name
                )));
            }
        }
    }
    validate_rules(wish)?;
    wish.sources.iter().try_for_each(|stanza| {
        validate_source(stanza).map_err(|why| refuse(format!("a source is not usable: {why}")))
    })
}

/// Suites are compared with names, patterns end in a file of apt's.
fn validate_rules(wish: &PackageWish) -> Result<(), Failure> {
    let rules = &wish.rules;
    if rules.suites.len() > MOST_RULES || rules.exclude.len() > MOST_RULES {
        return Err(refuse(format!(
            "more than {MOST_RULES} suites or patterns are named"
        )));
    }
    if let Some(suite) = rules.suites.iter().find(|suite| !is_suite(suite)) {
        return Err(refuse(format!("{suite:?} is no suite")));
    }
    let pattern = rules.exclude.iter().find(|pattern| !is_pattern(pattern));
    if let Some(pattern) = pattern {
        return Err(refuse(format!("{pattern:?} is no pattern of names")));
    }
    let PackageMode::Exactly(packages) = &wish.mode else {
        return Ok(());
    };
    match packages
        .iter()
        .find(|package| is_excluded(rules, &package.name))
    {
        Some(package) => Err(refuse(format!(
            "{} is wanted and is to be left as it is",
            package.name
        ))),
        None => Ok(()),
    }
}

fn is_suite(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MOST_TEXT
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-._~/".contains(&byte))
}

fn is_pattern(text: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.*?".contains(&byte);
    !text.is_empty() && text.len() <= MOST_TEXT && text.bytes().all(plain)
}

fn refuse(reason: String) -> Failure {
    Failure::new(FailureKind::Plan, reason)
}

/// Debian policy §5.6.1, with an architecture after a colon if need be. A hyphen at the end is left out: apt would take
/// it as a wish to remove.
pub fn is_name(text: &str) -> bool {
    let (name, architecture) = match text.split_once(':') {
        Some((name, architecture)) => (name, Some(architecture)),
        None => (text, None),
    };
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() >= 2
        && name.len() <= 200
        && name.bytes().next().is_some_and(lower)
        && name
            .bytes()
            .all(|byte| lower(byte) || b"+-.".contains(&byte))
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
        && text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_digit())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".+-~:".contains(&byte))
}

/// One DEB822 stanza with nothing in it that would switch checks off.
fn validate_source(stanza: &str) -> Result<(), String> {
    if stanza.len() > 64 << 10 {
        return Err("it is longer than 64 KiB".to_owned());
    }
    if stanza
        .chars()
        .any(|c| c.is_control() && c != '\n' && c != '\t')
    {
        return Err("it has control characters".to_owned());
    }
    let mut field = "";
    let mut seen = Vec::new();
    for line in stanza.trim_end_matches('\n').split('\n') {
        if line.trim().is_empty() {
            return Err("it has an empty line".to_owned());
        }
        let value = if line.starts_with([' ', '\t']) {
            line
        } else {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| format!("the line {line:?} is no field"))?;
            field = SOURCE_FIELDS
                .into_iter()
                .find(|known| known.eq_ignore_ascii_case(name))
                .ok_or_else(|| format!("the field {name:?} is not allowed"))?;
            if seen.contains(&field) {
                return Err(format!("the field {field} is there twice"));
            }
            seen.push(field);
            value
        };
        let mut words = value.split_whitespace();
        match field {
            "" => return Err("it begins in the middle of a field".to_owned()),
            "Types" if words.any(|word| word != "deb") => {
                return Err("only the type deb is allowed".to_owned());
            }
            "URIs" if words.any(|word| !SCHEMES.iter().any(|scheme| word.starts_with(scheme))) => {
                return Err("its URIs must begin with https, http or file".to_owned());
            }
            _ => {}
        }
    }
    for field in ["Types", "URIs", "Suites", "Signed-By"] {
        if !seen.contains(&field) {
            return Err(format!("the field {field} is missing"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::WantedPackage;

    #[test]
    fn a_name_is_a_name_by_debians_policy() {
        for name in [
            "g++",
            "libc6",
            "0ad",
            "libstdc++6",
            "a2",
            "libc6:i386",
            "linux-image-6.1",
        ] {
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
    fn a_version_is_a_version_by_debians_policy() {
        for version in [
            "1",
            "1:2.36-9+deb12u10",
            "0~rc1",
            "2.0.0.really.1",
            "7.88.1-10",
        ] {
            assert!(is_version(version), "{version}");
        }
        for version in [
            "", "*", "1*", "v1", "1 2", "-1", "1;id", "1/2", "1_2", "1\n",
        ] {
            assert!(!is_version(version), "{version}");
        }
    }

    fn wish(names: &[&str], sources: &[&str]) -> PackageWish {
        let package = |name: &&str| WantedPackage {
            name: (*name).to_owned(),
            version: None,
        };
        PackageWish {
            sources: sources.iter().map(|&text| text.to_owned()).collect(),
            ..PackageWish::new(PackageMode::Exactly(names.iter().map(package).collect()))
        }
    }

    #[test]
    fn a_wish_that_cannot_be_put_to_apt_is_refused_by_name() {
        let refusal = |names: &[&str]| validate(&wish(names, &[])).unwrap_err().reason;
        assert_eq!(refusal(&["curl", "-o"]), "\"-o\" is no package's name");
        assert_eq!(refusal(&[]), "no package is named");
        assert_eq!(refusal(&["curl", "curl"]), "curl is named twice");
        let many: Vec<_> = (0..=MOST_PACKAGES)
            .map(|number| format!("p{number}"))
            .collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(refusal(&many), "10001 packages are wanted, more than 10000");
        validate(&wish(&many[1..], &[])).unwrap();
    }

    #[test]
    fn a_source_says_who_signs_it_and_switches_nothing_off() {
        let good = "Types: deb\nURIs: https://deb.example/debian\nSuites: stable\nComponents: main\nSigned-By:\n -----BEGIN\n .\n x\n";
        validate(&wish(&["curl"], &[good])).unwrap();
        for bad in [
            "",
            "Types: deb\nURIs: https://deb.example\nSuites: stable\n",
            &good.replace("Components: main", "Trusted: yes"),
            &good.replace("Components: main", "Allow-Insecure: yes"),
            &good.replace("Components: main", "Suites: other"),
            &good.replace("https:", "ssh:"),
            &good.replace("Types: deb", "Types: deb-src"),
            &good.replace("Components: main\n", "\nTypes: deb\nTrusted: yes\n"),
            &good.replace("Components: main", "Components: main\u{0}"),
            &good.replace("Components: main", "no field"),
            " continued\n",
        ] {
            assert!(validate(&wish(&["curl"], &[bad])).is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_that_would_mean_something_else_to_apt_are_refused() {
        let refusal = |suites: &[&str], exclude: &[&str]| {
            let mut wish = wish(&["curl"], &[]);
            wish.rules.suites = suites.iter().map(|&text| text.to_owned()).collect();
            wish.rules.exclude = exclude.iter().map(|&text| text.to_owned()).collect();
            validate(&wish).err().map(|failure| failure.reason)
        };
        assert_eq!(
            refusal(
                &["bookworm-security", "stable/updates"],
                &["linux-*", "lib?"]
            ),
            None
        );
        for suite in ["", "a b", "a\nb", "*"] {
            assert!(refusal(&[suite], &[]).is_some(), "{suite:?}");
        }
        for pattern in [
            "",
            "/^lib/",
            "a b",
            "a\nPin: x",
            "[a]",
            "libc6:i386",
            "Curl",
        ] {
            assert!(refusal(&[], &[pattern]).is_some(), "{pattern:?}");
        }
        assert_eq!(
            refusal(&[], &["c*"]).unwrap(),
            "curl is wanted and is to be left as it is"
        );
    }
}
