//! What is reported about a package update.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{HeldBackCause, HeldBackPackage, PackageChange, PackageResult};
use crate::modules::ReportText;
use crate::text;

/// Longest list of results.
pub(super) const MAX_ITEMS: usize = 500;

/// What is reported about a package update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PackageReport {
    /// The planned changes, sorted by name, then architecture.
    pub changes: Vec<PackageChange>,
    /// Packages whose newer version is not installed, sorted by name, then architecture.
    pub held_back: Vec<HeldBackPackage>,
    /// State of each package of the plan after the change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<PackageResult>,
    /// Configuration files with local changes that were not replaced; the package's version lies
    /// next to each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retained_conffiles: Vec<String>,
    /// Units that were restarted because they used replaced files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restarted_services: Vec<String>,
}

impl PackageReport {
    /// Describes the report for people.
    pub(super) fn describe(&self) -> ReportText {
        let count = |packages: usize| text::pluralize(packages, "package", "packages");
        let held_back = (!self.held_back.is_empty()).then(|| {
            let held_back = count(self.held_back.len());
            format!("{held_back} held back ({})", describe_causes(&self.held_back))
        });
        let changes = self.changes.iter().map(|change| {
            let before = change.before.as_deref().unwrap_or("-");
            let after = change.after.as_deref().unwrap_or("-");
            format!("{} {before} -> {after}", change.name)
        });
        let retained = self.retained_conffiles.iter();
        let retained = retained.map(|file| format!("locally changed file kept: {file}"));
        let restarted = (!self.restarted_services.is_empty())
            .then(|| format!("restarted: {}", self.restarted_services.join(", ")));
        ReportText {
            change: count(self.changes.len()),
            planned: held_back.iter().cloned().chain(changes).collect(),
            results: held_back.into_iter().chain(retained).chain(restarted).collect(),
        }
    }
}

/// The number of held back packages per cause.
pub(super) fn count_causes(held_back: &[HeldBackPackage]) -> BTreeMap<HeldBackCause, usize> {
    let mut counts = BTreeMap::new();
    for package in held_back {
        *counts.entry(package.cause).or_default() += 1;
    }
    counts
}

/// The causes with their numbers, for people: `on hold 1, too young 97`.
pub(super) fn describe_causes(held_back: &[HeldBackPackage]) -> String {
    let counts = count_causes(held_back).into_iter();
    let texts = counts.map(|(cause, packages)| format!("{} {packages}", cause.label()));
    texts.collect::<Vec<_>>().join(", ")
}

/// Adds the texts that are not in the list yet, up to its maximum length. After a kill the same
/// texts may be found again.
pub(super) fn add_missing(list: &mut Vec<String>, more: Vec<String>) {
    for text in more {
        if list.len() < MAX_ITEMS && !list.contains(&text) {
            list.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HeldBackCause;

    fn change(name: &str, before: Option<&str>) -> PackageChange {
        PackageChange {
            name: name.into(),
            architecture: "all".into(),
            before: before.map(str::to_owned),
            after: Some("2".into()),
            ..PackageChange::default()
        }
    }

    /// The journal keeps the report as JSON, and an older agent may read it.
    #[test]
    fn unknown_fields_of_a_newer_agent_are_ignored() {
        let report = PackageReport {
            changes: vec![change("app", Some("1"))],
            held_back: vec![HeldBackPackage {
                name: "lib".into(),
                architecture: "all".into(),
                installed: "1".into(),
                available: "2".into(),
                cause: HeldBackCause::Hold,
            }],
            results: vec![PackageResult {
                name: "app".into(),
                architecture: "all".into(),
                version: "2".into(),
                state: "installed".into(),
            }],
            ..PackageReport::default()
        };
        for pointer in ["", "/changes/0", "/held_back/0", "/results/0"] {
            let mut newer = serde_json::to_value(&report).unwrap();
            let object = newer.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
            object.insert("more".into(), 1.into());
            let read: PackageReport = serde_json::from_value(newer).unwrap();
            assert_eq!(read, report, "{pointer}");
        }
    }

    #[test]
    fn held_back_packages_are_described_with_their_causes() {
        let held_back = |name: &str, cause| HeldBackPackage {
            name: name.into(),
            architecture: "all".into(),
            installed: "1".into(),
            available: "2".into(),
            cause,
        };
        let report = PackageReport {
            held_back: vec![
                held_back("app", HeldBackCause::TooYoung),
                held_back("lib", HeldBackCause::Hold),
                held_back("web", HeldBackCause::TooYoung),
            ],
            ..PackageReport::default()
        };
        let text = report.describe();
        let line = "3 packages held back (on hold 1, too young 2)";
        assert_eq!(text.planned, [line]);
        assert_eq!(text.results, [line]);
    }

    #[test]
    fn a_report_is_described_by_its_changes_and_results() {
        let report = PackageReport {
            changes: vec![change("app", Some("1")), change("lib", None)],
            retained_conffiles: vec!["/etc/app.conf".into()],
            restarted_services: vec!["app.service".into(), "lib.service".into()],
            ..PackageReport::default()
        };
        let text = report.describe();
        assert_eq!(text.change, "2 packages");
        assert_eq!(text.planned, ["app 1 -> 2", "lib - -> 2"]);
        let results =
            ["locally changed file kept: /etc/app.conf", "restarted: app.service, lib.service"];
        assert_eq!(text.results, results);
    }
}
