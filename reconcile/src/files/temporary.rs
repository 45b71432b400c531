//! Temporary files, links and directories, which get their names when they are complete.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::digest::{ContentDigest, ContentHasher, for_each_chunk};
use super::error::FileError;
use super::file_systems::ChangedFileSystems;
use super::folder::{Folder, split_parent};
use super::plan::TEMPORARY_PREFIX;
use super::state::{FileIdentity, PathKind, PathState};
use super::write::{ChangeReport, FileWriter, KeptFile, NewContents, PathChange};

/// Name of a new directory until it replaces something.
const TEMPORARY_FOLDER: &str = ".evenkeel-tmp-folder";

/// A temporary file or link that is complete.
pub(crate) struct TemporaryFile<'a> {
    pub(crate) change: &'a PathChange,
    /// The temporary file must be the same when it is renamed.
    pub(crate) identity: FileIdentity,
    /// Device of its folder.
    pub(crate) device: u64,
}

impl FileWriter<'_> {
    /// Creates a directory, and returns the device of its folder. Until it has its owner, only root
    /// can open it. If that fails, the path is as it was.
    pub(crate) fn make_folder(
        &self,
        change: &PathChange,
        systems: &mut ChangedFileSystems,
    ) -> Result<u64, FileError> {
        let (folder, name) = self.open_parent("create", change)?;
        let device = systems.record(&folder)?;
        systems.check(device, "create", &change.path)?;
        let is_new = change.current.state.kind == PathKind::Missing;
        let new_name = if is_new { name } else { TEMPORARY_FOLDER };
        let result = self.create_folder(&folder, new_name, &change.goal);
        let result = result.and_then(|()| {
            if is_new { Ok(()) } else { self.calls.exchange(&folder, new_name, name) }
        });
        if let Err(error) = result {
            let error = FileError { path: change.path.clone(), ..error };
            if error.is_disk_full {
                systems.block(device, &error);
            }
            if !is_new {
                let _ = self.calls.remove_folder(&folder, new_name);
            }
            return Err(error);
        }
        if !is_new && folder.stat(new_name).is_ok() {
            // The next run removes what cannot be removed now.
            let _ = self.calls.unlink(&folder, new_name);
        }
        Ok(device)
    }

    fn create_folder(
        &self,
        folder: &Folder,
        name: &str,
        goal: &PathState,
    ) -> Result<(), FileError> {
        self.calls.make_folder(folder, name)?;
        let result = self.calls.open_new(folder, name).and_then(|fd| {
            check_new(&fd, FileType::Directory, (folder, name))?;
            let child = Folder { fd, path: folder.child_path(name) };
            child.list(0)?;
            let fail = |errno| FileError::from_errno("create", &child.path, errno);
            let file = File::from(child.reopen().map_err(fail)?);
            self.calls.set_new_attributes(&file, (folder, name), (goal.mode, goal.uid, goal.gid))
        });
        if result.is_err() {
            let _ = self.calls.remove_folder(folder, name);
        }
        result
    }

    /// Writes all temporary files and syncs them. An error of one file does not stop the others. A
    /// file system that is full or fails gets none of its files.
    pub(crate) fn prepare_all<'c>(
        &self,
        changes: impl Iterator<Item = &'c PathChange>,
        contents: &dyn NewContents,
        systems: &mut ChangedFileSystems,
        failed: &mut Vec<FileError>,
    ) -> Vec<TemporaryFile<'c>> {
        let mut prepared = Vec::new();
        for change in changes {
            match self.prepare(change, contents, systems) {
                Ok(file) => prepared.push(file),
                Err(error) => {
                    self.remove_temporary(change);
                    failed.push(error);
                }
            }
        }
        systems.sync(self.calls, failed);
        prepared.retain(|file| {
            let result = systems.check(file.device, "write", &file.change.path);
            result.map_err(|error| failed.push(error)).is_ok() || {
                self.remove_temporary(file.change);
                false
            }
        });
        prepared
    }

    /// Writes the temporary file or link of a change.
    fn prepare<'c>(
        &self,
        change: &'c PathChange,
        contents: &dyn NewContents,
        systems: &mut ChangedFileSystems,
    ) -> Result<TemporaryFile<'c>, FileError> {
        let (folder, _) = self.open_parent("write", change)?;
        let device = systems.record(&folder)?;
        systems.check(device, "write", &change.path)?;
        let result = match &change.goal.kind {
            PathKind::Symlink { target } => self.write_link(&folder, change, target),
            PathKind::File { digest } => self.write_file(&folder, change, *digest, contents),
            kind => {
                let reason = format!("{} cannot be created", kind.label());
                Err(FileError::new("write", &change.path, reason))
            }
        };
        match result {
            Ok(identity) => Ok(TemporaryFile { change, identity, device }),
            Err(error) => {
                let error = FileError { path: change.path.clone(), ..error };
                if error.is_disk_full {
                    systems.block(device, &error);
                }
                Err(error)
            }
        }
    }

    fn write_link(
        &self,
        folder: &Folder,
        change: &PathChange,
        target: &str,
    ) -> Result<FileIdentity, FileError> {
        let position = (folder, change.temporary.as_str());
        self.calls.make_link(folder, position.1, target)?;
        let fd = self.calls.open_new(folder, position.1)?;
        let identity = check_new(&fd, FileType::Symlink, position)?;
        self.calls.set_owner(&fd, position, (change.goal.uid, change.goal.gid))?;
        Ok(identity)
    }

    fn write_file(
        &self,
        folder: &Folder,
        change: &PathChange,
        digest: Option<ContentDigest>,
        contents: &dyn NewContents,
    ) -> Result<FileIdentity, FileError> {
        let position = (folder, change.temporary.as_str());
        let goal = &change.goal;
        let mut content = contents.open(&change.path)?;
        let mut file = self.calls.create_file(folder, position.1)?;
        let mut hasher = ContentHasher::new();
        for_each_chunk(&mut content, |chunk| {
            hasher.update(chunk);
            self.calls.write(&mut file, position, chunk)
        })?;
        let written = hasher.finish();
        if digest.is_some_and(|digest| digest != written) {
            let reason = "its new content has an unexpected digest; plan and apply again";
            return Err(FileError::new("write", &change.path, reason));
        }
        self.calls.set_new_attributes(&file, position, (goal.mode, goal.uid, goal.gid))?;
        let stats =
            fstat(&file).map_err(|errno| FileError::from_errno("write", &change.path, errno))?;
        Ok(FileIdentity::from_stats(&stats))
    }

    pub(crate) fn remove_temporary(&self, change: &PathChange) {
        // The next run removes what cannot be removed now.
        let Ok((folder, _)) = self.open_parent("remove", change) else { return };
        if folder.stat(&change.temporary).is_ok() {
            let _ = self.calls.unlink(&folder, &change.temporary);
        }
    }

    /// Removes what a killed run has left in a folder. Users may have made names that cannot be
    /// removed: they stay, and do not fail the run.
    pub(crate) fn remove_old_temporary_files(&self, parent: &str, report: &mut ChangeReport) {
        let Ok(folder) = self.root.open_exact(parent) else { return };
        let names = list_temporary(&folder).unwrap_or_else(|errno| {
            let reason = FileError::from_errno("list", parent, errno).reason;
            report.kept.push(KeptFile { path: parent.to_owned(), reason });
            Vec::new()
        });
        for name in names {
            let is_folder = folder
                .stat(&name)
                .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory);
            let result = if is_folder {
                self.calls.remove_folder(&folder, &name)
            } else {
                self.calls.unlink(&folder, &name)
            };
            if let Err(error) = result {
                report.kept.push(KeptFile { path: folder.child_path(&name), reason: error.reason });
            }
        }
    }
}

/// The names of temporary files in a folder. The other names may be many, and not UTF-8.
fn list_temporary(folder: &Folder) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::new(folder.reopen()?)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && name.starts_with(TEMPORARY_PREFIX)
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Fails if a user has put something else in the place of a new link or directory.
fn check_new(
    fd: &OwnedFd,
    kind: FileType,
    (folder, name): (&Folder, &str),
) -> Result<FileIdentity, FileError> {
    let path = || folder.child_path(name);
    let stats = fstat(fd).map_err(|errno| FileError::from_errno("open", path(), errno))?;
    let is_new = FileType::from_raw_mode(stats.st_mode) == kind
        && stats.st_uid == geteuid().as_raw()
        && match kind {
            FileType::Directory => stats.st_mode & 0o777 == 0o700,
            _ => stats.st_nlink == 1,
        };
    if is_new {
        return Ok(FileIdentity::from_stats(&stats));
    }
    let reason = "another user has replaced it while it was created; check who may write to the \
                  directory";
    Err(FileError::new("create", path(), reason))
}

/// The parent directories of changes, each once.
pub(crate) fn list_parents(changes: &[PathChange]) -> BTreeSet<&str> {
    changes.iter().filter_map(|change| Some(split_parent(&change.path)?.0)).collect()
}
