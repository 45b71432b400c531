//! Tests with files in temporary directories.

mod contents;
mod directories;
mod disk_space;
mod errors;
mod hostile_users;
mod kills;
mod random_trees;
mod reverts;
mod swaps;
mod verdicts;
mod writes;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use evenkeel_configuration::Document;
use evenkeel_configuration::native;
use rustix::io::Errno;
use tempfile::TempDir;

use super::{
    ChangeReport, ContentSource, EmptyContentSource, FaultPoint, FileChanger, FileContext,
    FileError, FilePlan, FileSpec, ManagedPaths, NoFaults, RootFolder, check, plan,
};
use crate::report::{EntryReport, Verdict};

const RUN: &str = "run-1";

/// A machine whose files are in a temporary directory.
pub(crate) struct FileMachine {
    folder: TempDir,
    root: RootFolder,
}

impl FileMachine {
    /// In memory if possible, so that syncs take no time.
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        Self::in_folder(if memory.is_dir() { memory } else { Path::new("/tmp") })
    }

    fn in_folder(parent: &Path) -> Self {
        let folder = tempfile::tempdir_in(parent).unwrap();
        fs::create_dir_all(folder.path().join("root/etc")).unwrap();
        let machine = Self { root: RootFolder::open(&folder.path().join("root")).unwrap(), folder };
        machine.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\n");
        machine.write("/etc/group", "root:x:0:\napp:x:1000:\nwww-data:x:33:\n");
        machine
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path.trim_start_matches('/'))
    }

    /// Writes a file with mode 0644, and its folders.
    pub(crate) fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    pub(crate) fn make_folder(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        symlink(target, self.path(path)).unwrap();
    }

    pub(crate) fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn set_owner(&self, path: &str, uid: u32) {
        std::os::unix::fs::lchown(self.path(path), Some(uid), Some(uid)).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Everything below the root directory, with type, mode, owner and content.
    pub(crate) fn tree(&self) -> BTreeMap<String, String> {
        let mut tree = BTreeMap::new();
        describe_folder(&self.path("/"), "", &mut tree);
        tree
    }

    fn check(&self, document: &Document) -> Vec<EntryReport> {
        self.check_with(document, &EmptyContentSource)
    }

    fn check_with(&self, document: &Document, source: &dyn ContentSource) -> Vec<EntryReport> {
        let managed = ManagedPaths::from_document(document);
        let checks = check(&FileContext::new(&self.root, source, &managed).unwrap(), document);
        checks.into_iter().map(|check| check.report).collect()
    }

    /// The reasons of bad entries.
    fn reasons(&self, document: &Document) -> Vec<String> {
        let bad = |report: &EntryReport| report.verdict == Verdict::Bad;
        self.check(document).into_iter().filter(bad).map(|report| report.reason).collect()
    }

    fn plan(&self, document: &Document) -> FilePlan {
        self.plan_with(document, &EmptyContentSource)
    }

    fn plan_with(&self, document: &Document, source: &dyn ContentSource) -> FilePlan {
        let managed = ManagedPaths::from_document(document);
        let context = FileContext::new(&self.root, source, &managed).unwrap();
        let specs: Vec<FileSpec<'_>> = FileSpec::from_document(document).collect();
        plan(&context, &specs, RUN).unwrap()
    }

    pub(crate) fn saved(&self) -> PathBuf {
        self.folder.path().join("saved")
    }

    fn changer<'a>(&'a self, faults: &'a dyn FaultPoint) -> FileChanger<'a> {
        FileChanger {
            root: &self.root,
            saved_folder: self.saved(),
            source: &EmptyContentSource,
            faults,
        }
    }

    /// Writes and removes what a plan lists.
    fn execute(
        &self,
        document: &Document,
        plan: &FilePlan,
        faults: &dyn FaultPoint,
    ) -> Result<ChangeReport, FileError> {
        let changer = self.changer(faults);
        let specs: Vec<FileSpec<'_>> = FileSpec::from_document(document).collect();
        let mut report = changer.apply(&plan.files, &specs)?;
        let mut removed = changer.remove(&plan.removals)?;
        report.changed.append(&mut removed.changed);
        report.failed.append(&mut removed.failed);
        report.kept.append(&mut removed.kept);
        Ok(report)
    }

    fn apply(&self, document: &Document) -> ChangeReport {
        let plan = self.plan(document);
        assert_eq!(plan.refused, [], "every entry can be corrected");
        let report = self.execute(document, &plan, &NoFaults).unwrap();
        assert_eq!(report.failed, [], "every path can be changed");
        report
    }

    fn revert(&self) -> ChangeReport {
        self.changer(&NoFaults).revert().unwrap()
    }
}

/// Adds everything below a folder, with type, mode, owner and content.
pub(crate) fn describe_folder(folder: &Path, prefix: &str, tree: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}/{}", entry.file_name().to_str().unwrap());
        let metadata = entry.metadata().unwrap();
        let kind = if metadata.is_symlink() {
            format!("link to {}", fs::read_link(entry.path()).unwrap().display())
        } else if metadata.is_dir() {
            describe_folder(&entry.path(), &path, tree);
            "directory".to_owned()
        } else if metadata.is_file() {
            format!("{:?}", fs::read_to_string(entry.path()).unwrap())
        } else {
            "special".to_owned()
        };
        let mode = if metadata.is_symlink() { 0 } else { metadata.mode() & 0o7777 };
        let text = format!("{mode:04o} {}:{} {kind}", metadata.uid(), metadata.gid());
        tree.insert(path, text);
    }
}

/// A document with `File` entries: a path and the desired state in YAML.
fn document(files: &[(&str, &str)]) -> Document {
    let entries: Vec<_> = files.iter().map(|(path, desired)| ("File", *path, *desired)).collect();
    mixed_document(&entries)
}

/// A document: component, name and the desired state in YAML.
fn mixed_document(entries: &[(&str, &str, &str)]) -> Document {
    let mut text = "bundles:\n- name: b\n  entries:\n".to_owned();
    for (component, name, desired) in entries {
        writeln!(text, "  - {{component: {component}, name: {name}, desired: {desired}}}").unwrap();
    }
    if entries.is_empty() {
        return Document::default();
    }
    native::read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Counts the calls that change something.
#[derive(Default)]
struct CallCounter {
    calls: RefCell<Vec<String>>,
}

impl FaultPoint for CallCounter {
    fn before(&self, call: &'static str, path: &str) -> Result<(), Errno> {
        self.calls.borrow_mut().push(format!("{call} {path}"));
        Ok(())
    }
}

/// Ends the process, as far as the disk is concerned, before the call with this number.
struct KillBefore {
    number: Cell<usize>,
}

impl KillBefore {
    fn call(number: usize) -> Self {
        Self { number: Cell::new(number) }
    }

    fn has_killed(&self) -> bool {
        self.number.get() == 0
    }
}

impl FaultPoint for KillBefore {
    fn before(&self, _call: &'static str, _path: &str) -> Result<(), Errno> {
        let left = self.number.get();
        if left == 0 {
            return Err(Errno::IO);
        }
        self.number.set(left - 1);
        if left == 1 { Err(Errno::IO) } else { Ok(()) }
    }
}

/// Fails one kind of call on paths that contain a text.
struct FailOn {
    call: &'static str,
    path: &'static str,
    errno: Errno,
}

impl FaultPoint for FailOn {
    fn before(&self, call: &'static str, path: &str) -> Result<(), Errno> {
        if call == self.call && path.contains(self.path) { Err(self.errno) } else { Ok(()) }
    }
}
