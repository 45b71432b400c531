//! Layout of the cache folder: `sha256/ab/<digits>` for complete files, `partial/<digits>` for parts.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use evenkeel_fetch::{Digest, PartialFile, sync_parent_folder};

/// The folder of the cache, locked by one process.
#[derive(Debug)]
pub(super) struct CacheFolder {
    complete: PathBuf,
    partial: PathBuf,
    /// The kernel releases the lock when the process ends in any way.
    _lock: File,
}

impl CacheFolder {
    /// Opens and locks a folder. Creates it if it does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (complete, partial) = (path.join("sha256"), path.join("partial"));
        for folder in [&complete, &partial] {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).open(path.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = format!("another process has the folder {}", path.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self { complete, partial, _lock: lock })
    }

    /// Path of a complete file.
    pub fn file_path(&self, digest: &Digest) -> PathBuf {
        let digits = digest.hex();
        let subfolder = digits.get(..2).unwrap_or_default();
        self.complete.join(subfolder).join(&digits)
    }

    pub fn part_path(&self, digest: &Digest) -> PathBuf {
        self.partial.join(digest.hex())
    }

    /// All complete files with their sizes, the least recently used first.
    pub fn list_files(&self) -> io::Result<Vec<(Digest, u64)>> {
        let mut entries = Vec::new();
        for subfolder in fs::read_dir(&self.complete)? {
            let subfolder = subfolder?.path();
            if subfolder.is_dir() {
                entries.extend(list_digest_files(&subfolder)?);
            }
        }
        entries.retain(|(digest, ..)| self.file_path(digest).is_file());
        entries.sort_unstable_by_key(|(_, _, modified)| *modified);
        let files = entries.into_iter().map(|(digest, size, _)| (digest, size));
        Ok(files.collect())
    }

    /// All parts with their sizes.
    pub fn list_parts(&self) -> io::Result<Vec<(Digest, u64)>> {
        let entries = list_digest_files(&self.partial)?.into_iter();
        Ok(entries.map(|(digest, size, _)| (digest, size)).collect())
    }

    /// Opens a part. Creates it if it does not exist.
    pub fn open_part(&self, digest: &Digest) -> io::Result<PartialFile> {
        PartialFile::open(&self.part_path(digest), 0o666)
    }

    /// Moves a part to its final path, and flushes the folders.
    pub fn commit_part(&self, digest: &Digest) -> io::Result<()> {
        let to = self.file_path(digest);
        let subfolder = to.parent().unwrap_or(&self.complete);
        if !subfolder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(subfolder)?;
            sync_parent_folder(subfolder)?;
        }
        fs::rename(self.part_path(digest), &to)?;
        sync_parent_folder(&to)
    }

    /// Bytes that this process may still write to the disk.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.complete)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

/// The files of a folder whose names are digests. Other files are ignored.
fn list_digest_files(folder: &Path) -> io::Result<Vec<(Digest, u64, std::time::SystemTime)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let digest = name.to_str().and_then(|digits| Digest::from_hex(digits).ok());
        let metadata = entry.metadata()?;
        if let Some(digest) = digest.filter(|_| metadata.is_file()) {
            entries.push((digest, metadata.len(), metadata.modified()?));
        }
    }
    Ok(entries)
}

/// Opens a file; `None` if it does not exist.
pub(super) fn open_if_present(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file, if it exists.
pub(super) fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
