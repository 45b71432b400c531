//! Fills a partial file from responses and checks the content.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use crate::digest::Digest;
use crate::partial_file::{FileHash, PartialFile};

/// Expected properties of the complete content.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedContent {
    /// Digest of the content.
    pub digest: Digest,
    /// Size of the content, if it is known.
    pub size: Option<u64>,
    /// Maximum size of the content.
    pub limit: u64,
}

/// Error of a source of content.
pub trait SourceError {
    /// Whether the source provides other content than requested.
    fn is_wrong_content(&self) -> bool;
}

/// Why a file was not filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError<E> {
    #[error("cannot write the partial file: {0}")]
    Disk(#[from] io::Error),
    /// The source failed.
    #[error("{0}")]
    Source(E),
    /// The rest may follow.
    #[error("it ended early")]
    Incomplete,
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    /// The digest is right.
    #[error("its size differs from the declared one")]
    WrongSize,
    #[error("its digest is {actual}, expected {expected}")]
    WrongDigest { expected: Digest, actual: Digest },
}

impl<E: SourceError> FillError<E> {
    /// Whether another request for the rest cannot help.
    pub fn is_wrong_content(&self) -> bool {
        match self {
            Self::Disk(_) | Self::Incomplete => false,
            Self::Source(error) => error.is_wrong_content(),
            Self::TooLarge { .. } | Self::WrongSize | Self::WrongDigest { .. } => true,
        }
    }
}

impl ExpectedContent {
    fn max_size(&self) -> u64 {
        self.size.unwrap_or(self.limit).min(self.limit)
    }

    fn check<E>(&self, length: u64, actual: Digest) -> Result<(), FillError<E>> {
        let expected = self.digest;
        match (actual == expected, self.size) {
            (true, Some(size)) if size != length => Err(FillError::WrongSize),
            (true, _) => Ok(()),
            (false, Some(size)) if length < size => Err(FillError::Incomplete),
            (false, _) => Err(FillError::WrongDigest { expected, actual }),
        }
    }
}

/// A partial file that is filled from responses. Its content survives an interruption: it is hashed
/// when the next download begins, and a wrong content is downloaded again.
#[derive(Debug)]
pub struct Download {
    path: PathBuf,
    /// `None` while a thread works with it.
    disk: Option<HashedFile>,
    length: u64,
    /// Whether wrong content was already downloaded again.
    has_restarted: bool,
}

#[derive(Debug)]
struct HashedFile {
    part: PartialFile,
    hash: FileHash,
}

impl Download {
    pub fn new(part: PartialFile) -> Self {
        let (path, length) = (part.path().to_owned(), part.length());
        let disk = Some(HashedFile { part, hash: FileHash::default() });
        Self { path, disk, length, has_restarted: false }
    }

    /// A download into a file that is locked. Waits for another writer to release it.
    pub async fn lock(path: PathBuf) -> io::Result<Self> {
        run_blocking(move || PartialFile::lock(&path, 0o666)).await.map(Self::new)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    /// Appends the missing bytes, checks the content and flushes it to the disk. `open` requests
    /// the content from an offset on.
    ///
    /// The content of an interrupted transfer is preserved, and another call resumes there. Wrong
    /// content is removed. If the beginning comes from an earlier response, it may be of another
    /// file: then the content is downloaded once more from its first byte, but only once, so that a
    /// server cannot keep a download going forever. A wrong response does not show that the stored
    /// content is wrong, so that content is preserved until the source sends it again.
    pub async fn fill<'a, E, F>(
        &mut self,
        expected: &ExpectedContent,
        mut open: impl FnMut(u64) -> F,
    ) -> Result<(), FillError<E>>
    where
        E: SourceError,
        F: Future<Output = Result<BoxStream<'a, Result<Bytes, E>>, E>>,
    {
        if self.length > expected.max_size() {
            self.truncate().await?;
        }
        let digest = self.on_disk(HashedFile::hash_content).await?;
        if self.length > 0 && expected.check::<E>(self.length, digest).is_ok() {
            return Ok(self.on_disk(|disk| disk.part.sync()).await?);
        }
        // Content of the maximum size cannot become valid by appending.
        if self.length == expected.max_size() {
            self.truncate().await?;
        }
        let mut from = self.length;
        loop {
            let Err(error) = self.append(expected, from, &mut open).await else {
                return Ok(self.on_disk(|disk| disk.part.sync()).await?);
            };
            if !error.is_wrong_content() {
                return Err(error);
            }
            if !matches!(error, FillError::Source(_)) {
                self.truncate().await?;
            }
            if from == 0 || std::mem::replace(&mut self.has_restarted, true) {
                return Err(error);
            }
            from = 0;
        }
    }

    /// Appends the content of one response: from the end of the stored content on, or from its
    /// first byte on. Then it replaces the stored content.
    async fn append<'a, E, F>(
        &mut self,
        expected: &ExpectedContent,
        from: u64,
        open: &mut impl FnMut(u64) -> F,
    ) -> Result<(), FillError<E>>
    where
        E: SourceError,
        F: Future<Output = Result<BoxStream<'a, Result<Bytes, E>>, E>>,
    {
        let mut chunks = open(from).await.map_err(FillError::Source)?;
        if from != self.length {
            self.truncate().await?;
        }
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(FillError::Source)?;
            let limit = expected.max_size();
            if self.length.saturating_add(chunk.len() as u64) > limit {
                return Err(FillError::TooLarge { limit });
            }
            self.on_disk(move |disk| {
                disk.part.append(&chunk)?;
                disk.hash.update(&chunk);
                Ok(())
            })
            .await?;
        }
        let digest = self.on_disk(HashedFile::hash_content).await?;
        expected.check(self.length, digest)
    }

    async fn truncate(&mut self) -> io::Result<()> {
        self.on_disk(|disk| {
            disk.hash = FileHash::default();
            disk.part.truncate(0)
        })
        .await
    }

    /// Renames the complete file to its final path. It is durable when this returns.
    pub async fn persist_as(self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.finish(move |part| part.persist_as(&path)).await
    }

    /// Removes the file. A writer that waits for it creates a new one.
    pub async fn discard(self) -> io::Result<()> {
        self.finish(PartialFile::discard).await
    }

    /// Unlocks the file for a later run. An empty file is removed.
    pub async fn release(self) {
        // The caller returns its own error; a stale empty file does no harm.
        self.finish(PartialFile::release).await.ok();
    }

    async fn finish(
        self,
        act: impl FnOnce(PartialFile) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let disk = self.disk.ok_or_else(cancelled)?;
        run_blocking(move || act(disk.part)).await
    }

    /// Runs a blocking function. The function owns the file: if this future is dropped, no second
    /// writer has it before the function ends.
    async fn on_disk<T: Send + 'static>(
        &mut self,
        act: impl FnOnce(&mut HashedFile) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let mut disk = self.disk.take().ok_or_else(cancelled)?;
        let (disk, done) = run_blocking(move || {
            let done = act(&mut disk);
            Ok((disk, done))
        })
        .await?;
        self.length = disk.part.length();
        self.disk = Some(disk);
        done
    }
}

impl HashedFile {
    /// Digest of the content. Reads what was not hashed yet.
    fn hash_content(&mut self) -> io::Result<Digest> {
        self.hash.read(self.part.file(), self.part.length())?;
        Ok(self.hash.digest())
    }
}

fn cancelled() -> io::Error {
    io::Error::other("an earlier operation on the file was cancelled")
}

/// Runs blocking work on a separate thread.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests;
