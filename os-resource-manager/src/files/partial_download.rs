//! The download of one file into the cache. It can be resumed after an interruption.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use evenkeel_fetch::{Digest, Download, ExpectedContent, FillError, SourceError, run_blocking};
use evenkeel_registry::{Origin, RegistryError};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use super::cache::{FileCache, ReserveResult};

/// How much more space is reserved at once if the size of the file is not known.
const RESERVATION_STEP_BYTES: u64 = 16 * 1024 * 1024;

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

impl From<io::Error> for DownloadError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Disk(error.to_string()),
        }
    }
}

impl From<RegistryError> for DownloadError {
    fn from(error: RegistryError) -> Self {
        let make = if error.is_wrong_content() { Self::WrongContent } else { Self::Unavailable };
        make(error.to_string())
    }
}

impl From<FillError<DownloadError>> for DownloadError {
    fn from(error: FillError<DownloadError>) -> Self {
        match error {
            FillError::Disk(error) => error.into(),
            FillError::Source(error) => error,
            FillError::Incomplete => Self::Unavailable(error.to_string()),
            error => Self::WrongContent(error.to_string()),
        }
    }
}

impl SourceError for DownloadError {
    fn is_wrong_content(&self) -> bool {
        matches!(self, Self::WrongContent(_))
    }
}

/// A file that is being downloaded. When dropped, its part stays in the cache and can be resumed.
#[derive(Debug)]
pub(super) struct PartialDownload {
    cache: FileCache,
    digest: Digest,
    download: Download,
    /// Number of written bytes, shared with the cache for its space accounting.
    written: Arc<AtomicU64>,
}

/// The space in the cache for one download.
struct SpaceReservation<'a> {
    cache: &'a FileCache,
    digest: Digest,
    spared: &'a HashSet<Digest>,
    written: &'a AtomicU64,
    reserved: AtomicU64,
    /// Maximum size of the file. Longer content is refused without space for it.
    limit: u64,
}

impl PartialDownload {
    /// Opens the part of a file.
    pub async fn open(cache: &FileCache, digest: Digest) -> io::Result<Self> {
        let own = cache.clone();
        let (part, written) = run_blocking(move || own.open_part(&digest)).await?;
        Ok(Self { cache: cache.clone(), digest, download: Download::new(part), written })
    }

    /// Downloads the rest of the file and flushes it to the disk. No file in `spared` is evicted
    /// for it.
    pub async fn fetch(
        &mut self,
        from: &dyn Origin,
        size: Option<u64>,
        spared: &HashSet<Digest>,
    ) -> Result<(), DownloadError> {
        let limit = size.unwrap_or(u64::MAX);
        let space = SpaceReservation {
            cache: &self.cache,
            digest: self.digest,
            spared,
            written: &self.written,
            reserved: AtomicU64::new(self.download.length()),
            limit,
        };
        if let Some(size) = size {
            space.reserve(size).await?;
        }
        let expected = ExpectedContent { digest: self.digest, size, limit };
        let filled = self.download.fill(&expected, |at| space.open(from, at)).await;
        self.written.store(self.download.length(), Ordering::Relaxed);
        Ok(filled?)
    }

    pub fn is_empty(&self) -> bool {
        self.download.length() == 0
    }

    /// Moves the file into the cache. It is durable when this returns.
    pub async fn commit(self) -> io::Result<()> {
        let (cache, digest, length) = (self.cache.clone(), self.digest, self.download.length());
        run_blocking(move || cache.commit(&digest, length)).await
    }

    /// Deletes the part.
    pub async fn discard(self) -> io::Result<()> {
        let (cache, digest) = (self.cache.clone(), self.digest);
        run_blocking(move || cache.discard(&digest)).await
    }
}

impl Drop for PartialDownload {
    fn drop(&mut self) {
        self.cache.release(&self.digest);
    }
}

impl<'a> SpaceReservation<'a> {
    /// Opens a source at an offset. The stream gets space for each chunk before it returns it.
    async fn open(
        &'a self,
        from: &dyn Origin,
        at: u64,
    ) -> Result<BoxStream<'a, Result<Bytes, DownloadError>>, DownloadError> {
        let chunks = from.open(at).await?;
        let mut length = at;
        let chunks = chunks.then(move |chunk| {
            let before = length;
            length += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
            async move {
                // All earlier chunks are written now.
                self.written.store(before, Ordering::Relaxed);
                let is_reserved = length <= self.reserved.load(Ordering::Relaxed);
                let reserved = if is_reserved || length > self.limit {
                    Ok(())
                } else {
                    self.reserve_more(length).await
                };
                reserved.and(chunk.map_err(DownloadError::from))
            }
        });
        Ok(chunks.boxed())
    }

    async fn reserve_more(&self, bytes: u64) -> Result<(), DownloadError> {
        if self.reserve(bytes + RESERVATION_STEP_BYTES).await.is_ok() {
            return Ok(());
        }
        self.reserve(bytes).await
    }

    /// Reserves this many bytes in all.
    async fn reserve(&self, bytes: u64) -> Result<(), DownloadError> {
        let (cache, digest, spared) = (self.cache.clone(), self.digest, self.spared.clone());
        match run_blocking(move || cache.reserve(&digest, bytes, &spared)).await? {
            ReserveResult::Reserved => {
                self.reserved.store(bytes, Ordering::Relaxed);
                Ok(())
            }
            ReserveResult::TooLarge => Err(DownloadError::TooLarge),
            ReserveResult::Full => Err(DownloadError::NoSpace),
        }
    }
}
