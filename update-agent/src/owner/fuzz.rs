//! Feeds mutated keys, sources and sessions to their parsers, for `EVENKEEL_FUZZ_SECONDS` seconds each (default 1).
//!
//! Each input is derived from a seed that a failure prints. `EVENKEEL_FUZZ_SEED=<seed>` starts with it.

use rand::Rng;

use super::key_block::testing::{armored_key, packet};
use super::key_block::{armored_fingerprints, binary_fingerprints};
use super::logged_in_users::is_user_logged_in;
use super::source_keys::{SourceKey, SourceKeys};
use super::sources::resolve_source;
use super::*;
use crate::fuzz_driver::{fuzz, text};

/// Letters with a meaning in keys and sources.
const LETTERS: &str = " \n\t\r:=-.,#!/0123456789ABCDEFabcdef\u{0}\u{b}\u{a0}\u{e9}";

/// The only key file of the machine.
const KEY_FILE: &str = "/etc/evenkeel/keys.d/own.asc";

fn is_fingerprint(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
    matches!(text.len(), 40 | 64) && text.bytes().all(is_digit)
}

#[test]
fn armored_keys_are_found_or_refused() {
    let keys = [1, 2, 3].map(|number| armored_key(number).0);
    let samples: Vec<&str> = keys.iter().map(String::as_str).collect();
    fuzz("key block", |rng| {
        let block = text(rng, &samples, LETTERS);
        let found = armored_fingerprints(&block);
        if let Ok(found) = &found {
            assert!(!found.is_empty() && found.iter().all(|one| is_fingerprint(one)));
        }
        // As a field of a source.
        let lines = block.lines().map(|line| if line.is_empty() { "." } else { line });
        let field: Vec<_> = lines.map(|line| format!(" {line}\n")).collect();
        assert_eq!(armored_fingerprints(&field.concat()), found);
    });
}

#[test]
fn packets_of_keys_are_found_or_refused() {
    fuzz("OpenPGP packets", |rng| {
        let mut packets = Vec::new();
        let mut keys = 0;
        for _ in 0..rng.random_range(1..6) {
            let length: usize = rng.random_range(1..192);
            let mut body: Vec<u8> = (0..length).map(|_| rng.random()).collect();
            body[0] = 4;
            let is_key: bool = rng.random();
            keys += usize::from(is_key);
            // A public key, or a user ID.
            packets.extend(packet(if is_key { 0xc6 } else { 0xcd }, &body));
        }
        let found = binary_fingerprints(&packets);
        assert_eq!(found.map_or(0, |found| found.len()), keys);

        let at = rng.random_range(0..packets.len());
        packets[at] = rng.random();
        packets.truncate(rng.random_range(0..=packets.len()));
        if let Ok(found) = binary_fingerprints(&packets) {
            assert!(!found.is_empty() && found.iter().all(|one| is_fingerprint(one)));
        }
    });
}

#[test]
fn a_source_is_used_only_with_the_key_of_the_machine_and_in_allowed_suites() {
    let (key, fingerprint) = armored_key(1);
    let (foreign, _) = armored_key(2);
    let key_file = SourceKey { file: KEY_FILE.to_owned(), fingerprint: fingerprint.clone() };
    let machine = SourceKeys::from(vec![key_file]);
    let limits = OwnerLimits { suites: vec!["https://x/ stable".into()], ..OwnerLimits::default() };
    let inline = |key: &str| {
        let lines = key.lines().map(|line| if line.is_empty() { "." } else { line });
        lines.map(|line| format!("\n {line}")).collect::<Vec<_>>().concat()
    };
    let stanzas = [KEY_FILE.to_owned(), format!("{fingerprint}!"), inline(&key), inline(&foreign)]
        .map(|key| format!("Types: deb\nURIs: https://x\n# x\nsuites: stable\nSigned-By: {key}\n"));
    let other = "Signed-By : /etc/other.asc\nTrusted: yes\nURIs: https://x/\n https://other/\nSuites: other\n";
    let samples: Vec<&str> = stanzas.iter().map(String::as_str).chain([other]).collect();
    fuzz("source of a policy", |rng| {
        let stanza = text(rng, &samples, LETTERS);
        let Ok(resolved) = resolve_source(&limits, &machine, &stanza) else {
            return;
        };
        let fields = read_fields(&resolved);
        let values = |name: &str| {
            let own = fields.iter().filter(|(field, _)| field == name);
            own.flat_map(|(_, value)| value.split_whitespace()).collect::<Vec<_>>()
        };
        assert_eq!(values("signed-by"), [KEY_FILE], "{resolved:?}");
        assert!(values("uris").iter().all(|uri| uri.trim_end_matches('/') == "https://x"));
        assert!(values("suites").iter().all(|suite| *suite == "stable"), "{resolved:?}");
    });
}

/// The fields of a stanza with their further lines; the names in lower case.
fn read_fields(stanza: &str) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in stanza.lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with([' ', '\t']) {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            fields.push((name.trim().to_ascii_lowercase(), value.to_owned()));
        } else if let Some((_, value)) = fields.last_mut() {
            value.push_str(line);
        }
    }
    fields
}

#[test]
fn sessions_are_parsed() {
    let folder = tempfile::tempdir().unwrap();
    let samples = [
        "# This is private data. Do not parse.\nUID=1000\nUSER=ada\nSTATE=active\nTYPE=tty\nCLASS=user\n",
        "STATE=closing\nCLASS=user-early\n",
        "CLASS=greeter\nSTATE=online\n",
    ];
    fuzz("session", |rng| {
        let session = text(rng, &samples, "\n=\r\u{0}CLASTEuser");
        fs::write(folder.path().join("1"), &session).unwrap();
        if is_user_logged_in(folder.path()) {
            assert!(session.lines().any(|line| line.starts_with("CLASS=user")), "{session:?}");
        }
    });
}
