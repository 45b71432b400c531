//! What the owner says about the sources that a wish brings.

use super::OwnerLimits;

/// Whether a text can name a key: the fingerprint of one, or the path of a file of keys.
pub fn is_key(text: &str) -> bool {
    text.starts_with('/') || fingerprint(text).is_some()
}

/// Whether a DEB822 stanza keeps to the limits; else why not. A limited field that is missing does not keep to them.
pub fn check(limits: &OwnerLimits, stanza: &str) -> Result<(), String> {
    if !limits.suites.is_empty() {
        check_suites(&limits.suites, stanza)?;
    }
    if !limits.keys.is_empty() {
        check_keys(&limits.keys, stanza)?;
    }
    Ok(())
}

fn check_suites(allowed: &[String], stanza: &str) -> Result<(), String> {
    let lines = lines(stanza, "Suites");
    let mut suites = lines.iter().flat_map(|line| line.split_whitespace());
    if suites.clone().next().is_none() {
        return Err("a source names no suite".to_owned());
    }
    match suites.find(|suite| !allowed.iter().any(|allowed| allowed == suite)) {
        Some(other) => Err(format!("the suite {other} is not among those allowed")),
        None => Ok(()),
    }
}

fn check_keys(allowed: &[String], stanza: &str) -> Result<(), String> {
    let lines = lines(stanza, "Signed-By");
    if lines.iter().any(|line| line.contains("-----BEGIN")) {
        let why = "a source brings its key along, and only keys that the machine has are allowed";
        return Err(why.to_owned());
    }
    let words = lines
        .iter()
        .flat_map(|line| line.split([' ', '\t', '\r', ',']));
    let mut keys = words.filter(|key| !key.is_empty());
    if keys.clone().next().is_none() {
        return Err("a source does not say which key signs it".to_owned());
    }
    let is_allowed = |key: &str| allowed.iter().any(|allowed| is_same_key(allowed, key));
    match keys.find(|key| !is_allowed(key)) {
        Some(other) => Err(format!("the key {other} is not among those allowed")),
        None => Ok(()),
    }
}

fn is_same_key(allowed: &str, key: &str) -> bool {
    match (fingerprint(allowed), fingerprint(key)) {
        (Some(allowed), Some(key)) => allowed == key,
        (None, None) => allowed == key,
        _ => false,
    }
}

/// A fingerprint without blanks, in capitals. The mark `!`, which stands for "and none of its subkeys", is narrower.
fn fingerprint(text: &str) -> Option<String> {
    let text = text.strip_suffix('!').unwrap_or(text);
    let digits: String = text.split_whitespace().collect();
    let is_one = matches!(digits.len(), 40 | 64) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_one.then(|| digits.to_ascii_uppercase())
}

/// The lines of a field's value, wherever the field is named.
fn lines<'a>(stanza: &'a str, field: &str) -> Vec<&'a str> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in stanza.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with([' ', '\t']) {
            if inside {
                found.push(line);
            }
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        inside = name.trim().eq_ignore_ascii_case(field);
        if inside {
            found.push(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINT: &str = "0123456789ABCDEF0123456789ABCDEF01234567";

    fn limits(suites: &[&str], keys: &[&str]) -> OwnerLimits {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        OwnerLimits {
            suites: owned(suites),
            keys: owned(keys),
            ..OwnerLimits::default()
        }
    }

    fn source(suites: &str, signed_by: &str) -> String {
        format!("Types: deb\nURIs: https://x\nsuites: {suites}\nSigned-By: {signed_by}\n")
    }

    #[test]
    fn without_a_word_of_the_owner_every_source_will_do() {
        check(&limits(&[], &[]), &source("any", "\n -----BEGIN PGP")).unwrap();
    }

    #[test]
    fn every_suite_of_a_source_must_be_allowed() {
        let limits = limits(&["bookworm", "bookworm-security"], &[]);
        check(&limits, &source("bookworm", "/k")).unwrap();
        check(&limits, &source("bookworm\n bookworm-security", "/k")).unwrap();
        for suites in [
            "trixie",
            "bookworm trixie",
            "bookworm\n\ttrixie",
            "",
            "bookworm/",
        ] {
            let error = check(&limits, &source(suites, "/k")).unwrap_err();
            assert!(error.contains("suite"), "{suites}: {error}");
        }
        let twice = "Suites: bookworm\nSuites: trixie\n";
        assert!(check(&limits, twice).is_err());
    }

    #[test]
    fn every_key_of_a_source_must_be_allowed_and_one_that_it_brings_is_not() {
        let limits = limits(&[], &["/etc/apt/keyrings/own.gpg", PRINT]);
        check(&limits, &source("any", "/etc/apt/keyrings/own.gpg")).unwrap();
        let lower = PRINT.to_lowercase();
        check(&limits, &source("any", &format!("{lower}!, {PRINT}"))).unwrap();
        for key in [
            "",
            "/etc/apt/keyrings/../keyrings/own.gpg",
            "/etc/apt/keyrings/own.gpg,/tmp/other.gpg",
            "0123456789ABCDEF",
            "0123456789ABCDEF0123456789ABCDEF01234568",
            "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==",
        ] {
            assert!(check(&limits, &source("any", key)).is_err(), "{key}");
        }
        assert!(check(&limits, "Types: deb\nSuites: any\n").is_err());
    }

    #[test]
    fn a_key_is_a_fingerprint_or_a_path() {
        let spaced = "0123 4567 89AB CDEF 0123  4567 89AB CDEF 0123 4567";
        assert!(is_key(PRINT) && is_key(spaced) && is_key("/etc/apt/keyrings/own.gpg"));
        assert!(is_same_key(spaced, PRINT));
        assert!(!is_key("own.gpg") && !is_key("0123456789ABCDEF") && !is_key(""));
    }
}
