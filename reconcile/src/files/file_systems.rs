//! The file systems that a step changes.

use std::collections::btree_map::{BTreeMap, Entry};

use rustix::fs::fstat;

use super::calls::Calls;
use super::error::FileError;
use super::folder::Folder;

/// The file systems that a step changes, by device. One that is full or fails is blocked: its
/// files stay as they are, and other file systems get their files.
#[derive(Debug, Default)]
pub(crate) struct ChangedFileSystems(BTreeMap<u64, ChangedFileSystem>);

#[derive(Debug)]
struct ChangedFileSystem {
    /// A folder, opened for reading: also a removed folder can be synced then.
    folder: Folder,
    /// Why the file system is blocked.
    error: Option<FileError>,
}

impl ChangedFileSystems {
    /// Records the file system of a folder for the next sync, and returns its device.
    pub(crate) fn record(&mut self, folder: &Folder) -> Result<u64, FileError> {
        let fail = |errno| FileError::from_errno("sync", &folder.path, errno);
        let device = fstat(&folder.fd).map_err(fail)?.st_dev;
        if let Entry::Vacant(entry) = self.0.entry(device) {
            let fd = folder.reopen().map_err(fail)?;
            let folder = Folder { fd, path: folder.path.clone() };
            entry.insert(ChangedFileSystem { folder, error: None });
        }
        Ok(device)
    }

    /// Blocks a recorded file system. The first error is its reason.
    pub(crate) fn block(&mut self, device: u64, error: &FileError) {
        if let Some(system) = self.0.get_mut(&device) {
            system.error.get_or_insert_with(|| error.clone());
        }
    }

    /// Fails if the file system is blocked. The error is for this action and path.
    pub(crate) fn check(
        &self,
        device: u64,
        action: &'static str,
        path: &str,
    ) -> Result<(), FileError> {
        match self.0.get(&device).and_then(|system| system.error.as_ref()) {
            Some(error) if error.path == path => Err(error.clone()),
            Some(error) => {
                let reason = format!("another path of its file system failed: {error}");
                let is_disk_full = error.is_disk_full;
                Err(FileError { is_disk_full, ..FileError::new(action, path, reason) })
            }
            None => Ok(()),
        }
    }

    /// Syncs the file systems that are not blocked, and blocks those that fail.
    pub(crate) fn sync(&mut self, calls: Calls<'_>, failed: &mut Vec<FileError>) {
        for system in self.0.values_mut().filter(|system| system.error.is_none()) {
            if let Err(error) = calls.sync_file_system(&system.folder) {
                system.error = Some(error.clone());
                failed.push(error);
            }
        }
    }

    /// Syncs also the file systems that are blocked: paths of them may be removed.
    pub(crate) fn sync_all(&self, calls: Calls<'_>, failed: &mut Vec<FileError>) {
        for system in self.0.values() {
            if let Err(error) = calls.sync_file_system(&system.folder)
                && system.error.is_none()
            {
                failed.push(error);
            }
        }
    }
}
