//! Changes of named packages with a fake apt.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use evenkeel_kit::SystemClock;

use super::*;
use crate::modules::packages::PackageToolTimeouts;
use crate::modules::packages::dpkg_samples::installed_packages;
use crate::runner::{Output, RunError, Runner};

/// An apt that knows a few packages.
#[derive(Debug, Default)]
struct FakePackages {
    /// The command lines of changes.
    changes: Mutex<Vec<String>>,
    refreshes: AtomicUsize,
    simulations: AtomicUsize,
    /// What a refresh prints, if it fails.
    refresh_error: Mutex<Option<&'static str>>,
}

impl FakePackages {
    fn has_refreshed(&self) -> bool {
        self.refreshes.load(Ordering::Relaxed) > 0
    }

    /// What apt prints for a simulation of these packages.
    fn simulate(&self, names: &[&str]) -> Result<String, String> {
        let has = |name: &str| names.contains(&name);
        let unknown = |name: &&&str| **name == "none" || (**name == "new" && !self.has_refreshed());
        let unknown = names.iter().filter(unknown);
        let unknown: Vec<_> =
            unknown.map(|name| format!("E: Unable to locate package {name}\n")).collect();
        if !unknown.is_empty() {
            return Err(unknown.concat());
        }
        if has("one") != has("other") {
            return Err("E: one needs the same version of other\n".to_owned());
        }
        if has("web") && has("anti-web") {
            return Err("E: anti-web conflicts with web\n".to_owned());
        }
        let mut lines = Vec::new();
        for name in names {
            let additional = match *name {
                "base-" => "Remv base [1.0]\nRemv shell [1.0]\n",
                "php8.2" => "Note, selecting 'php8x2' for regex 'php8.2'\n",
                "needs-held" => "Inst held [1.0] (2.0 Debian:12.1/stable [amd64])\n",
                _ => "",
            };
            lines.push(additional.to_owned());
            lines.push(match name.strip_suffix('-') {
                Some("base") => String::new(),
                Some(removed) => format!("Remv {removed} [1.0]\n"),
                None => format!("Inst {name} (1.0 Debian:12.1/stable [amd64])\n"),
            });
        }
        Ok(lines.concat())
    }
}

#[async_trait::async_trait]
impl Runner for FakePackages {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let line = command.to_string();
        let ended = |status: i32, stdout: String, stderr: &str| {
            Ok(Output { status: Some(status), stdout, stderr: stderr.to_owned() })
        };
        if command.program == "dpkg-query" {
            let line = |(name, want): (&str, &str)| {
                format!("{name}\tamd64\t1.0\t{want}\tinstalled\tok\t10\n")
            };
            let packages = ["old", "base", "shell", "tool"].map(|name| (name, "install"));
            return ended(
                0,
                packages.into_iter().chain([("held", "hold")]).map(line).collect(),
                "",
            );
        }
        if line.ends_with("--print-architecture") {
            return ended(0, "amd64\n".to_owned(), "");
        }
        if line.contains(" update ") {
            self.refreshes.fetch_add(1, Ordering::Relaxed);
            let error = *self.refresh_error.lock().unwrap();
            return ended(
                if error.is_some() { 100 } else { 0 },
                String::new(),
                error.unwrap_or(""),
            );
        }
        let Some((_, names)) = line.split_once(" install -- ") else {
            return ended(0, String::new(), "");
        };
        let names: Vec<&str> = names.split(' ').collect();
        if line.contains("--simulate") {
            self.simulations.fetch_add(1, Ordering::Relaxed);
            return match self.simulate(&names) {
                Ok(stdout) => ended(0, stdout, ""),
                Err(stderr) => ended(100, String::new(), &stderr),
            };
        }
        self.changes.lock().unwrap().push(line.clone());
        ended(if names.contains(&"web-broken") { 100 } else { 0 }, String::new(), "")
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
        let tools = PackageTools::new(runner, timeouts);
        let changer = NamedPackageChanger::new(
            tools,
            paths,
            owner,
            (Arc::new(SystemClock), Duration::from_hours(4)),
        );
        let fixture = Self { apt, root, changer };
        fs::create_dir_all(fixture.lists()).unwrap();
        fs::write(fixture.lists().join("deb.example_InRelease"), "").unwrap();
        fixture
    }

    fn lists(&self) -> PathBuf {
        self.root.path().join("var/lib/apt/lists")
    }

    fn refreshes(&self) -> usize {
        self.apt.refreshes.load(Ordering::Relaxed)
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
        let lines = self.apt.changes.lock().unwrap().drain(..).collect();
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
        packages.remove_finished(&installed_packages(&[]), "amd64");
        assert!(!packages.is_empty());
        let tool = installed_packages(&["tool"]).remove(0);
        let tool = DpkgPackage { version: "1.0".into(), ..tool };
        let foreign = DpkgPackage { architecture: "i386".into(), ..tool.clone() };
        packages.remove_finished(slice::from_ref(&foreign), "amd64");
        assert!(!packages.is_empty(), "another architecture is another package");
        packages.remove_finished(&[foreign, tool], "amd64");
        assert_eq!(packages.is_empty(), is_finished, "{version}");
    }
}

#[tokio::test]
async fn a_transaction_that_fails_names_the_packages_that_have_not_changed() {
    let fixture = Fixture::new();
    let (changed, lines) = fixture.change(&["web-broken"], &[]).await;
    let reason = "web-broken: apt-get install ended with status 100";
    assert_eq!(changed, Ok(vec![reason.to_owned()]));
    assert_eq!((lines.len(), fixture.refreshes()), (2, 1), "once more with new lists");
}

#[tokio::test]
async fn apt_must_not_remove_packages_in_a_transaction_without_removals() {
    let fixture = Fixture::new();
    let (_, lines) = fixture.change(&["web"], &[]).await;
    assert!(lines[0].contains(" --no-remove "), "{lines:?}");
    let (_, lines) = fixture.change(&["web"], &["old"]).await;
    assert!(!lines[0].contains(" --no-remove "), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("--allow-change-held-packages")), "{lines:?}");
}

#[tokio::test]
async fn a_package_that_cannot_be_changed_does_not_stop_the_others() {
    for (installs, removals, line, refused) in [
        (
            &["web", "none"][..],
            &["old", "base"][..],
            "web old-",
            &["none: no package source has it", "base: apt would also remove shell"][..],
        ),
        // What the document removes as well may go.
        (&["none"], &["base", "shell"], "base- shell-", &["none: no package source has it"]),
        (&["web"], &["base", "tool", "old", "shell"], "web base- tool- old- shell-", &[]),
        (
            &["one", "web", "other", "none"],
            &[],
            "one web other",
            &["none: no package source has it"],
        ),
        (
            &["one", "web", "needs-held", "other"],
            &[],
            "web one other",
            &["needs-held: it would change packages that are on hold: held"],
        ),
        (&["web", "php8.2"], &[], "web", &["php8.2: apt knows no package with this name"]),
        (&["web", "anti-web"], &[], "web", &["anti-web: apt-get --simulate ended with status 100"]),
    ] {
        let fixture = Fixture::new();
        let (changed, lines) = fixture.change(installs, removals).await;
        let found = changed.unwrap();
        assert_eq!(found.len(), refused.len(), "{found:?}");
        for (found, refused) in found.iter().zip(refused) {
            assert!(found.starts_with(refused), "{found}");
        }
        let end = format!(" install -- {line}");
        assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with(&end)), "{lines:?}");
    }
}

#[tokio::test]
async fn a_package_on_hold_does_not_change() {
    let fixture = Fixture::new();
    let reason = "it would change packages that are on hold: held";
    for (installs, removals) in [(&["needs-held"][..], &[][..]), (&[], &["held"])] {
        let (changed, lines) = fixture.change(installs, removals).await;
        let name = installs.first().or(removals.first()).unwrap();
        assert_eq!((changed, lines), (Ok(vec![format!("{name}: {reason}")]), vec![]));
    }
}

#[tokio::test]
async fn the_number_of_simulations_is_limited() {
    let fixture = Fixture::new();
    let names: Vec<String> = (0..300).map(|number| format!("app{number}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names[200] = "needs-held";
    let (changed, lines) = fixture.change(&names, &[]).await;
    assert_eq!((changed.unwrap().len(), lines.len()), (1, 2));
    assert!(fixture.apt.simulations.load(Ordering::Relaxed) < 50);
    // Each of them changes a package on hold.
    let fixture = Fixture::new();
    let (changed, _) = fixture.change(&["needs-held"; 500], &[]).await;
    assert_eq!(changed.unwrap().len(), 500);
    assert!(fixture.apt.simulations.load(Ordering::Relaxed) < 1000);
}

#[tokio::test]
async fn package_lists_are_refreshed_if_they_are_missing_or_old_or_a_package_fails() {
    let fixture = Fixture::new();
    fixture.change(&["web"], &[]).await.0.unwrap();
    assert_eq!(fixture.refreshes(), 0);
    let (changed, lines) = fixture.change(&["web", "new"], &[]).await;
    assert_eq!((changed, lines.len(), fixture.refreshes()), (Ok(vec![]), 2, 1));
    fixture.change(&["none"], &[]).await.0.unwrap();
    assert_eq!(fixture.refreshes(), 1, "once for each process");

    let fixture = Fixture::new();
    fs::remove_dir_all(fixture.lists()).unwrap();
    fixture.change(&["tool"], &[]).await.0.unwrap();
    assert_eq!(fixture.refreshes(), 0, "nothing changes");
    let (changed, lines) = fixture.change(&["new"], &[]).await;
    assert_eq!((changed, lines.len(), fixture.refreshes()), (Ok(vec![]), 1, 1));
}

#[tokio::test]
async fn a_source_that_is_offline_does_not_stop_the_packages_of_others() {
    let fixture = Fixture::new();
    fs::remove_dir_all(fixture.lists()).unwrap();
    *fixture.apt.refresh_error.lock().unwrap() = Some("E: Failed to fetch https://own.example/\n");
    let (changed, lines) = fixture.change(&["web", "none"], &[]).await;
    let refused = changed.unwrap();
    let [missing] = &refused[..] else { panic!("{refused:?}") };
    assert!(missing.contains("; the package lists could not be refreshed: "), "{missing}");
    assert!(lines.len() == 1 && lines[0].ends_with(" install -- web"), "{lines:?}");
}

#[tokio::test]
async fn the_owner_limits_the_changes() {
    for (limits, refused) in [
        ("new_packages = false", "web: it would install web, which the machine's owner does not"),
        ("removals = false", "old: it would remove old, which the machine's owner does not allow"),
        ("protected_packages = [\"ol*\"]", "old: it would remove old, which `protected_packages`"),
        ("suites = [\"bookworm\"]", "web: it would install web 1.0, which is in none of the"),
    ] {
        let fixture = Fixture::new();
        fixture.write_limits(limits);
        let (changed, lines) = fixture.change(&["web"], &["old"]).await;
        let all = changed.unwrap();
        assert!(all.len() == 1 && all[0].starts_with(refused), "{limits}: {all:?}");
        let name = if refused.starts_with("web") { "old-" } else { "web" };
        assert!(lines.iter().all(|line| line.ends_with(&format!(" -- {name}"))), "{limits}");
    }
    let fixture = Fixture::new();
    fixture.write_limits("hours = [\"never\"]");
    let (changed, lines) = fixture.change(&["web"], &[]).await;
    assert!(changed.is_err() && lines.is_empty());
}
