//! How files lie in their folder: `sha256/ab/<digits>` whole, `partial/<digits>` what is still coming.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use evenkeel_registry::{Digest, Hasher};

/// How much is read from a file at once.
const PIECE: usize = 128 * 1024;

/// A folder of files, taken by one process.
#[derive(Debug)]
pub(super) struct Folder {
    whole: PathBuf,
    partial: PathBuf,
    /// Given back by the kernel when the process ends, however it does.
    _lock: File,
}

impl Folder {
    /// Takes a folder, made if it is not there.
    pub fn take(path: &Path) -> io::Result<Self> {
        let (whole, partial) = (path.join("sha256"), path.join("partial"));
        for folder in [&whole, &partial] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)?;
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let why = format!("another process has the folder {}", path.display());
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self {
            whole,
            partial,
            _lock: lock,
        })
    }

    /// Where a whole file lies.
    pub fn file(&self, digest: &Digest) -> PathBuf {
        let digits = digest.hex();
        let drawer = digits.get(..2).unwrap_or_default();
        self.whole.join(drawer).join(&digits)
    }

    /// Where a part lies.
    pub fn part(&self, digest: &Digest) -> PathBuf {
        self.partial.join(digest.hex())
    }

    /// All whole files with their sizes, what was used longest ago first.
    pub fn files(&self) -> io::Result<Vec<(Digest, u64)>> {
        let mut found = Vec::new();
        for drawer in fs::read_dir(&self.whole)? {
            let drawer = drawer?.path();
            if drawer.is_dir() {
                found.extend(in_folder(&drawer)?);
            }
        }
        found.retain(|(digest, ..)| self.file(digest).is_file());
        found.sort_unstable_by_key(|(_, _, modified)| *modified);
        let files = found.into_iter().map(|(digest, size, _)| (digest, size));
        Ok(files.collect())
    }

    /// All parts with their sizes.
    pub fn parts(&self) -> io::Result<Vec<(Digest, u64)>> {
        let found = in_folder(&self.partial)?.into_iter();
        Ok(found.map(|(digest, size, _)| (digest, size)).collect())
    }

    /// Opens a part, made if it is not there.
    pub fn open_part(&self, digest: &Digest) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.part(digest))
    }

    /// Gives a part its name. Both folders are on the disk when this is done.
    pub fn keep(&self, digest: &Digest) -> io::Result<()> {
        let to = self.file(digest);
        let drawer = to.parent().unwrap_or(&self.whole);
        if !drawer.is_dir() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(drawer)?;
            flush(&self.whole)?;
        }
        fs::rename(self.part(digest), &to)?;
        flush(drawer)
    }

    /// How many bytes we may still write to the disk.
    pub fn free(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.whole)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
}

/// The files in a folder whose names are digests. Whatever else lies there is not ours.
fn in_folder(folder: &Path) -> io::Result<Vec<(Digest, u64, std::time::SystemTime)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let digest = name
            .to_str()
            .and_then(|digits| Digest::from_hex(digits).ok());
        let about = entry.metadata()?;
        if let Some(digest) = digest.filter(|_| about.is_file()) {
            found.push((digest, about.len(), about.modified()?));
        }
    }
    Ok(found)
}

/// Opens a file; none if there is no such.
pub(super) fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Takes the digest of the rest of a file. Answers how long the rest was.
pub(in crate::files) fn hash_rest(file: &mut File, hasher: &mut Hasher) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut length = 0;
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(length),
            Ok(count) => {
                hasher.update(piece.get(..count).unwrap_or_default());
                length += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn flush(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
