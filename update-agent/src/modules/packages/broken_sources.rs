//! Finds the sources whose lists apt could not fetch, so that the others can be used.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::index_targets::normalize_uri;
use super::sources::{SourceFile, filter_sources};
use crate::model::Failure;
use crate::owner::SourceSuite;

/// Errors that pass by themselves: other programs and the network.
const TEMPORARY_ERRORS: [&str; 12] = [
    "Could not get lock",
    "Unable to lock directory",
    "Could not resolve",
    "Temporary failure resolving",
    "Could not connect to",
    "Unable to connect to",
    "Cannot initiate the connection to",
    "Could not wait for server fd",
    "Connection failed",
    "Connection timed out",
    "Network is unreachable",
    "No route to host",
];

/// The sources without the suites that apt reports errors about. `None` if an error is about none of them, or if no source
/// is left: then nothing can be updated.
pub fn without_broken(sources: &[SourceFile], apt_output: &str) -> Option<Vec<SourceFile>> {
    let errors = error_lines(apt_output);
    let explained = RefCell::new(BTreeSet::new());
    let is_good = |suite: SourceSuite<'_>, _: &BTreeSet<String>, _: bool| {
        let own = errors.iter().enumerate().filter(|(_, line)| concerns(line, suite));
        let numbers: Vec<usize> = own.map(|(number, _)| number).collect();
        let is_good = numbers.is_empty();
        explained.borrow_mut().extend(numbers);
        is_good
    };
    let left = filter_sources(sources, &[], &is_good);
    let is_complete = !errors.is_empty() && explained.borrow().len() == errors.len();
    (is_complete && !left.is_empty()).then_some(left)
}

/// Whether apt named an error. It does not if it was ended at its deadline.
pub fn has_errors(apt_output: &str) -> bool {
    apt_output.lines().any(is_error_line)
}

/// Whether all errors of a refresh pass by themselves.
pub fn is_temporary(apt_output: &str) -> bool {
    let errors = error_lines(apt_output);
    let is_one = |line: &&str| TEMPORARY_ERRORS.iter().any(|text| line.contains(text));
    !errors.is_empty() && errors.iter().all(is_one)
}

/// What a run says about sources that its update could not use.
pub fn remark(broken: &Failure) -> String {
    format!(
        "some package sources could not be used, so the update has nothing from them: {}",
        broken.reason
    )
}

/// The failure of a plan, if sources are broken that may have what is missing.
pub fn explain_failure(failure: Failure, broken: Option<&Failure>) -> Failure {
    let Some(broken) = broken else {
        return failure;
    };
    let reason = format!("{}; {}", failure.reason, broken.reason);
    let explained = Failure::with_log(broken.kind, reason, &broken.log);
    if broken.is_temporary { explained.into_temporary() } else { explained }
}

/// Whether a line of apt says that something failed. Of its warnings, only those about a list that was not fetched do: the
/// others, such as for a source that is listed twice or for an old kind of key, are advice. A bad signature also has an
/// error, or such a warning if there is an old list.
pub fn is_error_line(line: &str) -> bool {
    line.starts_with("E: ") || line.starts_with("W: Failed to fetch ")
}

/// The errors of apt, without its summary.
fn error_lines(apt_output: &str) -> Vec<&str> {
    let is_summary = |line: &str| line.starts_with("E: Some index files failed to download");
    apt_output.lines().filter(|line| is_error_line(line) && !is_summary(line)).collect()
}

/// Whether an error is about a suite. apt writes `URI SUITE` or the address of one of its files.
fn concerns(line: &str, suite: SourceSuite<'_>) -> bool {
    let name = suite.suite;
    [suite.uri.trim_end_matches('/'), normalize_uri(suite.uri).as_str()].iter().any(|uri| {
        [format!("{uri}/dists/{name}/"), format!("{uri} {name} "), format!("{uri}/ {name} ")]
            .iter()
            .any(|text| line.contains(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FailureKind;

    fn sources() -> Vec<SourceFile> {
        let text = "Types: deb\nURIs: http://x/debian\nSuites: stable stable-updates\nComponents: main\n\n\
                    Types: deb\nURIs: file:/srv/own/\nSuites: own\nComponents: main\n";
        vec![SourceFile::new("a.sources", text)]
    }

    fn left(output: &str) -> Option<String> {
        let left = without_broken(&sources(), output)?;
        Some(left.iter().map(SourceFile::text).collect())
    }

    #[test]
    fn a_broken_suite_is_left_out_and_the_others_stay() {
        for output in [
            "E: The repository 'file:/srv/own own Release' does not have a Release file.\n",
            "W: GPG error: file:/srv/own own InRelease: The following signatures were invalid: EXPKEYSIG 1\n\
             E: The repository 'file:/srv/own own InRelease' is not signed.\n",
            "E: Release file for file:/srv/own/dists/own/InRelease is expired (invalid since 1d).\n",
            "E: Failed to fetch file:/srv/own/dists/own/main/binary-amd64/Packages  File not found\n\
             E: Some index files failed to download. They have been ignored, or old ones used instead.\n",
        ] {
            let left = left(output).expect(output);
            assert!(left.contains("Suites: stable stable-updates\n"), "{left}");
            assert!(!left.contains("own"), "{left}");
        }
        let left =
            left("W: Failed to fetch http://x/debian/dists/stable/InRelease  404\n").unwrap();
        assert!(left.contains("Suites: stable-updates\n"), "{left}");
        assert!(left.contains("Suites: own\n"), "{left}");
    }

    #[test]
    fn a_warning_that_is_only_advice_excludes_no_source() {
        let broken =
            "E: The repository 'file:/srv/own own Release' does not have a Release file.\n";
        for advice in [
            "W: Target Packages (main/binary-all/Packages) is configured multiple times in /etc/apt/a.list:1 and b.list:1",
            "W: http://x/debian/dists/stable/InRelease: Key is stored in legacy trusted.gpg keyring (/etc/apt/trusted.gpg)",
            "W: http://x/debian/dists/stable/InRelease: Policy will reject signature within a year, see --audit for details",
            "W: Conflicting distribution: http://x/debian stable InRelease (expected stable but got trixie)",
        ] {
            assert_eq!(left(&format!("{advice}\n")), None, "{advice}");
            let left = left(&format!("{advice}\n{broken}")).expect(advice);
            assert!(left.contains("Suites: stable stable-updates\n"), "{left}");
            assert!(!left.contains("own"), "{left}");
        }
    }

    #[test]
    fn an_error_about_no_known_source_or_about_all_is_final() {
        let own = "E: The repository 'file:/srv/own own Release' does not have a Release file.\n";
        assert_eq!(left(&format!("{own}E: Malformed entry 1 in list file\n")), None);
        assert_eq!(left("E: The repository 'file:/srv/other own Release' is not signed.\n"), None);
        assert_eq!(left(""), None);
        let debian = ["stable", "stable-updates"].map(|suite| {
            format!("W: Failed to fetch http://x/debian/dists/{suite}/InRelease  x\n")
        });
        assert_eq!(left(&format!("{own}{}", debian.concat())), None);
    }

    #[test]
    fn only_locks_and_the_network_are_temporary() {
        let lock =
            "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)\n";
        let network = "W: Failed to fetch http://x/dists/a/InRelease  Could not resolve 'x'\n\
                       W: Some index files failed to download. They have been ignored.\n";
        let missing = "E: The repository 'http://x a Release' does not have a Release file.\n";
        for (output, expected) in [
            (lock.to_owned(), true),
            (network.to_owned(), true),
            (format!("{lock}{network}"), true),
            (format!("{network}{missing}"), false),
            (missing.to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_temporary(&output), expected, "{output}");
        }
    }

    #[test]
    fn a_failed_plan_names_the_broken_source() {
        let plan = || Failure::new(FailureKind::Plan, "no source has the package x");
        assert_eq!(explain_failure(plan(), None), plan());
        let broken = Failure::new(FailureKind::Signature, "y is not signed").into_temporary();
        let explained = explain_failure(plan(), Some(&broken));
        assert_eq!(explained.kind, FailureKind::Signature);
        assert_eq!(explained.reason, "no source has the package x; y is not signed");
        assert!(explained.is_temporary);
    }
}
