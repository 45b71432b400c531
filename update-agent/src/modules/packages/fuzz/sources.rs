//! Sources of apt, limited to the allowed suites.

use std::collections::BTreeSet;

use super::LETTERS;
use crate::fuzz_driver::{fuzz, text};
use crate::modules::packages::broken_sources::without_broken;
use crate::modules::packages::sources::{SourceFile, filter_sources};
use crate::owner::SourceSuite;

const STANZAS: &[&str] = &[
    "# Debian\nTypes: deb\nURIs: http://deb.example/debian\nSuites: stable\n stable-security other\nComponents: main\n\
     Signed-By:\n -----BEGIN\n .\n x\n\nTypes: deb\nURIs: http://other.example/\nSuites: any\n",
    "suites : stable other\nURIS: file:/srv\n  http://x\n \t\n Suites: x\nSuites: flat/\n# Suites: y\n",
];

const LISTS: &[&str] = &[
    "# deb http://deb.example/debian stable main\ndeb [arch=amd64 signed-by=/x] http://deb.example/debian/ stable main # c\n\
     deb\thttp://deb.example/debian   stable-security main\ndeb cdrom:[Debian GNU/Linux 12]/ stable main\n",
    "deb-src [ trusted=yes ] file:/srv ./\ndeb http://x other main\n",
];

const MESSAGES: &[&str] = &[
    "E: Failed to fetch http://deb.example/debian/dists/stable/InRelease  404\nW: file:/srv other InRelease: x\n",
    "E: The repository 'http://other.example any Release' is not signed.\n",
];

/// A limit of the owner for the tests: only the name of the suite decides.
fn is_allowed(suite: &str) -> bool {
    suite.contains("st")
}

fn filter(name: &str, text: &str) -> String {
    let lets = |suite: SourceSuite<'_>, _: &BTreeSet<String>, _: bool| is_allowed(suite.suite);
    let left = filter_sources(&[SourceFile::new(name, text)], &[], &lets);
    left.iter().map(SourceFile::text).collect()
}

#[test]
fn stanzas_have_only_allowed_suites() {
    fuzz("DEB822 sources", |rng| {
        let left = filter("a.sources", &text(rng, STANZAS, LETTERS).replace('\r', ""));
        for stanza in left.split("\n\n").filter(|stanza| !stanza.is_empty()) {
            let suites = suites_of_stanza(stanza);
            let [suites] = suites.as_slice() else {
                panic!("not one field: {stanza:?}");
            };
            assert!(suites.split_whitespace().all(is_allowed), "{stanza:?}");
        }
        assert_eq!(filter("a.sources", &left), left);
    });
}

/// The values of the field `Suites`, each with its further lines.
fn suites_of_stanza(stanza: &str) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    let mut is_suites = false;
    for line in stanza.lines().filter(|line| !line.starts_with('#')) {
        if !line.starts_with([' ', '\t']) {
            let (name, value) = line.split_once(':').expect("a field");
            is_suites = name.trim().eq_ignore_ascii_case("suites");
            values.extend(is_suites.then(|| value.to_owned()));
        } else if is_suites && let Some(last) = values.last_mut() {
            last.push_str(line);
        }
    }
    values
}

#[test]
fn lists_have_only_allowed_lines() {
    fuzz("sources.list", |rng| {
        let list = text(rng, LISTS, LETTERS).replace('\r', "");
        let left = filter("sources.list", &list);
        assert!(
            left.lines().all(|line| line.contains("st") && list.lines().any(|one| one == line))
        );
        assert_eq!(filter("sources.list", &left), left);
    });
}

#[test]
fn broken_sources_are_left_out_or_all_stay() {
    fuzz("broken sources", |rng| {
        let sources = [
            SourceFile::new("a.sources", &text(rng, STANZAS, LETTERS)),
            SourceFile::new("sources.list", &text(rng, LISTS, LETTERS)),
        ];
        let message = text(rng, MESSAGES, LETTERS);
        if let Some(left) = without_broken(&sources, &message) {
            assert!(!left.is_empty() && left.len() <= sources.len());
        }
    });
}
