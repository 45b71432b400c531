//! A file on the disk that is not complete yet, and the hash of its content. All functions block.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::digest::{Digest, Hasher};

/// How many bytes are read from a file at once.
pub const CHUNK_BYTES: usize = 128 * 1024;

/// A file that is not complete yet. Bytes are only appended.
#[derive(Debug)]
pub struct PartialFile {
    file: File,
    path: PathBuf,
    length: u64,
}

impl PartialFile {
    /// Opens the file, or creates it with this mode.
    pub fn open(path: &Path, mode: u32) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(mode)
            .open(path)?;
        let length = file.metadata()?.len();
        Ok(Self { file, path: path.to_owned(), length })
    }

    /// Opens the file and locks it, so it has one writer at a time. Waits for another writer to
    /// release it. The kernel releases the lock of a killed writer.
    pub fn lock(path: &Path, mode: u32) -> io::Result<Self> {
        loop {
            let mut part = Self::open(path, mode)?;
            part.file.lock()?;
            // The previous owner may have removed or renamed the file, or written to it.
            if part.is_at_its_path()? {
                part.length = part.file.metadata()?.len();
                return Ok(part);
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    /// Appends all bytes or none.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            // The first bytes may be written. A shorter content that is appended later would leave
            // them at the end of the file, although they are not hashed.
            self.file.set_len(self.length).ok();
            return Err(error);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Removes all bytes after this many.
    pub fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.length = length;
        Ok(())
    }

    /// Flushes the content to the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Renames the complete and flushed file to its final path. It is durable when this returns.
    pub fn persist_as(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        sync_parent_folder(path)
    }

    /// Removes the file. A writer that waits for its lock creates a new one.
    pub fn discard(self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Unlocks the file for a later writer. An empty file is removed.
    pub fn release(self) -> io::Result<()> {
        if self.file.metadata()?.len() == 0 { self.discard() } else { Ok(()) }
    }

    /// Whether the path still refers to the open file.
    fn is_at_its_path(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(other) => Ok((own.dev(), own.ino()) == (other.dev(), other.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Hash of the beginning of a file.
#[derive(Clone, Debug, Default)]
pub struct FileHash {
    hasher: Hasher,
    length: u64,
}

impl FileHash {
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Digest of the hashed bytes.
    pub fn digest(&self) -> Digest {
        self.hasher.clone().finish()
    }

    /// Adds the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Reads the next bytes from the file, up to the offset `end` or the end of the file.
    pub fn read(&mut self, file: &File, end: u64) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while self.length < end {
            let left = usize::try_from(end - self.length).unwrap_or(CHUNK_BYTES);
            match file.read_at(&mut chunk[..left.min(CHUNK_BYTES)], self.length) {
                Ok(0) => break,
                Ok(count) => self.update(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Replaces a small file atomically and durably.
pub fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_parent_folder(path)
}

/// Syncs the parent folder of `path`, so the name of a new file is on the disk.
pub fn sync_parent_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if folder != Path::new("") => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_lead_to_another_file_than_the_opened_one() {
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("one.part");
        let part = PartialFile::open(&path, 0o600).unwrap();
        assert!(part.is_at_its_path().unwrap());
        fs::remove_file(&path).unwrap();
        assert!(!part.is_at_its_path().unwrap());
        let _other = File::create(&path).unwrap();
        assert!(!part.is_at_its_path().unwrap());
    }

    #[test]
    fn only_an_empty_part_is_removed_on_release() {
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("one.part");
        PartialFile::lock(&path, 0o600).unwrap().release().unwrap();
        assert!(!path.exists());
        let mut part = PartialFile::lock(&path, 0o600).unwrap();
        part.append(b"begun").unwrap();
        part.release().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"begun");
        PartialFile::lock(&path, 0o600).unwrap().discard().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_failed_append_leaves_no_bytes_behind_the_length() {
        let temp_dir = tempfile::tempdir().unwrap();
        let mut part = PartialFile::open(&temp_dir.path().join("one"), 0o600).unwrap();
        let (mut max_size, mut too_large) = (0, 1_u64 << 63);
        while too_large - max_size > 1 {
            let size = max_size + (too_large - max_size) / 2;
            if part.truncate(size).is_ok() {
                max_size = size;
            } else {
                too_large = size;
            }
        }
        // A file system that has a smaller limit than the kernel writes the bytes up to it first.
        part.truncate(max_size - 3).unwrap();
        assert!(part.append(b"0123456789").is_err());
        assert_eq!(part.length(), max_size - 3);
        assert_eq!(part.file().metadata().unwrap().len(), part.length());
    }

    #[test]
    fn a_hash_continues_where_it_ended() {
        let temp_dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..=250).cycle().take(2 * CHUNK_BYTES + 7).collect();
        let mut part = PartialFile::open(&temp_dir.path().join("one"), 0o600).unwrap();
        part.append(&content).unwrap();
        let mut hash = FileHash::default();
        for end in [1, CHUNK_BYTES as u64 + 1, part.length()] {
            hash.read(part.file(), end).unwrap();
            assert_eq!(hash.length(), end);
        }
        hash.read(part.file(), u64::MAX).unwrap();
        assert_eq!((hash.length(), hash.digest()), (part.length(), Digest::compute(&content)));
    }
}
