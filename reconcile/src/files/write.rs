//! Changes paths so that a run that is killed at any point can be repeated or reverted.
//!
//! The order is: new directories, all temporary files, one sync for each file system, removals,
//! all renames and changes of attributes, one sync for each file system. After a power cut a file
//! therefore has its old or its new content. If a file system is full or fails before the first
//! sync ends, all its files stay as they were.

use std::collections::BTreeSet;
use std::io::Read;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::calls::Calls;
use super::error::FileError;
use super::file_systems::ChangedFileSystems;
use super::folder::{Folder, RootFolder, split_parent};
use super::state::{FileIdentity, PathKind, PathObservation, PathState};
use super::temporary::{TemporaryFile, list_parents};

/// One path to change.
#[derive(Clone, Debug)]
pub(crate) struct PathChange {
    /// Path without links.
    pub(crate) path: String,
    pub(crate) current: PathObservation,
    pub(crate) goal: PathState,
    /// Name of the temporary file or link.
    pub(crate) temporary: String,
}

/// How a path changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathOperation {
    Nothing,
    Remove,
    MakeFolder,
    /// A new file or link takes the place.
    Replace,
    /// Mode, owner and group change in place.
    SetAttributes,
}

impl PathChange {
    pub(crate) fn operation(&self) -> PathOperation {
        let current = &self.current.state;
        if self.goal.accepts(current) {
            return PathOperation::Nothing;
        }
        let keeps_kind = self.goal.kind.accepts(&current.kind);
        match &self.goal.kind {
            PathKind::Missing => PathOperation::Remove,
            PathKind::Directory if !keeps_kind => PathOperation::MakeFolder,
            PathKind::File { .. } | PathKind::Symlink { .. } if !keeps_kind => {
                PathOperation::Replace
            }
            // The other names of the file keep their attributes.
            PathKind::File { digest: Some(_) } if self.current.has_hard_links => {
                PathOperation::Replace
            }
            _ => PathOperation::SetAttributes,
        }
    }
}

/// Result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeReport {
    /// Paths that have changed.
    pub changed: Vec<String>,
    /// Why other paths have not.
    pub failed: Vec<FileError>,
    /// Paths that stay as they are, because they do not belong to the run.
    pub kept: Vec<KeptFile>,
}

/// A path that a run or its reversal did not touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFile {
    pub path: String,
    /// Why, as a sentence without a full stop.
    pub reason: String,
}

/// Result of [`FileWriter::execute`].
#[derive(Debug, Default)]
pub(crate) struct WriteResult {
    pub(crate) report: ChangeReport,
    /// New directories, and paths that have lost their file to one, on file systems that failed
    /// afterwards. They should be restored.
    pub(crate) unfinished: BTreeSet<String>,
}

/// Opens the new contents of paths.
pub(crate) trait NewContents {
    fn open(&self, path: &str) -> Result<Box<dyn Read + '_>, FileError>;
}

/// Changes paths.
pub(crate) struct FileWriter<'a> {
    pub(crate) root: &'a RootFolder,
    pub(crate) calls: Calls<'a>,
}

impl FileWriter<'_> {
    /// Makes all changes.
    pub(crate) fn execute(
        &self,
        changes: &[PathChange],
        contents: &dyn NewContents,
    ) -> WriteResult {
        let mut result = WriteResult::default();
        for parent in list_parents(changes) {
            self.remove_old_temporary_files(parent, &mut result.report);
        }
        let mut sorted: Vec<&PathChange> = changes.iter().collect();
        sorted.sort_by(|a, b| a.path.cmp(&b.path));
        let mut systems = ChangedFileSystems::default();

        let folders = self.make_folders(&sorted, &mut systems, &mut result);
        let files = operations(&sorted, PathOperation::Replace);
        let failed = &mut result.report.failed;
        let prepared = self.prepare_all(files, contents, &mut systems, failed);
        for (device, path) in folders {
            match systems.check(device, "create", path) {
                Ok(()) => result.report.changed.push(path.to_owned()),
                Err(error) => {
                    result.report.failed.push(error);
                    result.unfinished.insert(path.to_owned());
                }
            }
        }
        self.remove_paths(&sorted, &mut systems, &mut result.report);
        self.replace_all(&prepared, &mut result.report);
        for change in operations(&sorted, PathOperation::SetAttributes) {
            match self.set_attributes(change, &mut systems) {
                Ok(()) => result.report.changed.push(change.path.clone()),
                Err(error) => result.report.failed.push(error),
            }
        }
        systems.sync_all(self.calls, &mut result.report.failed);
        result
    }

    /// Creates all directories, and returns them with the devices of their folders.
    fn make_folders<'c>(
        &self,
        sorted: &[&'c PathChange],
        systems: &mut ChangedFileSystems,
        result: &mut WriteResult,
    ) -> Vec<(u64, &'c str)> {
        let mut folders = Vec::new();
        for change in operations(sorted, PathOperation::MakeFolder) {
            match self.make_folder(change, systems) {
                Ok(device) => folders.push((device, change.path.as_str())),
                Err(error) => {
                    result.report.failed.push(error);
                    result.unfinished.insert(change.path.clone());
                }
            }
        }
        folders
    }

    /// Removes paths, deepest first.
    fn remove_paths(
        &self,
        sorted: &[&PathChange],
        systems: &mut ChangedFileSystems,
        report: &mut ChangeReport,
    ) {
        let removals: Vec<&PathChange> = operations(sorted, PathOperation::Remove).collect();
        for change in removals.into_iter().rev() {
            match self.remove(change, systems) {
                Ok(true) => report.changed.push(change.path.clone()),
                Ok(false) => report.kept.push(KeptFile {
                    path: change.path.clone(),
                    reason: "the directory is not empty".to_owned(),
                }),
                Err(error) => report.failed.push(error),
            }
        }
    }

    /// Gives temporary files their names.
    fn replace_all(&self, prepared: &[TemporaryFile<'_>], report: &mut ChangeReport) {
        for file in prepared {
            match self.replace(file) {
                Ok(()) => report.changed.push(file.change.path.clone()),
                Err(error) => {
                    self.remove_temporary(file.change);
                    report.failed.push(error);
                }
            }
        }
    }

    pub(crate) fn open_parent<'c>(
        &self,
        action: &'static str,
        change: &'c PathChange,
    ) -> Result<(Folder, &'c str), FileError> {
        let (parent, name) = split_parent(&change.path)
            .ok_or_else(|| FileError::new(action, &change.path, "it is the root directory"))?;
        let folder = self.root.open_exact(parent).map_err(|errno| {
            let mut error = FileError::from_errno(action, &change.path, errno);
            if errno == Errno::NOENT {
                error.reason = format!("the directory {parent} does not exist");
            }
            error
        })?;
        Ok((folder, name))
    }

    /// Gives a temporary file its name.
    fn replace(&self, prepared: &TemporaryFile<'_>) -> Result<(), FileError> {
        let change = prepared.change;
        let (folder, name) = self.open_parent("replace", change)?;
        if identify(&folder, &change.temporary) != Ok(prepared.identity) {
            let reason = "another user has replaced the temporary file; check who may write to \
                          the directory";
            return Err(FileError::new("replace", &change.path, reason));
        }
        let is_folder =
            |stats: rustix::fs::Stat| FileType::from_raw_mode(stats.st_mode) == FileType::Directory;
        if change.current.state.kind == PathKind::Directory
            && folder.stat(name).is_ok_and(is_folder)
        {
            self.calls.remove_folder(&folder, name)?;
        }
        self.calls.rename(&folder, &change.temporary, name)
    }

    /// Removes a path. Returns false if it is a directory that is not empty.
    fn remove(
        &self,
        change: &PathChange,
        systems: &mut ChangedFileSystems,
    ) -> Result<bool, FileError> {
        let (folder, name) = self.open_parent("remove", change)?;
        let is_folder = change.current.state.kind == PathKind::Directory;
        let removed = if is_folder {
            if folder.open_child(name).is_ok_and(|child| child.list(0).is_err()) {
                return Ok(false);
            }
            self.calls.remove_folder(&folder, name)
        } else {
            self.calls.unlink(&folder, name)
        };
        removed?;
        systems.record(&folder)?;
        Ok(true)
    }

    /// Changes mode, owner and group in place. Never gives more permissions than the old and the
    /// new attributes both have while the owner changes.
    fn set_attributes(
        &self,
        change: &PathChange,
        systems: &mut ChangedFileSystems,
    ) -> Result<(), FileError> {
        let (folder, name) = self.open_parent("change", change)?;
        let device = systems.record(&folder)?;
        systems.check(device, "change", &change.path)?;
        let fail = |errno| FileError::from_errno("change", &change.path, errno);
        let fd = open_path(&folder, name).map_err(fail)?;
        let stats = fstat(&fd).map_err(fail)?;
        let position = (&folder, name);
        let goal = &change.goal;
        if !is_kind(&goal.kind, FileType::from_raw_mode(stats.st_mode))
            || FileIdentity::from_stats(&stats) != change.current.identity
        {
            return Err(FileError::new("change", &change.path, "it is being replaced; try again"));
        }
        let is_directory = goal.kind == PathKind::Directory;
        if stats.st_nlink > 1 && !is_directory && !folder.is_protected() {
            let reason = "it has several hard links, and other users can write to its directory, \
                          so that it may be any file of the system; remove it";
            return Err(FileError::new("change", &change.path, reason));
        }
        let mut mode = stats.st_mode & 0o7777;
        let is_link = matches!(goal.kind, PathKind::Symlink { .. });
        if (stats.st_uid, stats.st_gid) != (goal.uid, goal.gid) {
            let restricted = mode & goal.mode & 0o777;
            if !is_link && restricted != mode {
                self.calls.set_mode(&fd, position, restricted)?;
                mode = restricted;
            }
            self.calls.set_owner(&fd, position, (goal.uid, goal.gid))?;
        }
        if !is_link && mode != goal.mode {
            self.calls.set_mode(&fd, position, goal.mode)?;
        }
        Ok(())
    }
}

fn operations<'c>(
    sorted: &[&'c PathChange],
    operation: PathOperation,
) -> impl Iterator<Item = &'c PathChange> {
    sorted.iter().copied().filter(move |change| change.operation() == operation)
}

fn open_path(folder: &Folder, name: &str) -> Result<std::os::fd::OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(&folder.fd, name, flags, Mode::empty())
}

fn identify(folder: &Folder, name: &str) -> Result<FileIdentity, Errno> {
    folder.stat(name).map(|stats| FileIdentity::from_stats(&stats))
}

fn is_kind(kind: &PathKind, file_type: FileType) -> bool {
    match kind {
        PathKind::Missing => false,
        PathKind::File { .. } => file_type == FileType::RegularFile,
        PathKind::Directory => file_type == FileType::Directory,
        PathKind::Symlink { .. } => file_type == FileType::Symlink,
        PathKind::Fifo => file_type == FileType::Fifo,
        PathKind::Socket => file_type == FileType::Socket,
        PathKind::Device => {
            matches!(file_type, FileType::BlockDevice | FileType::CharacterDevice)
        }
    }
}
