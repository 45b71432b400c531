//! What `dpkg --audit` finds: paragraphs with the names of packages below them.

use std::collections::BTreeSet;

/// What is wrong, and with which package.
pub type Finding = (String, String);

/// Reads an audit. Words that belong to no package are a finding of their own.
pub fn findings(text: &str) -> BTreeSet<Finding> {
    let mut findings = BTreeSet::new();
    for paragraph in text.split("\n\n") {
        let (below, above): (Vec<&str>, Vec<&str>) = paragraph
            .lines()
            .filter(|line| !line.trim().is_empty())
            .partition(|line| line.starts_with(' '));
        let what = above.join(" ");
        let packages = below
            .iter()
            .filter_map(|line| line.split_whitespace().next());
        let before = findings.len();
        findings.extend(packages.map(|package| (what.clone(), package.to_owned())));
        if findings.len() == before && !what.is_empty() {
            findings.insert((what, String::new()));
        }
    }
    findings
}

/// What an audit finds that an earlier one did not.
pub fn fresh(now: &str, before: &str) -> Vec<Finding> {
    let known = findings(before);
    let all = findings(now).into_iter();
    all.filter(|finding| !known.contains(finding)).collect()
}

/// The packages in which something is wrong, by their names as apt says them.
pub fn packages(findings: &[Finding]) -> Vec<String> {
    let named = findings.iter().filter(|(_, package)| !package.is_empty());
    let sorted: BTreeSet<_> = named.map(|(_, package)| package.clone()).collect();
    sorted.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Debian 12 and 13.
    const AUDIT: &str = "\
The following packages are only half configured, probably due to problems
configuring them the first time.  The configuration should be retried using
dpkg --configure <package> or the configure menu option in dselect:
 demo-bad             test package demo-bad

The following packages are missing the list control file in the
database, they need to be reinstalled:
 demo-lib             test package demo-lib
 libc6:i386           GNU C Library
";

    #[test]
    fn each_package_with_each_thing_that_is_wrong_is_a_finding() {
        let found: Vec<_> = findings(AUDIT).into_iter().collect();
        assert_eq!(found.len(), 3);
        assert_eq!(packages(&found), ["demo-bad", "demo-lib", "libc6:i386"]);
        assert!(findings("").is_empty());
        assert!(findings("\n\n").is_empty());
    }

    #[test]
    fn what_was_wrong_before_is_not_fresh_and_the_same_package_with_other_trouble_is() {
        assert!(fresh(AUDIT, AUDIT).is_empty());
        let described = AUDIT.replace("test package", "another text about");
        assert!(fresh(&described, AUDIT).is_empty());
        let before = AUDIT.replace("demo-bad ", "demo-lib ");
        assert_eq!(packages(&fresh(AUDIT, &before)), ["demo-bad"]);
        assert_eq!(
            packages(&fresh("some mess:\n demo-bad\n", AUDIT)),
            ["demo-bad"]
        );
    }

    #[test]
    fn words_about_no_package_are_not_lost() {
        assert_eq!(
            fresh("dpkg: error: database is gone\n", ""),
            [("dpkg: error: database is gone".to_owned(), String::new())]
        );
    }
}
