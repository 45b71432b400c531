//! Tests of whole runs on a machine whose files are in a temporary folder, with models of systemd,
//! dpkg and the programs for accounts.

mod accounts_model;
mod bundles;
mod failures;
mod fuse;
mod interruptions;
mod kills;
mod moves;
mod order;
mod pending;
mod protection;
mod random;
mod removals;
mod restarts;
mod reverts;
mod systemd_model;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{ActionSpec, Desired, Document};
use evenkeel_configuration::native;

use super::*;
use crate::change::{PackageFailure, PackageRequest};
use crate::check::must_run;
use crate::files::EmptyContentSource;
use crate::files::tests::FileMachine;
use crate::machine::{Program, ProgramError, ProgramOutput, ProgramRunner};
use crate::report::{Report, Verdict};

use fuse::{Fuse, FusedJournal};
use systemd_model::SystemdModel;

/// A machine for tests, with the state that its agent keeps.
struct SimulatedNode {
    files: FileMachine,
    model: Arc<Mutex<NodeModel>>,
    state: NodeState,
    journal: MemoryJournal,
    scope: EntryScope,
}

/// What programs of the machine know and do.
#[derive(Clone, Debug, Default)]
struct NodeModel {
    systemd: SystemdModel,
    /// Calls that change something, in their order.
    calls: Vec<String>,
    /// Files that packages bring: a path and its content.
    package_files: BTreeMap<String, Vec<(String, String)>>,
    /// The beginning of a call that kills the agent after its effect.
    killing_call: Option<String>,
    /// Beginnings of calls that fail, each once.
    failing_calls: Vec<String>,
    /// Users with processes.
    busy_users: BTreeSet<String>,
    /// Packages that cannot be installed.
    broken_packages: Vec<String>,
}

/// Runs programs until the fuse is burnt.
struct ModelPrograms {
    root: PathBuf,
    model: Arc<Mutex<NodeModel>>,
    fuse: Fuse,
}

impl ProgramRunner for ModelPrograms {
    fn run(&self, program: &Program) -> Result<ProgramOutput, ProgramError> {
        let arguments: Vec<&str> = program.arguments.iter().map(String::as_str).collect();
        let is_query = matches!(arguments.first(), Some(&("show" | "is-enabled" | "is-active")));
        let killed = || ProgramError::NotStarted {
            program: program.name.clone(),
            reason: "killed".to_owned(),
        };
        if !is_query && !self.fuse.pass() {
            return Err(killed());
        }
        let mut model = self.model.lock().unwrap();
        if !is_query {
            let call = format!("{} {}", program.name, arguments.join(" "));
            model.calls.push(call.replace(" -- ", " "));
            if let Some(position) =
                model.failing_calls.iter().position(|text| call.starts_with(text))
            {
                model.failing_calls.swap_remove(position);
                let stderr = b"Connection timed out\n".to_vec();
                return Ok(ProgramOutput { status: 1, stdout: Vec::new(), stderr });
            }
        }
        let (status, output) = match program.name.as_str() {
            "systemctl" => model.systemd.run(&self.root, &arguments),
            "pkill" => {
                model.busy_users.clear();
                (0, String::new())
            }
            "loginctl" => (1, "no session".to_owned()),
            "userdel" if model.busy_users.contains(&program.arguments[1]) => {
                (8, "userdel: user is currently used by process 7".to_owned())
            }
            "/bin/sh" => (i32::from(arguments[1].starts_with("false")), String::new()),
            name => match accounts_model::run(&self.root, name, &program.arguments) {
                Ok(()) => (0, String::new()),
                Err(error) => (1, error),
            },
        };
        let call = format!("{} {}", program.name, arguments.join(" "));
        if !is_query && model.killing_call.as_ref().is_some_and(|text| call.starts_with(text)) {
            self.fuse.burn();
        }
        if !is_query && !self.fuse.pass() {
            return Err(killed());
        }
        let output = output.into_bytes();
        let (stdout, stderr) = if status == 0 { (output, vec![]) } else { (vec![], output) };
        Ok(ProgramOutput { status, stdout, stderr })
    }
}

impl PackageInstaller for ModelPrograms {
    fn apply(&self, request: &PackageRequest) -> Result<Vec<PackageFailure>, String> {
        if !self.fuse.pass() {
            return Err("killed".to_owned());
        }
        let mut model = self.model.lock().unwrap();
        let update = if request.update_lists { "update " } else { "" };
        let install: Vec<&str> = request.install.iter().map(|t| t.name.as_str()).collect();
        model.calls.push(format!("packages {update}+{install:?} -{:?}", request.remove));
        if model.killing_call.as_deref() == Some("packages") {
            self.fuse.burn();
        }
        let mut failures = Vec::new();
        for target in &request.install {
            if model.broken_packages.contains(&target.name) {
                let reason = "no such package".to_owned();
                failures.push(PackageFailure { name: target.name.clone(), reason });
                continue;
            }
            let version = target.version.as_deref().unwrap_or("1.0");
            set_package(&self.root, &target.name, Some(version));
            for (path, content) in model.package_files.get(&target.name).into_iter().flatten() {
                let path = self.root.join(path.trim_start_matches('/'));
                // As dpkg does, which also replaces a link by the file.
                if !path.is_dir() {
                    let _ = std::fs::remove_file(&path);
                    write(&path, content);
                }
            }
        }
        for name in &request.remove {
            set_package(&self.root, name, None);
        }
        if self.fuse.pass() { Ok(failures) } else { Err("killed".to_owned()) }
    }
}

fn write(path: &Path, content: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
}

/// Sets the version of a package in dpkg's database.
fn set_package(root: &Path, name: &str, version: Option<&str>) {
    let name = crate::names::package_base_name(name);
    let path = root.join("var/lib/dpkg/status");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut stanzas: Vec<String> = text
        .split("\n\n")
        .filter(|stanza| !stanza.is_empty() && !stanza.starts_with(&format!("Package: {name}\n")))
        .map(str::to_owned)
        .collect();
    if let Some(version) = version {
        stanzas.push(format!(
            "Package: {name}\nStatus: install ok installed\nArchitecture: all\nVersion: {version}"
        ));
    }
    stanzas.sort();
    let mut text = String::new();
    for stanza in stanzas {
        writeln!(text, "{stanza}\n").unwrap();
    }
    write(&path, &text);
}

/// Allows all actions but one.
fn check_action(name: &str, _action: &ActionSpec) -> Result<(), String> {
    if name == "forbidden" { Err("the action is forbidden".to_owned()) } else { Ok(()) }
}

impl SimulatedNode {
    /// A machine with systemd, the users root and app, and no packages.
    fn new() -> Self {
        let files = FileMachine::new();
        files.write("/var/lib/dpkg/status", "");
        files.write("/proc/sys/vm/swappiness", "60\n");
        files.write("/proc/sys/vm/max_map_count", "65530\n");
        files.make_folder("/run/systemd/system");
        files.make_folder("/etc/systemd/system");
        let (state, scope) = (NodeState::default(), EntryScope::default());
        let journal = MemoryJournal::default();
        Self { files, model: Arc::default(), state, journal, scope }
    }

    fn model(&self) -> std::sync::MutexGuard<'_, NodeModel> {
        self.model.lock().unwrap()
    }

    /// The calls that have changed something since the last time.
    fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.model().calls)
    }

    /// A unit of a package, which runs and is enabled.
    fn add_running_unit(&self, unit: &str) {
        let text = "[Service]\nExecStart=/bin/x\n[Install]\nWantedBy=multi-user.target\n";
        self.files.write(&format!("/usr/lib/systemd/system/{unit}"), text);
        let root = self.files.path("/");
        let systemd = &mut self.model().systemd;
        systemd.run(&root, &["enable", unit]);
        systemd.run(&root, &["start", unit]);
    }

    /// Runs a document until the fuse is burnt. Continues the stored run, if there is one.
    fn run_with(&mut self, document: &Document, fuse: &Fuse) -> Result<RunReport, RunError> {
        self.run_and(document, fuse, |run, journal| run.execute(journal))
    }

    fn run_and(
        &mut self,
        document: &Document,
        fuse: &Fuse,
        action: impl Fn(&mut Run<'_>, &mut dyn RunJournal) -> Result<RunReport, RunError>,
    ) -> Result<RunReport, RunError> {
        let mut journal = std::mem::take(&mut self.journal);
        let (stored, state) = (journal.stored.clone(), self.state.clone());
        let report = self.with_context(document, fuse, |context| {
            let mut run = match stored {
                Some(stored) => Run::resume(context, stored)?,
                None => Run::new(context, "run-1", state),
            };
            let report = action(&mut run, &mut FusedJournal { journal: &mut journal, fuse })?;
            run.discard_saved()?;
            if fuse.is_burnt() { Err(JournalError("killed".to_owned()).into()) } else { Ok(report) }
        });
        self.journal = journal;
        if let Ok(report) = &report {
            self.state = report.state.clone();
            self.journal.stored = None;
        }
        report
    }

    fn with_context<T>(
        &self,
        document: &Document,
        fuse: &Fuse,
        action: impl FnOnce(RunContext<'_>) -> T,
    ) -> T {
        for (_, entry) in document.entries() {
            if let Desired::Unit(state) = &entry.desired {
                let files = state.file_paths.clone();
                self.model().systemd.files_of_units.insert(entry.name.clone(), files);
            }
        }
        let programs = || ModelPrograms {
            root: self.files.path("/"),
            model: Arc::clone(&self.model),
            fuse: fuse.clone(),
        };
        let machine = Machine { root: self.files.path("/"), programs: Box::new(programs()) };
        let packages = programs();
        let saved_folder = self.files.saved();
        action(RunContext {
            document,
            machine: &machine,
            scope: &self.scope,
            contents: &EmptyContentSource,
            packages: &packages,
            actions: &check_action,
            saved_folder: &saved_folder,
            faults: fuse,
        })
    }

    /// Gives up the stored run, if there is one.
    fn give_up(&mut self, document: &Document) {
        let Some(stored) = self.journal.stored.take() else { return };
        self.state = self.with_context(document, &Fuse::endless(), |context| {
            let run = Run::resume(context, stored).unwrap();
            run.give_up().unwrap()
        });
    }

    fn run(&mut self, document: &Document) -> RunReport {
        self.run_with(document, &Fuse::endless()).unwrap()
    }

    /// Runs a document. All entries are good afterwards.
    fn run_well(&mut self, document: &Document) -> Vec<String> {
        let report = self.run(document);
        assert_eq!(report.outcome, RunOutcome::Succeeded, "{report:#?}");
        self.take_calls()
    }

    /// Runs a document again, which must change nothing.
    fn check_unchanged(&mut self, document: &Document) {
        let (tree, state) = (self.files.tree(), self.state.clone());
        let fuse = Fuse::endless();
        let report = self.run_with(document, &fuse).unwrap();
        assert_eq!(self.take_calls(), [""; 0]);
        assert_eq!(fuse.points(), 0, "the second run writes something");
        assert_eq!(report.outcome, RunOutcome::Succeeded, "{report:#?}");
        assert!(report.remaining.is_empty() && report.changed.is_empty());
        assert_eq!(self.state, state);
        assert_eq!(self.files.tree(), tree);
    }
}

/// A valid document: bundles with entries, each in YAML.
fn bundles(bundles: &[(&str, &[&str])]) -> Document {
    let mut text = "bundles:\n".to_owned();
    for (name, entries) in bundles {
        writeln!(text, "- name: {name}\n  entries:").unwrap();
        for entry in *entries {
            writeln!(text, "  - {{{entry}}}").unwrap();
        }
    }
    native::read(&text).unwrap_or_else(|error| panic!("{text}{error:?}"))
}

/// A valid document with one bundle.
fn entries(entries: &[&str]) -> Document {
    bundles(&[("all", entries)])
}

const SERVICE: &str =
    "\"[Service]\\nExecStart=/bin/a\\n[Install]\\nWantedBy=multi-user.target\\n\"";

fn unit(name: &str, desired: &str) -> String {
    format!("component: Unit, name: {name}, desired: {{{desired}}}")
}

fn file(path: &str, content: &str) -> String {
    format!(
        "component: File, name: {path}, desired: {{mode: \"0644\", content: {{inline: \"{content}\"}}}}"
    )
}
