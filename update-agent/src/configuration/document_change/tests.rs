//! Changes of a machine in a temporary folder, with interruptions.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use evenkeel_configuration::native;
use evenkeel_kit::SystemClock;
use evenkeel_reconcile::report::ComplianceState;
use evenkeel_reconcile::run::RunOutcome;

use super::*;
use crate::config::Config;
use crate::hooks::fake::FakeRunner;
use crate::journal::{Journal as _, JournalEntry, JournalPoint, Phase};
use crate::model::{ModuleParts, UpdateTarget};
use crate::paths::AgentPaths;

struct Fixture {
    folder: tempfile::TempDir,
    paths: AgentPaths,
    runner: Arc<FakeRunner>,
}

/// Stops the command when it prints its first step.
struct StopAtFirstStep(CancellationToken);

impl Write for StopAtFirstStep {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.cancel();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(folder.path(), None);
        for name in ["etc", "etc/evenkeel", "var", "var/lib"] {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        paths.prepare().unwrap();
        Self { folder, paths, runner: Arc::new(FakeRunner::default()) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn prepare(&self, text: &str) -> anyhow::Result<DocumentChange> {
        let document = native::read(text).unwrap();
        let config = Config::default();
        let runner: Arc<dyn Runner> = Arc::clone(&self.runner) as _;
        let registry =
            ModuleRegistry::with_runner(&config, &self.paths, runner, Arc::new(SystemClock));
        let secrets = SecretValues::default();
        DocumentChange::prepare(&registry, (document, EntryScope::default()), secrets)
    }

    async fn apply(&self, text: &str) -> RunReport {
        let change = self.prepare(text).unwrap();
        let root = self.folder.path();
        change.run(&*self.runner, root, io::sink(), CancellationToken::new()).await.unwrap()
    }

    async fn interrupt(&self, text: &str) -> String {
        let stop = CancellationToken::new();
        let notes = StopAtFirstStep(stop.clone());
        let change = self.prepare(text).unwrap();
        let stopped = change.run(&*self.runner, self.folder.path(), notes, stop).await;
        stopped.unwrap_err().to_string()
    }
}

fn files(names: &[&str]) -> String {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let entry = |name: &&str| {
        format!("{{component: File, name: {name}, desired: {{owner: '{user}', group: '{group}'}}}}")
    };
    let entries: Vec<_> = names.iter().map(entry).collect();
    format!("bundles: [{{name: all, entries: [{}]}}]", entries.join(", "))
}

#[tokio::test]
async fn a_change_that_was_stopped_is_continued() {
    let fixture = Fixture::new();
    let text = files(&["/etc/motd"]);
    let stopped = fixture.interrupt(&text).await;
    assert_eq!(stopped, "stopped on request; run the command again to continue");
    assert!(fixture.paths.configuration().join("run.jsonl").exists());
    let report = fixture.apply(&text).await;
    assert_eq!(
        (report.outcome, report.report.state),
        (RunOutcome::Succeeded, ComplianceState::Clean)
    );
    assert!(report.report.entries[0].modified);
    let left = std::fs::read_dir(fixture.paths.configuration()).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["state.json"]);
    let report = fixture.apply(&text).await;
    assert!(!report.report.entries[0].modified);
}

#[tokio::test]
async fn another_document_replaces_a_change_that_was_stopped() {
    let fixture = Fixture::new();
    fixture.interrupt(&files(&["/etc/motd"])).await;
    assert!(fixture.path("etc/motd").exists());
    let report = fixture.apply(&files(&["/etc/issue"])).await;
    assert_eq!(report.outcome, RunOutcome::Succeeded);
    assert!(fixture.path("etc/issue").exists());
    assert!(!fixture.path("etc/motd").exists(), "the node has created it");
}

#[tokio::test]
async fn an_update_or_another_change_is_not_disturbed() {
    let fixture = Fixture::new();
    let text = files(&["/etc/motd"]);
    let first = fixture.prepare(&text).unwrap();
    let error = fixture.prepare(&text).unwrap_err().to_string();
    assert!(error.starts_with("the agent is planning or beginning an update"), "{error}");
    drop(first);
    std::fs::write(fixture.paths.journal(), "{}").unwrap();
    let error = fixture.prepare(&text).unwrap_err().to_string();
    assert!(error.starts_with("an update is in progress"), "{error}");
    std::fs::remove_file(fixture.paths.journal()).unwrap();
    let target = UpdateTarget { digest: "d".into(), spec: ModuleParts::default() };
    let journal = FileJournal::new(fixture.paths.journal());
    for (phase, is_free) in [
        (Phase::Downloading, true),
        (Phase::Staged, true),
        (Phase::Applying, false),
        (Phase::Rebooting, false),
        (Phase::Verifying, false),
        (Phase::Ended, true),
    ] {
        let entry = JournalEntry { phase, ..JournalEntry::new(Uuid::nil(), target.clone()) };
        journal.write(&JournalPoint::fixed("opened"), &entry).unwrap();
        let prepared = fixture.prepare(&text).map_err(|error| error.to_string());
        assert_eq!(prepared.is_ok(), is_free, "{phase:?}: {prepared:?}");
    }
    journal.clear().unwrap();
    std::fs::write(fixture.path("etc/evenkeel/limits.toml"), "hours = 7").unwrap();
    let error = fixture.prepare(&text).unwrap_err().to_string();
    assert!(error.starts_with("cannot use the owner's limits"), "{error}");
}

#[tokio::test]
async fn an_action_runs_only_if_the_owner_allows_it() {
    let text = "bundles: [{name: all, entries: [
        {component: Action, name: warm up, desired: {command: 'true', when: always}}]}]";
    let fixture = Fixture::new();
    let report = fixture.apply(text).await;
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert!(report.failures[0].reason.contains("does not allow"), "{:?}", report.failures);
    assert_eq!(fixture.runner.commands(), Vec::<String>::new());
    let limits = "[configuration]\nactions = [\"all\"]";
    std::fs::write(fixture.path("etc/evenkeel/limits.toml"), limits).unwrap();
    fixture.runner.set_result("/bin/sh", 0, "");
    let report = fixture.apply(text).await;
    assert_eq!(report.outcome, RunOutcome::Succeeded);
    assert_eq!(fixture.runner.commands(), ["/bin/sh -c true"]);
}

#[tokio::test]
async fn a_source_that_the_owner_does_not_allow_stops_the_change_before_it_begins() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("etc/evenkeel/limits.toml"), "new_sources = false").unwrap();
    let source = "Types: deb\\nURIs: https://deb.example\\nSuites: own\\nComponents: main";
    let text = format!(
        "bundles: [{{name: all, entries: [
            {{component: PackageSource, name: own, desired: {{source: \"{source}\"}}}}]}}]"
    );
    let error = fixture.prepare(&text).unwrap_err().to_string();
    let expected = "nothing was changed: PackageSource own: the machine's owner does not allow";
    assert!(error.starts_with(expected), "{error}");
}

#[tokio::test]
async fn a_document_that_changes_what_the_limits_trust_changes_nothing() {
    let fixture = Fixture::new();
    let limits = "[configuration]\nactions = [\"/opt/actions\"]";
    std::fs::write(fixture.path("etc/evenkeel/limits.toml"), limits).unwrap();
    for path in ["/etc/evenkeel/limits.toml", "/opt/actions/evil", "/var/lib/evenkeel-agent/ca.pem"]
    {
        let error = fixture.prepare(&files(&["/etc/motd", path])).unwrap_err().to_string();
        assert!(error.starts_with(&format!("nothing was changed: File {path} ")), "{error}");
    }
    assert!(!fixture.path("etc/motd").exists());
}

#[tokio::test]
async fn kernel_settings_of_an_image_do_not_change_the_kernel_that_runs() {
    let fixture = Fixture::new();
    let text = "bundles: [{name: all, entries: [
        {component: Sysctl, name: kernel.panic, desired: {value: '7'}}]}]";
    fixture.prepare(text).unwrap();
    std::fs::create_dir_all(fixture.path("proc/sys/kernel")).unwrap();
    std::fs::write(fixture.path("proc/sys/kernel/panic"), "0\n").unwrap();
    let error = fixture.prepare(text).unwrap_err().to_string();
    assert!(error.contains("the image has /proc mounted"), "{error}");
    fixture.prepare(&files(&["/etc/motd"])).unwrap();
}

#[tokio::test]
async fn packages_change_through_apt() {
    let fixture = Fixture::new();
    for (program, output) in [
        // Its architecture. As the output of `--audit`, it is a package to configure.
        ("dpkg", "amd64\n"),
        ("dpkg-query", "old\tamd64\t1.0\tinstall\tinstalled\tok\t10\n"),
        ("apt-get", "Remv old [1.0]\n"),
    ] {
        fixture.runner.set_result(program, 0, output);
    }
    std::fs::create_dir_all(fixture.path("var/lib/dpkg")).unwrap();
    let status = "Package: old\nStatus: install ok installed\nVersion: 1.0\nArchitecture: amd64\n";
    std::fs::write(fixture.path("var/lib/dpkg/status"), status).unwrap();
    let text = "bundles: [{name: all, entries: [
        {component: Package, name: old, desired: {version: absent}}]}]";
    let report = fixture.apply(text).await;
    // The fake apt has not removed it.
    assert_eq!(report.outcome, RunOutcome::Failed);
    let commands = fixture.runner.commands();
    let changes = commands.iter().filter(|line| line.ends_with(" install -- old-"));
    assert_eq!(changes.count(), 2, "a simulation and the change: {commands:?}");
}
