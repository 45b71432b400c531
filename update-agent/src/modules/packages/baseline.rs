//! The state of the node before a change, to find out afterwards what the change did.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use super::plan::{PackageStep, StepItem};
use super::{PackagesModule, apt_log};
use crate::facts::reboot;
use crate::model::Failure;
use crate::os;
use crate::paths::AgentPaths;

/// Suffixes of the package's version of a configuration file, which dpkg and ucf write if the local version is retained.
const CONFFILE_SUFFIXES: [&str; 3] = [".dpkg-dist", ".dpkg-new", ".ucf-dist"];

/// The configuration files that scripts of packages manage with ucf: digest and path, one file a line. ucf asks nothing,
/// because debconf has no frontend: it replaces unchanged files and retains changed ones, as dpkg does with the options for
/// conffiles. `UCF_FORCE_CONFFOLD` would retain the unchanged ones, too.
const UCF_FILES: &str = "/var/lib/ucf/hashfile";

/// Files that packages write when they need a reboot.
const REBOOT_REQUIRED_FILE: &str = "/run/reboot-required";
const REBOOT_PACKAGES_FILE: &str = "/run/reboot-required.pkgs";

/// The state of the node before a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PackageBaseline {
    /// Output of dpkg's audit.
    pub audit: String,
    /// The active services.
    pub services: BTreeSet<String>,
    /// Package versions of configuration files that lie next to locally changed ones.
    pub conffile_copies: BTreeMap<String, FileIdentity>,
    /// Existing reboot requests.
    pub reboot_requests: RebootRequests,
    /// Length of apt's own log.
    pub log_length: u64,
}

/// Identifies a file that may be replaced: inode and modification time.
pub type FileIdentity = (u64, i64, i64);

/// Reboot requests of packages and of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RebootRequests {
    /// Reasons, for a person.
    pub reasons: Vec<String>,
    /// Identity of the file `/run/reboot-required`.
    pub mark: Option<FileIdentity>,
    /// Length of the list of packages.
    pub list_length: u64,
}

impl PackagesModule {
    /// Takes the baseline. Services are omitted if they cannot be listed.
    pub(super) async fn observe_baseline(
        &self,
        steps: &[PackageStep],
    ) -> Result<PackageBaseline, Failure> {
        let services = if self.services {
            self.tools.active_services().await.unwrap_or_else(|failure| {
                tracing::warn!(error = %failure, "cannot list the active services");
                BTreeSet::new()
            })
        } else {
            BTreeSet::new()
        };
        Ok(PackageBaseline {
            audit: self.tools.audit().await?,
            services,
            conffile_copies: self.find_conffile_copies(steps).await?,
            reboot_requests: read_reboot_requests(&self.paths),
            log_length: apt_log::log_length(&self.paths),
        })
    }

    /// Finds the package versions that lie next to the configuration files of the changed packages.
    async fn find_conffile_copies(
        &self,
        steps: &[PackageStep],
    ) -> Result<BTreeMap<String, FileIdentity>, Failure> {
        let items = steps.iter().flat_map(PackageStep::items);
        let packages: Vec<&str> = items.map(item_package).collect();
        let mut files = self.tools.list_conffiles(&packages).await?;
        files.extend(read_ucf_files(&self.paths));
        Ok(find_copies(&self.paths, &files))
    }

    /// The configuration files with local changes that were not replaced since the baseline.
    pub(super) async fn find_retained_conffiles(
        &self,
        steps: &[PackageStep],
        baseline: &PackageBaseline,
    ) -> Result<Vec<String>, Failure> {
        let now = self.find_conffile_copies(steps).await?;
        let new_copies = now
            .iter()
            .filter(|(file, identity)| baseline.conffile_copies.get(*file) != Some(*identity));
        let retained: BTreeSet<_> =
            new_copies.map(|(file, _)| strip_conffile_suffix(file)).collect();
        Ok(retained.into_iter().map(str::to_owned).collect())
    }
}

/// The files that ucf manages, for whichever package: not every package registers its files.
fn read_ucf_files(paths: &AgentPaths) -> Vec<String> {
    parse_ucf_files(&os::read_lossy(&paths.inside(UCF_FILES)).unwrap_or_default())
}

pub(super) fn parse_ucf_files(text: &str) -> Vec<String> {
    let files = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let files = files.map(|(_, path)| path.trim()).filter(|path| path.starts_with('/'));
    files.map(str::to_owned).collect()
}

/// The package versions that lie next to configuration files.
fn find_copies(paths: &AgentPaths, files: &[String]) -> BTreeMap<String, FileIdentity> {
    let candidates =
        files.iter().flat_map(|file| CONFFILE_SUFFIXES.map(|end| format!("{file}{end}")));
    let copies = candidates.filter_map(|file| {
        let identity = file_identity(paths, &file)?;
        Some((file, identity))
    });
    copies.collect()
}

fn item_package(item: &StepItem) -> &str {
    &item.package
}

fn strip_conffile_suffix(file: &str) -> &str {
    let ends = CONFFILE_SUFFIXES.iter().find_map(|end| file.strip_suffix(end));
    ends.unwrap_or(file)
}

fn file_identity(paths: &AgentPaths, path: &str) -> Option<FileIdentity> {
    let about = fs::symlink_metadata(paths.inside(path)).ok()?;
    Some((about.ino(), about.mtime(), about.mtime_nsec()))
}

/// Reads the present reboot requests.
fn read_reboot_requests(paths: &AgentPaths) -> RebootRequests {
    RebootRequests {
        reasons: reboot::read_reboot_status(paths, &os::kernel_release()).reasons,
        mark: file_identity(paths, REBOOT_REQUIRED_FILE),
        list_length: fs::metadata(paths.inside(REBOOT_PACKAGES_FILE))
            .map_or(0, |about| about.len()),
    }
}

/// The reasons for a reboot that were added since the baseline; empty if there are none.
pub(super) fn reboot_reasons_since(paths: &AgentPaths, earlier: &RebootRequests) -> Vec<String> {
    let now = read_reboot_requests(paths);
    let new_reasons = now.reasons.iter();
    let new_reasons = new_reasons.filter(|reason| !earlier.reasons.contains(reason));
    let mut new_reasons: Vec<String> = new_reasons.cloned().collect();
    if now.mark.is_some() && now.mark != earlier.mark {
        // A package that had requested a reboot before may request it again.
        let again = packages_added_since(paths, earlier.list_length);
        let again = again.map(|package| format!("{package} requires it"));
        let again: Vec<_> = again.filter(|reason| !new_reasons.contains(reason)).collect();
        new_reasons.extend(again);
        if new_reasons.is_empty() {
            new_reasons.extend(now.reasons);
        }
    }
    new_reasons
}

/// The packages that were added to the list since it had a length.
fn packages_added_since(paths: &AgentPaths, length: u64) -> impl Iterator<Item = String> {
    let list = fs::read(paths.inside(REBOOT_PACKAGES_FILE)).unwrap_or_default();
    let start = usize::try_from(length).unwrap_or(usize::MAX);
    let added = list.get(start..).unwrap_or(&list);
    let names: BTreeSet<_> = String::from_utf8_lossy(added)
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn machine() -> (tempfile::TempDir, AgentPaths) {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("run")).unwrap();
        let paths = AgentPaths::new(root.path(), None);
        (root, paths)
    }

    /// Requests a reboot as packages do, at a time that differs between the calls.
    fn request_reboot(paths: &AgentPaths, package: &str, second: u64) {
        let mark = fs::File::create(paths.inside(REBOOT_REQUIRED_FILE)).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
        mark.set_modified(at).unwrap();
        let list = paths.inside(REBOOT_PACKAGES_FILE);
        let packages = fs::read_to_string(&list).unwrap_or_default();
        fs::write(list, format!("{packages}{package}\n")).unwrap();
    }

    #[test]
    fn only_new_reboot_requests_are_reported() {
        let (_root, paths) = machine();
        let nothing = read_reboot_requests(&paths);
        assert!(reboot_reasons_since(&paths, &nothing).is_empty());
        request_reboot(&paths, "libc6", 1);
        assert_eq!(reboot_reasons_since(&paths, &nothing), ["libc6 requires it"]);

        let before = read_reboot_requests(&paths);
        assert!(reboot_reasons_since(&paths, &before).is_empty(), "another program requested it");
        request_reboot(&paths, "dbus", 2);
        assert_eq!(reboot_reasons_since(&paths, &before), ["dbus requires it"]);
    }

    #[test]
    fn a_repeated_reboot_request_is_reported() {
        let (_root, paths) = machine();
        request_reboot(&paths, "dbus", 1);
        request_reboot(&paths, "libc6", 2);
        let before = read_reboot_requests(&paths);
        request_reboot(&paths, "libc6", 3);
        assert_eq!(reboot_reasons_since(&paths, &before), ["libc6 requires it"]);
        // If the list is unchanged and only the file is new, all reasons are reported.
        let before = read_reboot_requests(&paths);
        let mark = fs::File::create(paths.inside(REBOOT_REQUIRED_FILE)).unwrap();
        mark.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(
            reboot_reasons_since(&paths, &before),
            ["dbus requires it", "libc6 requires it"]
        );
    }

    #[test]
    fn a_baseline_is_read_back_and_an_older_one_has_defaults() {
        let baseline = PackageBaseline {
            audit: "mess".into(),
            services: ["a.service".to_owned()].into(),
            conffile_copies: [("/etc/a.dpkg-dist".to_owned(), (1, 2, 3))].into(),
            reboot_requests: RebootRequests { mark: Some((4, 5, 6)), ..RebootRequests::default() },
            log_length: 7,
        };
        let text = serde_json::to_string(&baseline).unwrap();
        assert_eq!(serde_json::from_str::<PackageBaseline>(&text).unwrap(), baseline);
        assert_eq!(
            serde_json::from_str::<PackageBaseline>("{}").unwrap(),
            PackageBaseline::default()
        );
    }

    #[test]
    fn the_conffile_is_reported_and_not_its_copy() {
        assert_eq!(strip_conffile_suffix("/etc/a.dpkg-dist"), "/etc/a");
        assert_eq!(strip_conffile_suffix("/etc/a.dpkg-new"), "/etc/a");
        assert_eq!(strip_conffile_suffix("/etc/a.ucf-dist"), "/etc/a");
    }

    #[test]
    fn the_files_of_ucf_are_configuration_files() {
        let (_root, paths) = machine();
        assert!(read_ucf_files(&paths).is_empty());
        fs::create_dir_all(paths.inside("/var/lib/ucf")).unwrap();
        fs::create_dir_all(paths.inside("/etc")).unwrap();
        let list =
            "fbc910d4bc9889530c92c7e8b101689b  /etc/a b.conf\n\nx\n01  relative\n02  /etc/c\n";
        fs::write(paths.inside(UCF_FILES), list).unwrap();
        let files = read_ucf_files(&paths);
        assert_eq!(files, ["/etc/a b.conf", "/etc/c"]);
        for name in ["/etc/a b.conf.ucf-dist", "/etc/c", "/etc/c.ucf-old"] {
            fs::write(paths.inside(name), "").unwrap();
        }
        let copies = find_copies(&paths, &files);
        assert_eq!(copies.keys().collect::<Vec<_>>(), ["/etc/a b.conf.ucf-dist"]);
    }
}
