//! Checks the sources of an update policy against the owner's limits.

use super::OwnerLimits;

/// Whether a text is the fingerprint of a key or the path of a key file.
pub fn is_key(text: &str) -> bool {
    text.starts_with('/') || fingerprint(text).is_some()
}

/// Checks a DEB822 stanza against the limits. A missing field that is limited is a violation.
pub fn check_source(limits: &OwnerLimits, stanza: &str) -> Result<(), String> {
    if !limits.suites.is_empty() {
        check_suites(&limits.suites, stanza)?;
    }
    if !limits.keys.is_empty() {
        check_keys(&limits.keys, stanza)?;
    }
    Ok(())
}

fn check_suites(allowed: &[String], stanza: &str) -> Result<(), String> {
    let lines = field_lines(stanza, "Suites");
    let mut suites = lines.iter().flat_map(|line| line.split_whitespace());
    if suites.clone().next().is_none() {
        return Err("a source has no suite".to_owned());
    }
    match suites.find(|suite| !allowed.iter().any(|allowed| allowed == suite)) {
        Some(other) => Err(format!("the suite {other} is not allowed")),
        None => Ok(()),
    }
}

fn check_keys(allowed: &[String], stanza: &str) -> Result<(), String> {
    let lines = field_lines(stanza, "Signed-By");
    if lines.iter().any(|line| line.contains("-----BEGIN")) {
        let why = "a source contains its key, but only keys that are on the machine are allowed";
        return Err(why.to_owned());
    }
    let names = lines.iter().flat_map(|line| line.split([' ', '\t', '\r', ',']));
    let mut keys = names.filter(|key| !key.is_empty());
    if keys.clone().next().is_none() {
        return Err("a source does not name the key that signs it".to_owned());
    }
    let is_allowed = |key: &str| allowed.iter().any(|allowed| is_same_key(allowed, key));
    match keys.find(|key| !is_allowed(key)) {
        Some(other) => Err(format!("the key {other} is not allowed")),
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

/// Normalises a fingerprint: no blanks, upper case. The suffix `!`, which excludes subkeys, only
/// narrows it.
fn fingerprint(text: &str) -> Option<String> {
    let text = text.strip_suffix('!').unwrap_or(text);
    let digits: String = text.split_whitespace().collect();
    let is_one = matches!(digits.len(), 40 | 64) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_one.then(|| digits.to_ascii_uppercase())
}

/// Lines of a field's value; the field may occur several times.
fn field_lines<'a>(stanza: &'a str, field: &str) -> Vec<&'a str> {
    let mut inside = false;
    let mut values = Vec::new();
    for line in stanza.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with([' ', '\t']) {
            if inside {
                values.push(line);
            }
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        inside = name.trim().eq_ignore_ascii_case(field);
        if inside {
            values.push(value);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINGERPRINT: &str = "0123456789ABCDEF0123456789ABCDEF01234567";

    fn owner_limits(suites: &[&str], keys: &[&str]) -> OwnerLimits {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        OwnerLimits { suites: owned(suites), keys: owned(keys), ..OwnerLimits::default() }
    }

    fn source_stanza(suites: &str, signed_by: &str) -> String {
        format!("Types: deb\nURIs: https://x\nsuites: {suites}\nSigned-By: {signed_by}\n")
    }

    #[test]
    fn without_limits_every_source_is_allowed() {
        check_source(&owner_limits(&[], &[]), &source_stanza("any", "\n -----BEGIN PGP")).unwrap();
    }

    #[test]
    fn every_suite_of_a_source_must_be_allowed() {
        let limits = owner_limits(&["bookworm", "bookworm-security"], &[]);
        check_source(&limits, &source_stanza("bookworm", "/k")).unwrap();
        check_source(&limits, &source_stanza("bookworm\n bookworm-security", "/k")).unwrap();
        for suites in ["trixie", "bookworm trixie", "bookworm\n\ttrixie", "", "bookworm/"] {
            let error = check_source(&limits, &source_stanza(suites, "/k")).unwrap_err();
            assert!(error.contains("suite"), "{suites}: {error}");
        }
        let twice = "Suites: bookworm\nSuites: trixie\n";
        assert!(check_source(&limits, twice).is_err());
    }

    #[test]
    fn every_key_of_a_source_must_be_allowed_and_inline_keys_are_refused() {
        let limits = owner_limits(&[], &["/etc/apt/keyrings/own.gpg", FINGERPRINT]);
        check_source(&limits, &source_stanza("any", "/etc/apt/keyrings/own.gpg")).unwrap();
        let lower = FINGERPRINT.to_lowercase();
        check_source(&limits, &source_stanza("any", &format!("{lower}!, {FINGERPRINT}"))).unwrap();
        for key in [
            "",
            "/etc/apt/keyrings/../keyrings/own.gpg",
            "/etc/apt/keyrings/own.gpg,/tmp/other.gpg",
            "0123456789ABCDEF",
            "0123456789ABCDEF0123456789ABCDEF01234568",
            "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==",
        ] {
            assert!(check_source(&limits, &source_stanza("any", key)).is_err(), "{key}");
        }
        assert!(check_source(&limits, "Types: deb\nSuites: any\n").is_err());
    }

    #[test]
    fn a_key_is_a_fingerprint_or_a_path() {
        let spaced = "0123 4567 89AB CDEF 0123  4567 89AB CDEF 0123 4567";
        assert!(is_key(FINGERPRINT) && is_key(spaced) && is_key("/etc/apt/keyrings/own.gpg"));
        assert!(is_same_key(spaced, FINGERPRINT));
        assert!(!is_key("own.gpg") && !is_key("0123456789ABCDEF") && !is_key(""));
    }
}
