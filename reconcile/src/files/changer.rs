//! The steps of a run: write, remove, revert.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use rustix::fs::{FileType, fstat};

use super::accounts::AccountNames;
use super::calls::{Calls, FaultPoint};
use super::content::{ContentSource, DesiredContent};
use super::error::FileError;
use super::folder::{Folder, RootFolder, split_parent};
use super::inspect::MAX_FOLDER_NAMES;
use super::plan::{FileSet, PlannedFile, PlannedObject, Removal, RemovalSet, TEMPORARY_PREFIX};
use super::saved::{SavedFolder, SavedItem};
use super::spec::{FileObject, FileSpec};
use super::state::{
    ContentDepth, PathKind, PathObservation, PathState, observe_child, observe_exact,
};
use super::write::{ChangeReport, FileWriter, KeptFile, NewContents, PathChange, PathOperation};

/// Most paths that one removal removes.
const MAX_REMOVED_PATHS: usize = 100_000;

/// Deepest nesting of removed directories.
const MAX_REMOVED_DEPTH: usize = 128;

const NO_CONTENT: &str = "the document has no content for it";

/// Changes files in one run. Every step can be repeated after it was killed: it then does what is
/// left. Only one run at a time may change files.
pub struct FileChanger<'a> {
    pub root: &'a RootFolder,
    /// Folder of this run for the old states. It is created with mode 0700; its parent must exist.
    pub saved_folder: PathBuf,
    pub source: &'a dyn ContentSource,
    pub faults: &'a dyn FaultPoint,
}

impl std::fmt::Debug for FileChanger<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileChanger")
            .field("saved_folder", &self.saved_folder)
            .finish_non_exhaustive()
    }
}

impl FileChanger<'_> {
    /// Writes a set of files. Contents come from the specs.
    ///
    /// # Errors
    /// The accounts or the saved states cannot be read, or the saved states cannot be written. No
    /// path has changed. Errors of single paths are in the report. If a file system is full, the
    /// report has an error for each of its paths, and they stay as they were.
    pub fn apply(&self, set: &FileSet, specs: &[FileSpec<'_>]) -> Result<ChangeReport, FileError> {
        let accounts = AccountNames::load(self.root)?;
        let saved = SavedFolder::open(&self.saved_folder)?;
        let specs: BTreeMap<&str, &FileSpec<'_>> =
            specs.iter().map(|spec| (spec.path.as_ref(), spec)).collect();
        let mut contents = SpecContents { specs: BTreeMap::new(), source: self.source };
        let mut changes = Vec::with_capacity(set.files.len());
        let mut failed = Vec::new();
        for file in &set.files {
            let spec = file.spec.as_deref().and_then(|spec| specs.get(spec)).copied();
            if let Some(spec) = spec {
                contents.specs.insert(&file.path, spec);
            }
            match self.plan_change(file, spec, &accounts, saved.as_ref()) {
                Ok(Some(change)) => changes.push(change),
                Ok(None) => {}
                Err(error) => failed.push(error),
            }
        }
        self.save_and_execute(changes, failed, saved, &contents)
    }

    /// Removes paths, deepest first. Directories that are not empty stay, unless their removal is
    /// recursive.
    ///
    /// # Errors
    /// The saved states cannot be read or written. No path has changed. Errors of single paths are
    /// in the report.
    pub fn remove(&self, set: &RemovalSet) -> Result<ChangeReport, FileError> {
        let saved = SavedFolder::open(&self.saved_folder)?;
        let mut changes = Vec::new();
        let mut failed = Vec::new();
        for removal in &set.removals {
            let mut paths = Vec::new();
            match self.list_removal(removal, &mut paths) {
                Ok(()) => changes.append(&mut paths),
                Err(error) => failed.push(error),
            }
        }
        changes.sort_by(|a: &PathChange, b| a.path.cmp(&b.path));
        changes.dedup_by(|a, b| a.path == b.path);
        let contents = SpecContents { specs: BTreeMap::new(), source: self.source };
        self.save_and_execute(changes, failed, saved, &contents)
    }

    /// Restores what the run has changed: contents, links, modes, owners and absence. Keeps what
    /// was changed by others since then.
    ///
    /// # Errors
    /// The saved states cannot be read. Errors of single paths are in the report.
    pub fn revert(&self) -> Result<ChangeReport, FileError> {
        match SavedFolder::open(&self.saved_folder)? {
            Some(saved) => Ok(self.restore(&saved, |_| true)),
            None => Ok(ChangeReport::default()),
        }
    }

    /// Removes the saved states at the end of the run.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn discard_saved(&self) -> Result<(), FileError> {
        match SavedFolder::open(&self.saved_folder)? {
            Some(saved) => saved.discard(&self.saved_folder, self.calls()),
            None => Ok(()),
        }
    }

    fn calls(&self) -> Calls<'_> {
        Calls(self.faults)
    }

    fn writer(&self) -> FileWriter<'_> {
        FileWriter { root: self.root, calls: self.calls() }
    }

    /// The change that a planned file needs now; `None` for a parent directory that exists.
    fn plan_change(
        &self,
        file: &PlannedFile,
        spec: Option<&FileSpec<'_>>,
        accounts: &AccountNames,
        saved: Option<&SavedFolder>,
    ) -> Result<Option<PathChange>, FileError> {
        let content = spec.and_then(|spec| match &spec.object {
            FileObject::File { content } => Some(content),
            _ => None,
        });
        let depth = match file.object {
            PlannedObject::File { .. } => {
                content.map_or(ContentDepth::Digest, DesiredContent::observation_depth)
            }
            _ => ContentDepth::Attributes,
        };
        let current = observe_exact(self.root, &file.path, depth)?;
        if file.spec.is_none() && current.state.kind == PathKind::Directory {
            let item = saved.and_then(|saved| saved.items().get(&file.path));
            if item.is_none_or(|item| item.before.kind != PathKind::Missing) {
                return Ok(None);
            }
        }
        let goal = file.goal(&current.state, accounts);
        if let Some((kind, name)) = goal.unknown_accounts.first() {
            let reason = format!("the {kind} {name} does not exist; create it or write a number");
            return Err(FileError::new("write", &file.path, reason));
        }
        let mut goal = goal.state;
        if let PlannedObject::File { digest: None } = file.object {
            let fail = |reason: String| FileError::new("write", &file.path, reason);
            let content = content.ok_or_else(|| fail(NO_CONTENT.to_owned()))?;
            let digest = content.digest(self.source).map_err(|error| fail(error.to_string()))?;
            goal.kind = PathKind::File { digest: Some(digest) };
        }
        if goal.kind == PathKind::Missing {
            return Err(FileError::new("change", &file.path, "nothing is at the path any more"));
        }
        let is_blocked = file.spec.is_none() && current.state.kind != PathKind::Missing;
        if is_blocked && current.state.kind != PathKind::Directory {
            let reason = format!("{} is at the path; remove it", current.state.kind.label());
            return Err(FileError::new("create the directory", &file.path, reason));
        }
        let temporary = file.temporary.clone().unwrap_or_default();
        checked_change(&file.path, current, goal, temporary).map(Some)
    }

    fn save_and_execute(
        &self,
        mut changes: Vec<PathChange>,
        mut failed: Vec<FileError>,
        saved: Option<SavedFolder>,
        contents: &dyn NewContents,
    ) -> Result<ChangeReport, FileError> {
        let saved = if changes.iter().all(|change| change.operation() == PathOperation::Nothing) {
            saved
        } else {
            let mut saved = match saved {
                Some(saved) if !saved.items().is_empty() => saved,
                _ => SavedFolder::create(&self.saved_folder, self.calls())?,
            };
            failed.append(&mut saved.save(self.root, &mut changes, self.calls())?);
            Some(saved)
        };
        let result = self.writer().execute(&changes, contents);
        if let Some(saved) = saved
            && !result.unfinished.is_empty()
        {
            // A later reversal restores what cannot be restored now.
            self.restore(&saved, |path| result.unfinished.contains(path));
        }
        let mut report = result.report;
        failed.append(&mut report.failed);
        Ok(ChangeReport { failed, ..report })
    }

    /// Restores the saved states of some paths.
    fn restore(&self, saved: &SavedFolder, is_included: impl Fn(&str) -> bool) -> ChangeReport {
        let mut changes = Vec::new();
        let mut kept = Vec::new();
        let mut failed = Vec::new();
        let items = saved.items().iter().filter(|(path, _)| is_included(path));
        for (index, (path, item)) in items.enumerate() {
            let mut current = match observe_exact(self.root, path, restore_depth(item)) {
                Ok(current) => current,
                Err(error) => {
                    failed.push(error);
                    continue;
                }
            };
            if !self.is_made_by_run(path, item, &current) {
                let reason = "it was changed after the run".to_owned();
                kept.push(KeptFile { path: path.clone(), reason });
                continue;
            }
            if item.copy.is_none() {
                // The run has changed only attributes, so the other names have changed as well.
                current.has_hard_links = false;
            }
            let temporary = format!("{TEMPORARY_PREFIX}revert-{index}");
            match checked_change(path, current, item.before.clone(), temporary) {
                Ok(change) => changes.push(change),
                Err(error) => failed.push(error),
            }
        }
        let mut report = self.writer().execute(&changes, &SavedContents { saved }).report;
        report.failed.append(&mut failed);
        report.kept.append(&mut kept);
        report
    }

    /// Whether the run has made the current state, and nobody has changed it since then. A run that
    /// was killed may have removed something that it has not replaced yet.
    fn is_made_by_run(&self, path: &str, item: &SavedItem, current: &PathObservation) -> bool {
        let kind = &current.state.kind;
        // In a directory of a user, another file of root may have got the name.
        let is_same = item.inode.is_none_or(|inode| inode == current.identity.inode)
            || (*kind != PathKind::Missing && self.root.is_parent_protected(path));
        let is_expected = item.after.kind.accepts(kind)
            || item.before.kind.accepts(kind)
            || *kind == PathKind::Missing;
        is_same && is_expected
    }

    /// Lists what the removal of a path removes.
    fn list_removal(
        &self,
        removal: &Removal,
        paths: &mut Vec<PathChange>,
    ) -> Result<(), FileError> {
        let path = &removal.path;
        let current = observe_exact(self.root, path, ContentDepth::Attributes)?;
        let is_folder = current.state.kind == PathKind::Directory;
        paths.push(removal_change(path, current)?);
        if !is_folder || !removal.recursive {
            return Ok(());
        }
        let fail = |errno| FileError::from_errno("remove", path, errno);
        let (parent, name) = split_parent(path)
            .ok_or_else(|| FileError::new("remove", path, "it is the root directory"))?;
        let parent = self.root.open_exact(parent).map_err(fail)?;
        let folder = parent.open_child(name).map_err(fail)?;
        if fstat(&parent.fd).map_err(fail)?.st_dev != fstat(&folder.fd).map_err(fail)?.st_dev {
            return Err(FileError::new("remove", path, "it is a mount point; unmount it"));
        }
        list_tree(&folder, paths, MAX_REMOVED_DEPTH)
    }
}

/// Adds everything in a folder to the removed paths.
fn list_tree(folder: &Folder, paths: &mut Vec<PathChange>, depth: usize) -> Result<(), FileError> {
    if depth == 0 {
        let reason = format!("directories are nested deeper than {MAX_REMOVED_DEPTH}");
        return Err(FileError::new("remove", &folder.path, reason));
    }
    let fail = |errno| FileError::from_errno("remove", &folder.path, errno);
    let device = fstat(&folder.fd).map_err(fail)?.st_dev;
    for name in folder.list(MAX_FOLDER_NAMES)? {
        let path = folder.child_path(&name);
        if paths.len() == MAX_REMOVED_PATHS {
            let reason = format!("it is one of more than {MAX_REMOVED_PATHS} paths");
            return Err(FileError::new("remove", path, reason));
        }
        let stats = folder.stat(&name).map_err(fail)?;
        if stats.st_dev != device {
            return Err(FileError::new("remove", path, "it is a mount point; unmount it"));
        }
        let current = observe_child(folder, &name, ContentDepth::Attributes)?;
        paths.push(removal_change(&path, current)?);
        if FileType::from_raw_mode(stats.st_mode) == FileType::Directory {
            list_tree(&folder.open_child(&name).map_err(fail)?, paths, depth - 1)?;
        }
    }
    Ok(())
}

fn removal_change(path: &str, current: PathObservation) -> Result<PathChange, FileError> {
    checked_change(path, current, PathState::MISSING, String::new())
}

/// A change, unless it would replace or remove something that cannot be restored.
fn checked_change(
    path: &str,
    current: PathObservation,
    goal: PathState,
    temporary: String,
) -> Result<PathChange, FileError> {
    let kind = &current.state.kind;
    if kind.is_special() && *kind != goal.kind {
        let reason =
            format!("{} is at the path, which could not be restored; remove it", kind.label());
        return Err(FileError::new("replace", path, reason));
    }
    Ok(PathChange { path: path.to_owned(), current, goal, temporary })
}

/// Whether a restoration has to read the content of a path.
fn restore_depth(item: &SavedItem) -> ContentDepth {
    let has_digest = |state: &PathState| matches!(state.kind, PathKind::File { digest: Some(_) });
    if has_digest(&item.before) || has_digest(&item.after) {
        ContentDepth::Digest
    } else {
        ContentDepth::Attributes
    }
}

/// New contents from specs.
struct SpecContents<'a> {
    /// By path without links.
    specs: BTreeMap<&'a str, &'a FileSpec<'a>>,
    source: &'a dyn ContentSource,
}

impl NewContents for SpecContents<'_> {
    fn open(&self, path: &str) -> Result<Box<dyn Read + '_>, FileError> {
        let Some(FileObject::File { content }) = self.specs.get(path).map(|spec| &spec.object)
        else {
            return Err(FileError::new("write", path, NO_CONTENT));
        };
        content.open(self.source).map_err(|error| FileError::new("write", path, error.to_string()))
    }
}

/// Contents that a run has saved.
struct SavedContents<'a> {
    saved: &'a SavedFolder,
}

impl NewContents for SavedContents<'_> {
    fn open(&self, path: &str) -> Result<Box<dyn Read + '_>, FileError> {
        Ok(Box::new(self.saved.open_copy(path)?))
    }
}
