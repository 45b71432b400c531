//! A partial file that can be resumed after an interruption.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use crate::digest::{Digest, Hasher};
use crate::error::{RegistryError, RegistryResult, malformed};
use crate::source::Origin;

/// How many bytes are read from a file at once.
pub(crate) const CHUNK_BYTES: usize = 128 * 1024;

/// Expected properties of the complete content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedContent {
    /// Digest of the content.
    pub digest: Digest,
    /// Size of the content, if it is known.
    pub size: Option<u64>,
    /// Maximum size of the content.
    pub limit: u64,
}

impl ExpectedContent {
    fn max_size(&self) -> u64 {
        self.size.unwrap_or(self.limit).min(self.limit)
    }

    fn matches(&self, length: u64, digest: &Digest) -> bool {
        self.digest == *digest && self.size.is_none_or(|size| size == length)
    }
}

/// A partial file. It is locked, so it has one writer at a time. The content of a killed writer is
/// resumed.
#[derive(Debug)]
pub(crate) struct PartialFile {
    file: tokio::fs::File,
    path: PathBuf,
}

impl PartialFile {
    /// Opens or creates the file and locks it. Waits for another writer to release it.
    pub async fn lock(path: PathBuf) -> RegistryResult<Self> {
        let at = path.clone();
        let file = run_blocking(move || {
            loop {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&at)?;
                file.lock()?;
                // The previous owner may have removed or renamed the file.
                if is_same_file(&file, &at)? {
                    return Ok(file);
                }
            }
        })
        .await?;
        Ok(Self { file: tokio::fs::File::from_std(file), path })
    }

    /// Resumes the file where it ended, checks it and syncs it to the disk. Returns its size.
    /// Invalid content is removed; the content of an interrupted transfer is preserved.
    pub async fn fill(
        &mut self,
        expected: &ExpectedContent,
        from: &dyn Origin,
    ) -> RegistryResult<u64> {
        let (mut hasher, mut length) = self.hash_existing(expected).await?;
        if length > 0 && expected.matches(length, &hasher.clone().finish()) {
            self.file.sync_all().await?;
            return Ok(length);
        }
        // Content of the maximum size cannot become valid by appending.
        if length == expected.max_size() {
            (hasher, length) = (Hasher::default(), 0);
        }
        let carried_on = length > 0;
        match self.append(expected, from, hasher, length).await {
            // The old content may have been wrong, so start again. If the rest is only unavailable,
            // the old content may still be right.
            Err(
                RegistryError::WrongDigest { .. }
                | RegistryError::TooLarge { .. }
                | RegistryError::Malformed { .. },
            ) if carried_on => self.append(expected, from, Hasher::default(), 0).await,
            filled => filled,
        }
    }

    /// Renames the complete file to its final path and syncs the folder.
    pub async fn persist_as(self, path: &Path) -> RegistryResult<()> {
        let to = path.to_owned();
        run_blocking(move || {
            std::fs::rename(&self.path, &to)?;
            sync_parent_folder(&to)
        })
        .await
    }

    /// Path of the partial file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file. A writer that waits for it creates a new one.
    pub async fn discard(self) -> RegistryResult<()> {
        let path = self.path.clone();
        let remove = move || match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        run_blocking(remove).await
    }

    /// Unlocks the file for a later run. An empty file is removed.
    pub async fn release(self) {
        let file = self.file.metadata().await;
        if file.is_ok_and(|file| file.len() == 0) {
            // Return the original error; a stale empty file does no harm.
            let _ = self.discard().await;
        }
    }

    /// Hashes the existing content. Content that exceeds the maximum size is ignored.
    async fn hash_existing(&mut self, expected: &ExpectedContent) -> RegistryResult<(Hasher, u64)> {
        let mut hasher = Hasher::default();
        let length = self.file.metadata().await?.len();
        if length > expected.max_size() {
            return Ok((hasher, 0));
        }
        self.file.seek(io::SeekFrom::Start(0)).await?;
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut read = 0;
        loop {
            match self.file.read(&mut buffer).await? {
                0 => return Ok((hasher, read)),
                count => {
                    hasher.update(buffer.get(..count).unwrap_or_default());
                    read += count as u64;
                }
            }
        }
    }

    async fn append(
        &mut self,
        expected: &ExpectedContent,
        from: &dyn Origin,
        mut hasher: Hasher,
        mut length: u64,
    ) -> RegistryResult<u64> {
        self.file.set_len(length).await?;
        self.file.seek(io::SeekFrom::Start(length)).await?;
        let mut chunks = from.open(length).await?;
        while let Some(chunk) = chunks.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    self.file.flush().await?;
                    return Err(error);
                }
            };
            length += chunk.len() as u64;
            if length > expected.max_size() {
                self.file.set_len(0).await?;
                let limit = expected.max_size();
                return Err(RegistryError::TooLarge { limit });
            }
            hasher.update(&chunk);
            self.file.write_all(&chunk).await?;
        }
        self.file.flush().await?;
        let (expected_digest, actual) = (expected.digest, hasher.finish());
        if expected.matches(length, &actual) {
            self.file.sync_all().await?;
            return Ok(length);
        }
        if expected_digest != actual && expected.size.is_some_and(|size| length < size) {
            return Err(RegistryError::Stalled);
        }
        self.file.set_len(0).await?;
        if expected_digest == actual {
            return Err(malformed("blob", "its size differs from the declared one"));
        }
        Err(RegistryError::WrongDigest { expected: expected_digest, actual })
    }
}

/// Whether a path still refers to an open file.
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(metadata) => Ok((own.dev(), own.ino()) == (metadata.dev(), metadata.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces a small file atomically.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write as _;

    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_parent_folder(path)
}

/// Syncs the parent folder of `path`, so the name of a new file is on the disk.
pub(crate) fn sync_parent_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if folder != Path::new("") => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// Runs blocking work on a separate thread.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> RegistryResult<T> {
    let result = tokio::task::spawn_blocking(work).await;
    Ok(result.map_err(io::Error::other)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_lead_to_another_file_than_the_opened_one() {
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("one.part");
        let file = File::create(&path).unwrap();
        assert!(is_same_file(&file, &path).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert!(!is_same_file(&file, &path).unwrap());
        let _other = File::create(&path).unwrap();
        assert!(!is_same_file(&file, &path).unwrap());
    }

    #[tokio::test]
    async fn only_an_empty_part_is_removed_on_release() {
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("one.part");
        let part = PartialFile::lock(path.clone()).await.unwrap();
        part.release().await;
        assert!(!path.exists());
        std::fs::write(&path, "begun").unwrap();
        let part = PartialFile::lock(path.clone()).await.unwrap();
        part.release().await;
        assert_eq!(std::fs::read(&path).unwrap(), b"begun");
    }
}
