//! What was at the changed paths before a run.
//!
//! The folder of a run has a file `manifest.json` and one file for each saved content. The manifest
//! is complete and on the disk before the run changes anything, so that a run that was killed can
//! be repeated or reverted. Only root can open the folder: it has old contents, which may be
//! secrets, and digests of old and new contents.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, Mode, Stat, fstat, fstatvfs, mkdirat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::calls::Calls;
use super::digest::{ContentDigest, ContentHasher, for_each_chunk};
use super::error::FileError;
use super::folder::{Folder, RootFolder, is_own, open_outside, split_parent};
use super::lines::read_limited;
use super::state::{MAX_READ_BYTES, PathKind, PathState};
use super::write::{PathChange, PathOperation};

const MANIFEST: &str = "manifest.json";
const NEW_MANIFEST: &str = "manifest.json.new";

/// Largest manifest that is read.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// Largest old content that is saved if a user may have written it.
const MAX_USER_COPY_BYTES: u64 = 64 << 20;

/// Most bytes of such contents in one run.
const MAX_USER_COPIES_BYTES: u64 = 256 << 20;

/// The saved states of one run.
#[derive(Debug)]
pub(crate) struct SavedFolder {
    folder: Folder,
    manifest: SavedManifest,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SavedManifest {
    /// Number of the next saved content.
    next_copy: u32,
    /// Bytes of saved contents that users may have written.
    #[serde(default)]
    user_copies_bytes: u64,
    items: BTreeMap<String, SavedItem>,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SavedItem {
    /// The state before the run.
    pub(crate) before: PathState,
    /// Name of the file with the content, if the run replaces or removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copy: Option<String>,
    /// Inode of the path, if the run changes only its attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inode: Option<u64>,
    /// The state that the run makes.
    pub(crate) after: PathState,
}

impl SavedFolder {
    /// Opens the folder of a run; `None` if the run has not saved anything.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, FileError> {
        let label = path.display().to_string();
        let folder = match open_outside(path) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(FileError::from_errno("open", label, errno)),
        };
        let stats = fstat(&folder.fd)
            .map_err(|errno| FileError::from_errno("open", label.as_str(), errno))?;
        if !is_own(stats.st_uid) || stats.st_mode & 0o077 != 0 {
            let reason = "other users can open it; remove it, or make it root's with mode 0700";
            return Err(FileError::new("use", label, reason));
        }
        let manifest = match folder.open_file(MANIFEST) {
            Ok(Some(file)) => read_manifest(&folder, file)?,
            Ok(None) => return Err(FileError::new("read", label, "its manifest is no file")),
            Err(Errno::NOENT) => SavedManifest::default(),
            Err(errno) => {
                return Err(FileError::from_errno("read", folder.child_path(MANIFEST), errno));
            }
        };
        Ok(Some(Self { folder, manifest }))
    }

    /// Opens the folder of a run, and creates it if necessary. Its parent must exist.
    pub(crate) fn create(path: &Path, calls: Calls<'_>) -> Result<Self, FileError> {
        let existing = Self::open(path)?;
        if let Some(folder) = existing.filter(|folder| !folder.manifest.items.is_empty()) {
            return Ok(folder);
        }
        let label = path.display().to_string();
        let created =
            calls.0.before("create", &label).and_then(|()| mkdirat(CWD, path, Mode::RWXU));
        if let Err(errno) = created
            && errno != Errno::EXIST
        {
            return Err(FileError::from_errno("create", label, errno));
        }
        // A killed run may have created the folder, and not synced its name.
        let fail = |errno| FileError::from_errno("sync", label.as_str(), errno);
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = open_outside(parent).map_err(fail)?;
        calls.sync((&parent, ""), parent.reopen().map_err(fail)?)?;
        Self::open(path)?.ok_or_else(|| FileError::new("open", label, "it was removed meanwhile"))
    }

    pub(crate) fn items(&self) -> &BTreeMap<String, SavedItem> {
        &self.manifest.items
    }

    /// Saves the states of paths before they change. A path that is saved already keeps its state.
    /// Afterwards everything is on the disk. Removes the changes whose paths cannot be saved, and
    /// returns the reasons.
    pub(crate) fn save(
        &mut self,
        root: &RootFolder,
        changes: &mut Vec<PathChange>,
        calls: Calls<'_>,
    ) -> Result<Vec<FileError>, FileError> {
        let first_copy = self.manifest.next_copy;
        let mut has_changed = false;
        let mut failed = Vec::new();
        let mut kept = Vec::with_capacity(changes.len());
        for change in changes.drain(..) {
            match self.save_one(root, &change, calls) {
                Ok(is_new) => {
                    has_changed |= is_new;
                    kept.push(change);
                }
                Err(error) => failed.push(error),
            }
        }
        *changes = kept;
        if self.manifest.next_copy != first_copy {
            calls.sync_file_system(&self.open_for_sync()?)?;
        }
        if has_changed {
            self.write_manifest(calls)?;
        }
        Ok(failed)
    }

    /// Returns whether the manifest has changed.
    fn save_one(
        &mut self,
        root: &RootFolder,
        change: &PathChange,
        calls: Calls<'_>,
    ) -> Result<bool, FileError> {
        let operation = change.operation();
        if operation == PathOperation::Nothing {
            return Ok(false);
        }
        let current = &change.current.state;
        let inode = change.current.identity.inode;
        // A file that has replaced the one of an earlier step is saved with its own attributes: a
        // reversal must not give its content the attributes of the other.
        let is_same = |item: &SavedItem| {
            item.inode.is_none_or(|saved| saved == inode)
                || (current.kind != PathKind::Missing && root.is_parent_protected(&change.path))
        };
        let saved = self.manifest.items.get(&change.path).filter(|item| is_same(item)).cloned();
        let is_saved = saved.is_some();
        let mut item = saved.unwrap_or_else(|| SavedItem {
            before: current.clone(),
            copy: None,
            inode: Some(inode),
            after: change.goal.clone(),
        });
        let has_new_goal = item.after != change.goal;
        item.after = change.goal.clone();
        if operation != PathOperation::SetAttributes {
            item.inode = None;
        }
        // An earlier step of the run may have changed only attributes.
        let needs_copy = operation != PathOperation::SetAttributes
            && item.copy.is_none()
            && matches!(item.before.kind, PathKind::File { .. })
            && matches!(current.kind, PathKind::File { .. });
        if needs_copy {
            let name = self.manifest.next_copy.to_string();
            let digest = self.copy_content(root, change, &name, calls)?;
            item.before.kind = PathKind::File { digest: Some(digest) };
            item.copy = Some(name);
            self.manifest.next_copy += 1;
        }
        self.manifest.items.insert(change.path.clone(), item);
        Ok(!is_saved || has_new_goal || needs_copy)
    }

    fn open_for_sync(&self) -> Result<Folder, FileError> {
        let path = self.folder.path.clone();
        match self.folder.reopen() {
            Ok(fd) => Ok(Folder { fd, path }),
            Err(errno) => Err(FileError::from_errno("sync", path, errno)),
        }
    }

    /// Copies the content of a path into the folder, and returns its digest.
    fn copy_content(
        &mut self,
        root: &RootFolder,
        change: &PathChange,
        copy: &str,
        calls: Calls<'_>,
    ) -> Result<ContentDigest, FileError> {
        let path = &change.path;
        let fail = |errno| FileError::from_errno("save", path, errno);
        let changed = || FileError::new("save", path, "it is being replaced; try again");
        let (parent, name) = split_parent(path).ok_or_else(changed)?;
        let folder = root.open_exact(parent).map_err(fail)?;
        let file = folder.open_file(name).map_err(fail)?.ok_or_else(changed)?;
        let stats = fstat(&file).map_err(fail)?;
        // A user may have put a file of root in the place of the observed one. A reversal would
        // restore its content with the attributes of the other.
        if !change.current.is_same_file(&stats) {
            return Err(changed());
        }
        let size = u64::try_from(stats.st_size).unwrap_or(0);
        let is_user_file = is_user_file(&stats);
        let user_bytes = is_user_file.then_some(self.manifest.user_copies_bytes);
        if let Some(reason) = refuse_copy(size, user_bytes, self.free_bytes()) {
            return Err(FileError::new("save", path, reason));
        }
        let digest = self.write_copy(&mut file.take(size), copy, calls);
        let digest = digest.map_err(|error| {
            // The next copy has the same name.
            let _ = calls.unlink(&self.folder, copy);
            FileError { path: path.clone(), action: "save", ..error }
        })?;
        self.manifest.user_copies_bytes += if is_user_file { size } else { 0 };
        Ok(digest)
    }

    fn write_copy(
        &self,
        content: &mut dyn Read,
        copy: &str,
        calls: Calls<'_>,
    ) -> Result<ContentDigest, FileError> {
        let mut target = calls.create_file(&self.folder, copy)?;
        let mut hasher = ContentHasher::new();
        for_each_chunk(content, |chunk| {
            hasher.update(chunk);
            calls.write(&mut target, (&self.folder, copy), chunk)
        })?;
        Ok(hasher.finish())
    }

    /// Free space of the file system with the saved states.
    fn free_bytes(&self) -> u64 {
        fstatvfs(&self.folder.fd)
            .map_or(u64::MAX, |stats| stats.f_bavail.saturating_mul(stats.f_frsize))
    }

    fn write_manifest(&self, calls: Calls<'_>) -> Result<(), FileError> {
        let path = || self.folder.child_path(MANIFEST);
        let json = serde_json::to_vec(&self.manifest)
            .map_err(|error| FileError::new("write", path(), error.to_string()))?;
        let position = (&self.folder, NEW_MANIFEST);
        let mut file = calls.create_file(&self.folder, NEW_MANIFEST)?;
        calls.write(&mut file, position, &json)?;
        calls.sync(position, &file)?;
        calls.rename(&self.folder, NEW_MANIFEST, MANIFEST)?;
        let folder = self.open_for_sync()?;
        calls.sync((&folder, ""), &folder.fd)
    }

    /// Opens the saved content of a path.
    pub(crate) fn open_copy(&self, path: &str) -> Result<File, FileError> {
        let missing = || FileError::new("restore", path, "its old content was not saved");
        let copy = self.manifest.items.get(path).and_then(|item| item.copy.as_ref());
        let copy = copy.ok_or_else(missing)?;
        match self.folder.open_file(copy) {
            Ok(Some(file)) => Ok(file),
            Ok(None) | Err(Errno::NOENT) => Err(missing()),
            Err(errno) => Err(FileError::from_errno("restore", path, errno)),
        }
    }

    /// Removes the folder.
    pub(crate) fn discard(self, path: &Path, calls: Calls<'_>) -> Result<(), FileError> {
        // Without a manifest the rest has no meaning.
        let names = self.folder.list(usize::MAX)?;
        let (manifest, copies): (Vec<_>, Vec<_>) =
            names.iter().partition(|name| name.starts_with(MANIFEST));
        for name in manifest.into_iter().chain(copies) {
            calls.unlink(&self.folder, name)?;
        }
        let label = path.display().to_string();
        calls
            .0
            .before("remove", &label)
            .and_then(|()| rustix::fs::rmdir(path))
            .map_err(|errno| FileError::from_errno("remove", label, errno))
    }
}

/// Whether a user may have written the content of a file: the size then says nothing about what the
/// machine needs.
fn is_user_file(stats: &Stat) -> bool {
    !is_own(stats.st_uid) || stats.st_mode & 0o022 != 0 || stats.st_nlink > 1
}

/// Why an old content of a size is not saved. `user_bytes` is the size of the saved contents that
/// users may have written, if this is one of them.
fn refuse_copy(size: u64, user_bytes: Option<u64>, free: u64) -> Option<&'static str> {
    if size > MAX_READ_BYTES {
        return Some("it has more than 1 GiB; remove it yourself");
    }
    if user_bytes.is_some() && size > MAX_USER_COPY_BYTES {
        return Some("a user may have written it, and it has more than 64 MiB; remove it yourself");
    }
    if user_bytes.is_some_and(|bytes| bytes + size > MAX_USER_COPIES_BYTES) {
        return Some(
            "files that users may have written have more than 256 MiB; remove it yourself",
        );
    }
    if size > free / 2 {
        return Some(
            "its old content needs more than half of the free space of the state directory; free \
             space in it",
        );
    }
    None
}

fn read_manifest(folder: &Folder, file: File) -> Result<SavedManifest, FileError> {
    let fail = |reason: String| FileError::new("read", folder.child_path(MANIFEST), reason);
    let json = read_limited(file, MAX_MANIFEST_BYTES).map_err(|error| fail(error.to_string()))?;
    serde_json::from_slice(&json).map_err(|error| fail(format!("it is damaged: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_user_cannot_fill_the_state_directory() {
        assert_eq!(refuse_copy(64 * MIB, Some(0), u64::MAX), None);
        assert!(refuse_copy(64 * MIB + 1, Some(0), u64::MAX).is_some());
        assert_eq!(refuse_copy(MIB, Some(255 * MIB), u64::MAX), None);
        assert!(refuse_copy(MIB + 1, Some(255 * MIB), u64::MAX).is_some());
    }

    #[test]
    fn a_large_file_of_root_is_saved_if_there_is_space() {
        assert_eq!(refuse_copy(1024 * MIB, None, u64::MAX), None);
        assert!(refuse_copy(1024 * MIB + 1, None, u64::MAX).is_some());
        assert_eq!(refuse_copy(100 * MIB, None, 200 * MIB), None);
        assert!(refuse_copy(100 * MIB + 1, None, 200 * MIB).is_some());
        assert_eq!(refuse_copy(0, None, 0), None);
    }
}
