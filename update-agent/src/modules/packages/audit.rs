//! Parses `dpkg --audit`: paragraphs followed by the names of the affected packages.

use std::collections::BTreeSet;

/// A problem and the package that has it.
pub type AuditFinding = (String, String);

/// Parses an audit. A paragraph without a package is a finding with an empty package name.
pub fn parse_findings(text: &str) -> BTreeSet<AuditFinding> {
    let mut findings = BTreeSet::new();
    for paragraph in text.split("\n\n") {
        let (below, above): (Vec<&str>, Vec<&str>) = paragraph
            .lines()
            .filter(|line| !line.trim().is_empty())
            .partition(|line| line.starts_with(' '));
        let what = above.join(" ");
        let packages = below.iter().filter_map(|line| line.split_whitespace().next());
        let before = findings.len();
        findings.extend(packages.map(|package| (what.clone(), package.to_owned())));
        if findings.len() == before && !what.is_empty() {
            findings.insert((what, String::new()));
        }
    }
    findings
}

/// The findings of an audit that an earlier one does not contain.
pub fn new_findings(now: &str, before: &str) -> Vec<AuditFinding> {
    let old_findings = parse_findings(before);
    let all = parse_findings(now).into_iter();
    all.filter(|finding| !old_findings.contains(finding)).collect()
}

/// The packages with findings, by their apt names.
pub fn affected_packages(findings: &[AuditFinding]) -> Vec<String> {
    let with_package = findings.iter().filter(|(_, package)| !package.is_empty());
    let sorted: BTreeSet<_> = with_package.map(|(_, package)| package.clone()).collect();
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
    fn each_problem_of_each_package_is_a_finding() {
        let parsed: Vec<_> = parse_findings(AUDIT).into_iter().collect();
        assert_eq!(parsed.len(), 3);
        assert_eq!(affected_packages(&parsed), ["demo-bad", "demo-lib", "libc6:i386"]);
        assert!(parse_findings("").is_empty());
        assert!(parse_findings("\n\n").is_empty());
    }

    #[test]
    fn old_findings_are_not_new_but_another_problem_of_a_package_is() {
        assert!(new_findings(AUDIT, AUDIT).is_empty());
        let described = AUDIT.replace("test package", "another text about");
        assert!(new_findings(&described, AUDIT).is_empty());
        let before = AUDIT.replace("demo-bad ", "demo-lib ");
        assert_eq!(affected_packages(&new_findings(AUDIT, &before)), ["demo-bad"]);
        assert_eq!(
            affected_packages(&new_findings("some mess:\n demo-bad\n", AUDIT)),
            ["demo-bad"]
        );
    }

    #[test]
    fn text_about_no_package_is_a_finding() {
        assert_eq!(
            new_findings("dpkg: error: database is gone\n", ""),
            [("dpkg: error: database is gone".to_owned(), String::new())]
        );
    }
}
