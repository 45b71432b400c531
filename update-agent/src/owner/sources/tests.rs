use super::*;
use crate::owner::key_block::testing::armored_key;

const FILE: &str = "/etc/evenkeel/keys.d/own.asc";

/// A machine whose only key is the first one.
fn machine_keys() -> (SourceKeys, String) {
    let (_, fingerprint) = armored_key(1);
    let key = SourceKey { file: FILE.to_owned(), fingerprint: fingerprint.clone() };
    (SourceKeys::from(vec![key]), fingerprint)
}

fn owner_limits(suites: &[&str], keys: &[&str]) -> OwnerLimits {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    OwnerLimits { suites: owned(suites), keys: owned(keys), ..OwnerLimits::default() }
}

fn source_stanza(suites: &str, signed_by: &str) -> String {
    format!("Types: deb\nURIs: https://x/\nsuites: {suites}\nSigned-By: {signed_by}\n")
}

/// A source that contains its key.
fn stanza_with_key(key: &str) -> String {
    let lines = key.lines().map(|line| if line.is_empty() { "." } else { line });
    let field: Vec<_> = lines.map(|line| format!("\n {line}")).collect();
    source_stanza("stable", &field.concat())
}

#[test]
fn a_key_of_the_machine_replaces_the_same_key_inside_a_source() {
    let (keys, fingerprint) = machine_keys();
    let expected = "Types: deb\nURIs: https://x/\nsuites: stable\n\
                    Signed-By: /etc/evenkeel/keys.d/own.asc\n";
    for stanza in [
        stanza_with_key(&armored_key(1).0),
        source_stanza("stable", FILE),
        source_stanza("stable", &fingerprint.to_lowercase()),
        format!("# ours\n\n{}", source_stanza("stable", &format!("{fingerprint}!, {FILE}"))),
    ] {
        let resolved = resolve_source(&owner_limits(&[], &[]), &keys, &stanza);
        assert_eq!(resolved.as_deref(), Ok(expected), "{stanza}");
    }
}

#[test]
fn a_source_with_a_key_that_the_machine_does_not_have_is_refused() {
    let (keys, _) = machine_keys();
    let (foreign, fingerprint) = armored_key(2);
    let both = format!("{}{foreign}", armored_key(1).0);
    for (stanza, name) in [
        (stanza_with_key(&foreign), fingerprint.as_str()),
        (stanza_with_key(&both), fingerprint.as_str()),
        (source_stanza("stable", &fingerprint), fingerprint.as_str()),
        (source_stanza("stable", "/usr/share/keyrings/x.gpg"), "/usr/share/keyrings/x.gpg"),
        (source_stanza("stable", &format!("{FILE}/../own.asc")), "/etc/evenkeel/keys.d"),
        (source_stanza("stable", &format!("{FILE}, {fingerprint}")), fingerprint.as_str()),
    ] {
        let error = resolve_source(&owner_limits(&[], &[]), &keys, &stanza).unwrap_err();
        for text in [name, SOURCE_KEYS_FOLDER, "server_keys = true"] {
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}

#[test]
fn a_source_without_a_readable_key_is_refused() {
    let (keys, _) = machine_keys();
    let limits = OwnerLimits { server_keys: true, ..OwnerLimits::default() };
    for (stanza, why) in [
        (source_stanza("stable", ""), "does not name the key"),
        ("Types: deb\nSuites: any\n".to_owned(), "does not name the key"),
        (stanza_with_key("-----BEGIN PGP PUBLIC KEY BLOCK-----"), "cannot be read"),
        (format!("{0}{0}", source_stanza("stable", FILE)), "twice"),
    ] {
        let error = resolve_source(&limits, &keys, &stanza).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn the_limits_can_allow_keys_from_the_server() {
    let (keys, _) = machine_keys();
    let stanza = stanza_with_key(&armored_key(2).0);
    let limits = OwnerLimits { server_keys: true, ..OwnerLimits::default() };
    assert_eq!(resolve_source(&limits, &keys, &stanza), Ok(stanza.clone()));
    // With a list of keys, only those that are on the machine.
    let (_, fingerprint) = armored_key(2);
    let limits = OwnerLimits { keys: vec![fingerprint], ..limits };
    let error = resolve_source(&limits, &keys, &stanza).unwrap_err();
    assert!(error.contains("not one of the `keys`"), "{error}");
}

#[test]
fn every_key_of_a_source_must_be_listed_if_the_limits_list_keys() {
    let (keys, fingerprint) = machine_keys();
    let stanza = stanza_with_key(&armored_key(1).0);
    for listed in [FILE, fingerprint.as_str()] {
        resolve_source(&owner_limits(&[], &[listed]), &keys, &stanza).unwrap();
    }
    let other = owner_limits(&[], &[&armored_key(2).1]);
    resolve_source(&other, &keys, &stanza).unwrap_err();
}

#[test]
fn a_suite_of_a_policys_source_is_allowed_only_with_its_uri() {
    let (keys, _) = machine_keys();
    let check = |allowed: &[&str], suites: &str| {
        resolve_source(&owner_limits(allowed, &[]), &keys, &source_stanza(suites, FILE)).map(drop)
    };
    // The server can use any name.
    assert!(check(&["stable"], "stable").unwrap_err().contains("`URI SUITE`"));
    check(&["https://x stable"], "stable").unwrap();
    check(&["https://x/ stable", "https://x testing"], "stable\n testing").unwrap();
    for suites in ["trixie", "stable trixie", "stable\n\ttrixie", "", "stable/"] {
        let error = check(&["https://x stable", "https://y trixie"], suites).unwrap_err();
        assert!(error.contains("suite"), "{suites}: {error}");
    }
}

#[test]
fn an_entry_without_a_uri_allows_the_sources_of_the_machine() {
    let allows = |allowed: &str, uri: &str, suite: &str| {
        SourceSuite { uri, suite, is_own: true }.is_allowed(&[allowed.to_owned()])
    };
    assert!(allows("stable", "https://any", "stable"));
    assert!(!allows("stable", "https://any", "testing"));
    assert!(allows("https://x stable", "https://x/", "stable"));
    assert!(!allows("https://x stable", "https://y", "stable"));
    assert!(SourceSuite { uri: "x", suite: "y", is_own: false }.is_allowed(&[]));
}

#[test]
fn an_entry_is_a_suite_or_a_uri_with_a_suite() {
    for text in ["stable", "stable/updates", "./", "https://x/y stable", "file:/srv stable"] {
        assert!(is_suite_entry(text), "{text}");
    }
    for text in ["", " stable", "stable ", "a stable", "https://x a b", " https://x stable"] {
        assert!(!is_suite_entry(text), "{text:?}");
    }
}

#[test]
fn a_key_is_a_fingerprint_or_a_path() {
    let fingerprint = "0123456789ABCDEF0123456789ABCDEF01234567";
    let spaced = "0123 4567 89AB CDEF 0123  4567 89AB CDEF 0123 4567";
    assert!(is_key(fingerprint) && is_key(spaced) && is_key("/etc/apt/keyrings/own.gpg"));
    assert!(is_same_key(spaced, fingerprint));
    assert!(!is_key("own.gpg") && !is_key("0123456789ABCDEF") && !is_key(""));
}
