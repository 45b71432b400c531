//! Changes of named packages with a fake apt.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::time::Duration;

use evenkeel_kit::SystemClock;

use super::*;
use crate::modules::packages::PackageToolTimeouts;
use crate::modules::packages::dpkg_samples::installed_packages;
use crate::runner::{Output, RunError, Runner};

/// An apt that knows a few packages.
#[derive(Debug, Default)]
struct FakePackages(Mutex<Vec<String>>);

#[async_trait::async_trait]
impl Runner for FakePackages {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let line = command.to_string();
        if command.program == "dpkg-query" {
            let stdout = ["old", "base", "tool"]
                .map(|name| format!("{name}\tamd64\t1.0\tinstall\tinstalled\tok\t10\n"));
            let stdout = stdout.concat();
            return Ok(Output { status: Some(0), stdout, ..Output::default() });
        }
        let (_, names) = line.split_once(" -- ").unwrap_or_default();
        let is_simulated = line.contains("--simulate");
        if !is_simulated && line.contains(" install -- ") {
            self.0.lock().unwrap().push(line.clone());
        }
        if names.contains("none") {
            let stderr = "E: Unable to locate package none\n".to_owned();
            return Ok(Output { status: Some(100), stderr, ..Output::default() });
        }
        let mut stdout = String::new();
        if is_simulated && names.contains("web") {
            stdout.push_str("Inst web (1.0 Debian:12.1/stable [amd64])\n");
        }
        if is_simulated && names.contains("old-") {
            stdout.push_str("Remv old [1.0]\n");
        }
        if is_simulated && names.contains("base-") {
            stdout.push_str("Remv base [1.0]\nRemv shell [1.0]\n");
        }
        let has_failed = !is_simulated && names.contains("broken");
        let status = Some(if has_failed { 100 } else { 0 });
        Ok(Output { status, stdout, ..Output::default() })
    }
}

struct Fixture {
    apt: Arc<FakePackages>,
    root: tempfile::TempDir,
    changer: NamedPackageChanger,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let apt = Arc::new(FakePackages::default());
        let minute = Duration::from_mins(1);
        let timeouts = PackageToolTimeouts {
            query: minute,
            refresh: minute,
            download: minute,
            apply: minute,
            lock: minute,
        };
        let owner = Arc::new(Owner::new(paths.clone(), Arc::new(SystemClock)));
        let runner: Arc<dyn Runner> = Arc::clone(&apt) as _;
        let changer = NamedPackageChanger::new(PackageTools::new(runner, timeouts), paths, owner);
        Self { apt, root, changer }
    }

    fn write_limits(&self, text: &str) {
        let folder = self.root.path().join("etc/evenkeel");
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("limits.toml"), text).unwrap();
    }

    /// The refused packages, and the command lines of the changes.
    async fn change(
        &self,
        installs: &[&str],
        removals: &[&str],
    ) -> (Result<Vec<String>, String>, Vec<String>) {
        let requirement =
            |name: &&str| PackageRequirement { name: (*name).to_owned(), version: None };
        let packages = NamedPackages {
            update_lists: false,
            installs: installs.iter().map(requirement).collect(),
            removals: removals.iter().map(|name| (*name).to_owned()).collect(),
        };
        let changed = self.changer.change(&packages).await;
        let to_text = |refused: RefusedPackage| format!("{}: {}", refused.name, refused.reason);
        let changed = changed.map(|refused| refused.into_iter().map(to_text).collect());
        let lines = self.apt.0.lock().unwrap().drain(..).collect();
        (changed.map_err(|failure| failure.reason), lines)
    }
}

#[tokio::test]
async fn packages_change_in_one_transaction_of_apt() {
    let fixture = Fixture::new();
    let (changed, lines) = fixture.change(&["web"], &["old"]).await;
    assert_eq!(changed, Ok(vec![]));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.ends_with(" install -- web old-"), "{line}");
    for option in [
        "--yes",
        "Dpkg::Use-Pty=0",
        "DPkg::Options::=--force-confdef",
        "DPkg::Options::=--force-confold",
        "APT::Get::AutomaticRemove=false",
    ] {
        assert!(line.contains(option), "{line}");
    }
    assert_eq!(fixture.change(&[], &[]).await, (Ok(vec![]), vec![]));
}

#[tokio::test]
async fn packages_that_are_as_requested_do_not_change() {
    let fixture = Fixture::new();
    let (changed, lines) = fixture.change(&["tool", "tool:amd64"], &["gone"]).await;
    assert_eq!((changed, lines), (Ok(vec![]), vec![]));
    let package = |version: &str| NamedPackages {
        installs: vec![PackageRequirement { name: "tool".into(), version: Some(version.into()) }],
        ..NamedPackages::default()
    };
    for (version, is_finished) in [("1.0", true), ("2.0", false)] {
        let mut packages = package(version);
        packages.remove_finished(&installed_packages(&[]));
        assert!(!packages.is_empty());
        let tool = installed_packages(&["tool"]).remove(0);
        packages.remove_finished(&[DpkgPackage { version: "1.0".into(), ..tool }]);
        assert_eq!(packages.is_empty(), is_finished, "{version}");
    }
}

#[tokio::test]
async fn a_transaction_that_fails_names_the_packages_that_have_not_changed() {
    let fixture = Fixture::new();
    let (changed, _) = fixture.change(&["web-broken"], &[]).await;
    let reason = "web-broken: apt-get install ended with status 100";
    assert_eq!(changed, Ok(vec![reason.to_owned()]));
}

#[tokio::test]
async fn a_package_that_cannot_be_changed_does_not_stop_the_others() {
    let fixture = Fixture::new();
    let (changed, lines) = fixture.change(&["web", "none"], &["old", "base"]).await;
    let refused = changed.unwrap();
    let [missing, needed] = &refused[..] else { panic!("{refused:?}") };
    assert!(missing.starts_with("none: apt-get --simulate ended with status 100"), "{missing}");
    assert_eq!(needed, "base: apt would also remove shell");
    assert!(lines[0].ends_with(" install -- web old-") && lines.len() == 1, "{lines:?}");
}

#[tokio::test]
async fn the_owner_limits_the_changes() {
    for (limits, refused) in [
        ("new_packages = false", "web: the machine's owner does not allow new packages"),
        ("removals = false", "old: the machine's owner does not allow removals"),
        ("protected_packages = [\"ol*\"]", "old: the machine's owner does not allow the removal"),
        ("suites = [\"bookworm\"]", "web: the machine's owner does not allow web 1.0, which"),
    ] {
        let fixture = Fixture::new();
        fixture.write_limits(limits);
        let (changed, lines) = fixture.change(&["web"], &["old"]).await;
        let all = changed.unwrap();
        assert!(all.len() == 1 && all[0].starts_with(refused), "{limits}: {all:?}");
        assert_eq!(lines.len(), 1, "{limits}");
    }
    let fixture = Fixture::new();
    fixture.write_limits("hours = [\"never\"]");
    let (changed, lines) = fixture.change(&["web"], &[]).await;
    assert!(changed.is_err() && lines.is_empty());
}
