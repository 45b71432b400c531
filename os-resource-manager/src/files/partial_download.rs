//! The download of one file. It can be resumed after an interruption.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_registry::{Digest, Hasher, Origin, RegistryError};
use futures_util::StreamExt as _;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::cache::{CacheSpaceError, FileCache, hash_rest, run_blocking};

/// How much more space is reserved at once if the size of the file is not known.
const RESERVATION_STEP_BYTES: u64 = 16 * 1024 * 1024;

/// How many attempts are made without enough progress in between.
const MAX_ATTEMPTS: u32 = 4;

/// How much progress resets the number of attempts.
const MIN_PROGRESS_BYTES: u64 = 1024 * 1024;

/// Why a download failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DownloadError {
    /// It is larger than the whole cache may be.
    #[error("it is larger than the cache may be")]
    TooLarge,
    /// There is no space for it now.
    #[error("there is no space for it")]
    NoSpace,
    /// Its content does not have the expected digest or size.
    #[error("it is not what the profile says: {0}")]
    WrongContent(String),
    /// No source provides it.
    #[error("it cannot be fetched: {0}")]
    Unavailable(String),
    /// The disk fails.
    #[error("it cannot be stored: {0}")]
    Disk(String),
}

impl DownloadError {
    /// The download error for a disk error.
    pub fn from_disk_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Disk(error.to_string()),
        }
    }
}

/// Result of one attempt to append the rest.
enum AppendResult {
    /// The file is complete.
    Complete,
    /// The attempt was interrupted; another one may continue.
    Interrupted(RegistryError),
}

/// A file that is being downloaded. When dropped, its part stays in the cache and can be resumed.
#[derive(Debug)]
pub(super) struct PartialDownload {
    cache: FileCache,
    digest: Digest,
    file: tokio::fs::File,
    hasher: Hasher,
    length: u64,
    /// The length, shared with the cache for its space accounting.
    written: Arc<AtomicU64>,
    reserved: u64,
    /// Whether the part was started by an earlier download.
    is_resumed: bool,
}

/// Options of a download.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchOptions<'a> {
    /// Size in bytes, if known.
    pub size: Option<u64>,
    /// Files that must not be evicted for it.
    pub spared: &'a HashSet<Digest>,
    /// Delay before the second attempt; it doubles with each further one.
    pub retry_delay: Duration,
}

impl PartialDownload {
    /// Opens the part of a file and hashes its content.
    pub async fn open(cache: &FileCache, digest: Digest) -> io::Result<Self> {
        let (own, begun) = (cache.clone(), digest);
        let opened = run_blocking(move || {
            let (mut file, written) = own.open_part(&begun)?;
            let hashed = hash_existing(&mut file);
            if hashed.is_err() {
                own.release(&begun);
            }
            hashed.map(|(hasher, length)| (file, written, hasher, length))
        });
        let (file, written, hasher, length) = opened.await??;
        Ok(Self {
            cache: cache.clone(),
            digest,
            file: tokio::fs::File::from_std(file),
            hasher,
            length,
            written,
            reserved: length,
            is_resumed: length > 0,
        })
    }

    /// Downloads the rest of the file and flushes it to the disk.
    pub async fn fetch(
        &mut self,
        from: &dyn Origin,
        options: FetchOptions<'_>,
    ) -> Result<(), DownloadError> {
        if let Some(size) = options.size {
            self.reserve(size, options.spared).await?;
        }
        let (mut attempts, mut counted_from, mut retry_delay) =
            (1, self.length, options.retry_delay);
        loop {
            match self.append(from, options).await? {
                AppendResult::Complete => return self.sync_to_disk().await,
                AppendResult::Interrupted(error) => {
                    if self.length.saturating_sub(counted_from) >= MIN_PROGRESS_BYTES {
                        (attempts, counted_from, retry_delay) =
                            (1, self.length, options.retry_delay);
                    }
                    if attempts >= MAX_ATTEMPTS {
                        return Err(DownloadError::Unavailable(error.to_string()));
                    }
                    tracing::debug!(digest = %self.digest, %error, "a download was interrupted and is resumed");
                    tokio::time::sleep(retry_delay).await;
                    (attempts, retry_delay) = (attempts + 1, retry_delay * 2);
                }
            }
        }
    }

    /// Appends as much of the rest as one attempt provides.
    async fn append(
        &mut self,
        from: &dyn Origin,
        options: FetchOptions<'_>,
    ) -> Result<AppendResult, DownloadError> {
        if self.is_complete() {
            return Ok(AppendResult::Complete);
        }
        if options.size.is_some_and(|size| self.length >= size) {
            // The part has its full length but not the digest, so it is wrong.
            self.restart("the existing part is of another file").await?;
        }
        let mut chunks = match from.open(self.length).await {
            Ok(chunks) => chunks,
            Err(error) => return self.open_failed(error).await,
        };
        while let Some(chunk) = chunks.next().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    self.flush_buffer().await?;
                    if is_wrong_content(&error) {
                        return self.restart(&error.to_string()).await;
                    }
                    return Ok(AppendResult::Interrupted(error));
                }
            };
            if !self.write_chunk(&chunk, options).await? {
                return self.restart("it is longer than expected").await;
            }
        }
        self.flush_buffer().await?;
        if self.is_complete() {
            return Ok(AppendResult::Complete);
        }
        if options.size.is_some_and(|size| self.length < size) {
            return Ok(AppendResult::Interrupted(RegistryError::Stalled));
        }
        let actual = self.hasher.clone().finish();
        self.restart(&format!("its digest is {actual}")).await
    }

    /// Handles a source that refused the request. The client below has already retried.
    async fn open_failed(&mut self, error: RegistryError) -> Result<AppendResult, DownloadError> {
        if is_wrong_content(&error) {
            return self.restart(&error.to_string()).await;
        }
        Err(DownloadError::Unavailable(error.to_string()))
    }

    /// Discards the content. A resumed part may have been of another file, so it is downloaded once more from the first
    /// byte. Otherwise the content is wrong.
    async fn restart(&mut self, why: &str) -> Result<AppendResult, DownloadError> {
        let failed = |error: io::Error| DownloadError::from_disk_error(&error);
        self.file.set_len(0).await.map_err(failed)?;
        self.file.seek(SeekFrom::Start(0)).await.map_err(failed)?;
        (self.hasher, self.length) = (Hasher::default(), 0);
        self.written.store(0, Ordering::Relaxed);
        if !std::mem::take(&mut self.is_resumed) {
            return Err(DownloadError::WrongContent(why.to_owned()));
        }
        Ok(AppendResult::Interrupted(RegistryError::Stalled))
    }

    /// Writes the next chunk. Returns false if the file would become longer than expected.
    async fn write_chunk(
        &mut self,
        chunk: &[u8],
        options: FetchOptions<'_>,
    ) -> Result<bool, DownloadError> {
        let length = self.length + chunk.len() as u64;
        if options.size.is_some_and(|size| length > size) {
            return Ok(false);
        }
        if length > self.reserved {
            let more = self.reserve(length + RESERVATION_STEP_BYTES, options.spared).await;
            if more.is_err() {
                self.reserve(length, options.spared).await?;
            }
        }
        let written = self.file.write_all(chunk).await;
        written.map_err(|error| DownloadError::from_disk_error(&error))?;
        self.hasher.update(chunk);
        self.length = length;
        self.written.store(length, Ordering::Relaxed);
        Ok(true)
    }

    async fn reserve(&mut self, bytes: u64, spared: &HashSet<Digest>) -> Result<(), DownloadError> {
        let (cache, digest, spared) = (self.cache.clone(), self.digest, spared.clone());
        let reserved = run_blocking(move || cache.reserve(&digest, bytes, &spared)).await;
        let reserved = reserved.and_then(|reserved| reserved);
        match reserved.map_err(|error| DownloadError::from_disk_error(&error))? {
            Ok(()) => {
                self.reserved = bytes;
                Ok(())
            }
            Err(CacheSpaceError::TooLarge) => Err(DownloadError::TooLarge),
            Err(CacheSpaceError::Full) => Err(DownloadError::NoSpace),
        }
    }

    fn is_complete(&self) -> bool {
        self.hasher.clone().finish() == self.digest
    }

    /// Waits until all written bytes have reached the kernel.
    async fn flush_buffer(&mut self) -> Result<(), DownloadError> {
        let flushed = self.file.flush().await;
        flushed.map_err(|error| DownloadError::from_disk_error(&error))
    }

    async fn sync_to_disk(&mut self) -> Result<(), DownloadError> {
        let flushed = self.file.sync_all().await;
        flushed.map_err(|error| DownloadError::from_disk_error(&error))
    }

    /// Moves the file into the cache. It is durable when this returns.
    pub async fn commit(self) -> io::Result<()> {
        let (cache, digest, length) = (self.cache.clone(), self.digest, self.length);
        run_blocking(move || cache.commit(&digest, length)).await?
    }

    /// Deletes the part.
    pub async fn discard(self) -> io::Result<()> {
        let (cache, digest) = (self.cache.clone(), self.digest);
        run_blocking(move || cache.discard(&digest)).await?
    }
}

impl Drop for PartialDownload {
    fn drop(&mut self) {
        self.cache.release(&self.digest);
    }
}

/// Whether the source provides other content than requested.
fn is_wrong_content(error: &RegistryError) -> bool {
    matches!(
        error,
        RegistryError::WrongDigest { .. }
            | RegistryError::TooLarge { .. }
            | RegistryError::Malformed { .. }
    )
}

/// Hash and length of the existing content.
fn hash_existing(file: &mut File) -> io::Result<(Hasher, u64)> {
    let mut hasher = Hasher::default();
    file.seek(SeekFrom::Start(0))?;
    let length = hash_rest(file, &mut hasher)?;
    Ok((hasher, length))
}
