//! A machine for tests: files in a temporary folder, and one result for every program.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use evenkeel_configuration::{Document, native};
use tempfile::TempDir;

use super::{CheckOptions, MachineCheck, check_machine};
use crate::files::EmptyContentSource;
use crate::finding::EntryCheck;
use crate::machine::{Machine, Program, ProgramError, ProgramOutput, ProgramRunner};
use crate::report::Verdict;
use crate::scope::EntryScope;

pub(super) struct MachineFixture {
    pub machine: Machine,
    /// The programs that have run.
    pub calls: Arc<Mutex<Vec<Program>>>,
    _root: TempDir,
}

struct SameResult {
    result: Result<ProgramOutput, ProgramError>,
    calls: Arc<Mutex<Vec<Program>>>,
}

impl ProgramRunner for SameResult {
    fn run(&self, program: &Program) -> Result<ProgramOutput, ProgramError> {
        self.calls.lock().unwrap().push(program.clone());
        self.result.clone()
    }
}

impl MachineFixture {
    /// A machine on which systemd does not run.
    pub fn offline() -> Self {
        let reason = "No such file or directory".to_owned();
        let program = "systemctl".to_owned();
        Self::with_result(Err(ProgramError::NotStarted { program, reason }))
    }

    /// A machine on which systemd runs and `systemctl show` prints this.
    pub fn running(output: &str) -> Self {
        let stdout = output.as_bytes().to_vec();
        let fixture = Self::with_result(Ok(ProgramOutput { stdout, ..ProgramOutput::default() }));
        fixture.start_systemd();
        fixture
    }

    pub fn with_result(result: Result<ProgramOutput, ProgramError>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let programs = Box::new(SameResult { result, calls: Arc::clone(&calls) });
        let machine = Machine { root: root.path().to_owned(), programs };
        Self { machine, calls, _root: root }
    }

    pub fn start_systemd(&self) {
        fs::create_dir_all(self.path("/run/systemd/system")).unwrap();
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.machine.root.join(path.trim_start_matches('/'))
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    pub fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    pub fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Checks all entries.
    pub fn check(&self, document: &Document) -> MachineCheck {
        let scope = EntryScope::default();
        let options = CheckOptions { contents: &EmptyContentSource, scope: &scope };
        check_machine(document, &self.machine, &options).unwrap()
    }

    /// Checks the only entry of a document, which is written in YAML as component, name and
    /// desired state.
    pub fn check_entry(&self, (component, name, desired): (&str, &str, &str)) -> EntryCheck {
        let document = document_of(&[(component, name, desired)]);
        self.check(&document).entries.remove(0)
    }

    /// The reason and the current values of an entry, as text.
    pub fn describe_entry(&self, entry: (&str, &str, &str)) -> String {
        let check = self.check_entry(entry);
        assert_eq!(check.report.verdict == Verdict::Good, check.report.reason.is_empty());
        if check.report.verdict == Verdict::Good {
            assert!(check.report.current.is_empty() && check.differences.is_empty());
            return "good".to_owned();
        }
        let current = serde_json::to_string(&check.report.current).unwrap();
        format!("{} {current}", check.report.reason)
    }
}

/// A valid document with one bundle.
pub(super) fn document_of(entries: &[(&str, &str, &str)]) -> Document {
    let entries = entries.iter().map(|(component, name, desired)| {
        format!("  - {{component: {component}, name: \"{name}\", desired: {desired}}}\n")
    });
    let entries: Vec<String> = entries.collect();
    let text = format!("bundles:\n- name: all\n  entries:\n{}", entries.concat());
    native::read(&text).unwrap_or_else(|error| panic!("{text}{error:?}"))
}
