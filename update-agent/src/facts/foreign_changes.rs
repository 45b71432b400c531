//! Changes of packages by a person or by another update program.
//!
//! A file has the versions of the last check. A difference that did not arise while an attempt of the
//! agent changed the node is a foreign change. What others change during such an attempt counts as
//! the agent's.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError};
use crate::journal::{FileJournal, Phase};
use crate::modules::packages::DpkgPackage;
use crate::paths::AgentPaths;

/// Maximum number of packages that a change names.
const MAX_NAMED_PACKAGES: usize = 20;

/// The last change of packages by others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForeignChange {
    /// When dpkg wrote its database, by the node's clock; `None` if that is unknown.
    pub at: Option<DateTime<Utc>>,
    /// Number of packages.
    pub count: u32,
    /// The first of them with their versions, such as `curl:amd64 1.0 -> 1.1`.
    pub packages: Vec<String>,
}

/// The packages of the last check.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct PackageVersions {
    /// Version by `NAME:ARCHITECTURE`.
    versions: BTreeMap<String, String>,
    last_change: Option<ForeignChange>,
}

/// Compares the packages with those of the last check, and stores them. Returns the last change by
/// others. The agent also works without this file, so errors are only logged.
pub(super) fn record_packages(
    paths: &AgentPaths,
    packages: &[DpkgPackage],
    by_agent: bool,
) -> Option<ForeignChange> {
    let present = packages.iter().filter(|package| package.is_present());
    let name = |package: &DpkgPackage| format!("{}:{}", package.name, package.architecture);
    let versions: BTreeMap<_, _> =
        present.map(|package| (name(package), package.version.clone())).collect();
    let last_change = match read_versions(paths) {
        None => None,
        Some(stored) if stored.versions == versions => return stored.last_change,
        Some(stored) if by_agent => stored.last_change,
        Some(stored) => Some(find_change(&stored.versions, &versions, change_time(paths))),
    };
    let seen = PackageVersions { versions, last_change };
    if let Err(error) = write_versions(paths, &seen) {
        let error = evenkeel_kit::chain(&error);
        tracing::warn!(%error, "cannot store the versions of the packages");
    }
    seen.last_change
}

/// The last change by others that the agent has seen.
pub fn read_foreign_change(paths: &AgentPaths) -> Option<ForeignChange> {
    read_versions(paths)?.last_change
}

/// Forgets the packages of the last check, if the present ones cannot be read.
pub(super) fn forget_packages(paths: &AgentPaths) {
    if let Err(error) = durable::remove_file(&paths.package_versions()) {
        let error = evenkeel_kit::chain(&error);
        tracing::warn!(%error, "cannot remove the stored versions of the packages");
    }
}

/// Whether an attempt of the agent is changing the packages, or has changed them.
pub(super) fn is_agent_changing(paths: &AgentPaths) -> bool {
    match FileJournal::peek(&paths.journal()) {
        Ok(Some(entry)) => entry.has_begun() || entry.phase == Phase::Ended,
        Ok(None) => false,
        Err(_) => true,
    }
}

/// The packages of the last check; `None` if there was none or the file is damaged.
fn read_versions(paths: &AgentPaths) -> Option<PackageVersions> {
    let content = durable::read_file(&paths.package_versions()).ok()??;
    serde_json::from_slice(&content).ok()
}

fn write_versions(paths: &AgentPaths, seen: &PackageVersions) -> Result<(), FileError> {
    let content = serde_json::to_vec(seen).unwrap_or_default();
    durable::replace_file(&paths.package_versions(), &content, 0o600)
}

fn change_time(paths: &AgentPaths) -> Option<DateTime<Utc>> {
    let metadata = fs::metadata(paths.inside("/var/lib/dpkg/status")).ok()?;
    DateTime::from_timestamp(metadata.mtime(), 0)
}

fn find_change(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
    at: Option<DateTime<Utc>>,
) -> ForeignChange {
    let removed = before.iter().filter(|(name, _)| !after.contains_key(*name));
    let removed = removed.map(|(name, version)| format!("{name} {version} removed"));
    let changed = after.iter().filter_map(|(name, version)| match before.get(name) {
        None => Some(format!("{name} {version} installed")),
        Some(old) if old != version => Some(format!("{name} {old} -> {version}")),
        Some(_) => None,
    });
    let mut packages: Vec<_> = changed.chain(removed).collect();
    let count = u32::try_from(packages.len()).unwrap_or(u32::MAX);
    packages.truncate(MAX_NAMED_PACKAGES);
    ForeignChange { at, count, packages }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, state: &str) -> DpkgPackage {
        DpkgPackage {
            name: name.to_owned(),
            architecture: "all".to_owned(),
            version: version.to_owned(),
            want: "install".to_owned(),
            state: state.to_owned(),
            flag: "ok".to_owned(),
            size: 0,
        }
    }

    fn installed(packages: &[(&str, &str)]) -> Vec<DpkgPackage> {
        packages.iter().map(|(name, version)| package(name, version, "installed")).collect()
    }

    fn test_paths() -> (tempfile::TempDir, AgentPaths) {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(folder.path(), None);
        paths.prepare().unwrap();
        (folder, paths)
    }

    #[test]
    fn only_a_difference_outside_of_an_attempt_is_a_foreign_change() {
        let (_folder, paths) = test_paths();
        let first = installed(&[("app", "1"), ("lib", "1")]);
        assert_eq!(record_packages(&paths, &first, false), None, "the first look");
        assert_eq!(record_packages(&paths, &first, false), None);
        let second = installed(&[("app", "2"), ("lib", "1")]);
        assert_eq!(record_packages(&paths, &second, true), None, "the agent's own change");
        let third = installed(&[("app", "3"), ("new", "1")]);
        let change = record_packages(&paths, &third, false).unwrap();
        assert_eq!(change.count, 3);
        assert_eq!(change.packages, ["app:all 2 -> 3", "new:all 1 installed", "lib:all 1 removed"]);
        assert_eq!(record_packages(&paths, &third, false), Some(change.clone()), "it stays");
        assert_eq!(read_foreign_change(&paths), Some(change.clone()));
        let fourth = installed(&[("app", "4"), ("new", "1")]);
        assert_eq!(record_packages(&paths, &fourth, true), Some(change), "also after an attempt");
    }

    #[test]
    fn a_package_of_which_only_settings_are_left_is_not_present() {
        let (_folder, paths) = test_paths();
        record_packages(&paths, &[package("app", "1", "installed")], false);
        let change = record_packages(&paths, &[package("app", "1", "config-files")], false);
        assert_eq!(change.unwrap().packages, ["app:all 1 removed"]);
    }

    #[test]
    fn a_large_change_names_some_packages_and_a_damaged_file_starts_again() {
        let (_folder, paths) = test_paths();
        record_packages(&paths, &[], false);
        let names: Vec<_> = (0..50).map(|n| format!("p{n:02}")).collect();
        let many: Vec<_> = names.iter().map(|name| package(name, "1", "installed")).collect();
        let change = record_packages(&paths, &many, false).unwrap();
        assert_eq!((change.count, change.packages.len()), (50, MAX_NAMED_PACKAGES));
        fs::write(paths.package_versions(), "half of it").unwrap();
        assert_eq!(record_packages(&paths, &[], false), None);
        forget_packages(&paths);
        assert_eq!(record_packages(&paths, &many, false), None);
    }
}
