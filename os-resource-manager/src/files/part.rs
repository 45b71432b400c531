//! A file that is being fetched, and carried on after a break.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_registry::{Digest, Hasher, Origin, RegistryError};
use futures_util::StreamExt as _;
use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _};

use super::cache::{Cache, NoSpace, blocking, hash_rest};

/// For how much more room is kept at once if nobody knows how much will come.
const STEP: u64 = 16 * 1024 * 1024;

/// How often something that breaks off is taken up again without enough coming in between.
const TRIES: u32 = 4;

/// How much must have come for the next break to count as the first one again.
const PROGRESS: u64 = 1024 * 1024;

/// Why a file did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Trouble {
    /// It is larger than all that may be kept.
    #[error("it is larger than all that may be kept")]
    TooLarge,
    /// There is no room for it now.
    #[error("there is no room for it")]
    NoRoom,
    /// It is not what its digest says.
    #[error("it is not what the profile says: {0}")]
    Wrong(String),
    /// It cannot be had.
    #[error("it cannot be fetched: {0}")]
    Away(String),
    /// The disk fails.
    #[error("it cannot be kept: {0}")]
    Disk(String),
}

impl Trouble {
    /// What a disk that fails makes of a file.
    pub fn disk(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoRoom,
            _ => Self::Disk(error.to_string()),
        }
    }
}

/// How a try to fetch the rest ended.
enum Ended {
    /// All of it is there.
    Whole,
    /// It broke off and may be taken up again.
    Broke(RegistryError),
}

/// A file that is being fetched. Left as it is when dropped.
#[derive(Debug)]
pub(super) struct Part {
    cache: Cache,
    digest: Digest,
    file: tokio::fs::File,
    hasher: Hasher,
    length: u64,
    /// The length, for those who count room.
    written: Arc<AtomicU64>,
    reserved: u64,
    /// Whether the beginning is from another time.
    is_carried_on: bool,
}

/// How a file is fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner<'a> {
    /// How many bytes it has, if that is known.
    pub size: Option<u64>,
    /// What is not removed to make room for it.
    pub spared: &'a HashSet<Digest>,
    /// How long is waited before it is taken up again for the first time.
    pub pause: Duration,
}

impl Part {
    /// Takes what is there of a file, and looks at it.
    pub async fn take(cache: &Cache, digest: Digest) -> io::Result<Self> {
        let (own, begun) = (cache.clone(), digest);
        let taken = blocking(move || {
            let (mut file, written) = own.part(&begun)?;
            let looked = look(&mut file);
            if looked.is_err() {
                own.leave(&begun);
            }
            looked.map(|(hasher, length)| (file, written, hasher, length))
        });
        let (file, written, hasher, length) = taken.await??;
        Ok(Self {
            cache: cache.clone(),
            digest,
            file: tokio::fs::File::from_std(file),
            hasher,
            length,
            written,
            reserved: length,
            is_carried_on: length > 0,
        })
    }

    /// Fetches what is missing, and brings all of it to the disk.
    pub async fn fill(&mut self, from: &dyn Origin, manner: Manner<'_>) -> Result<(), Trouble> {
        if let Some(size) = manner.size {
            self.reserve(size, manner.spared).await?;
        }
        let (mut tries, mut counted_from, mut pause) = (1, self.length, manner.pause);
        loop {
            match self.append(from, manner).await? {
                Ended::Whole => return self.flush().await,
                Ended::Broke(error) => {
                    if self.length.saturating_sub(counted_from) >= PROGRESS {
                        (tries, counted_from, pause) = (1, self.length, manner.pause);
                    }
                    if tries >= TRIES {
                        return Err(Trouble::Away(error.to_string()));
                    }
                    tracing::debug!(digest = %self.digest, %error, "a file broke off and is taken up again");
                    tokio::time::sleep(pause).await;
                    (tries, pause) = (tries + 1, pause * 2);
                }
            }
        }
    }

    /// Fetches what is missing, as far as it comes.
    async fn append(&mut self, from: &dyn Origin, manner: Manner<'_>) -> Result<Ended, Trouble> {
        if self.is_whole() {
            return Ok(Ended::Whole);
        }
        if manner.size.is_some_and(|size| self.length >= size) {
            // What cannot grow any more is wrong already.
            self.begin_anew("another file was there").await?;
        }
        let mut pieces = match from.open(self.length).await {
            Ok(pieces) => pieces,
            Err(error) => return self.refused(error).await,
        };
        while let Some(piece) = pieces.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    self.settle().await?;
                    if is_wrong(&error) {
                        return self.begin_anew(&error.to_string()).await;
                    }
                    return Ok(Ended::Broke(error));
                }
            };
            if !self.write(&piece, manner).await? {
                return self.begin_anew("it is longer than it should be").await;
            }
        }
        self.settle().await?;
        if self.is_whole() {
            return Ok(Ended::Whole);
        }
        if manner.size.is_some_and(|size| self.length < size) {
            return Ok(Ended::Broke(RegistryError::Stalled));
        }
        let found = self.hasher.clone().finish();
        self.begin_anew(&format!("its digest is {found}")).await
    }

    /// What a place that does not even begin means. It was asked as often as it is asked for anything.
    async fn refused(&mut self, error: RegistryError) -> Result<Ended, Trouble> {
        if is_wrong(&error) {
            return self.begin_anew(&error.to_string()).await;
        }
        Err(Trouble::Away(error.to_string()))
    }

    /// Throws away what is there. If its beginning was from another time, that may have been of something else, so it is
    /// fetched once more from its first byte; otherwise it is wrong.
    async fn begin_anew(&mut self, why: &str) -> Result<Ended, Trouble> {
        let failed = |error: io::Error| Trouble::disk(&error);
        self.file.set_len(0).await.map_err(failed)?;
        self.file.seek(SeekFrom::Start(0)).await.map_err(failed)?;
        (self.hasher, self.length) = (Hasher::default(), 0);
        self.written.store(0, Ordering::Relaxed);
        if !std::mem::take(&mut self.is_carried_on) {
            return Err(Trouble::Wrong(why.to_owned()));
        }
        Ok(Ended::Broke(RegistryError::Stalled))
    }

    /// Writes the next piece. Answers whether there may be so much.
    async fn write(&mut self, piece: &[u8], manner: Manner<'_>) -> Result<bool, Trouble> {
        let length = self.length + piece.len() as u64;
        if manner.size.is_some_and(|size| length > size) {
            return Ok(false);
        }
        if length > self.reserved {
            let more = self.reserve(length + STEP, manner.spared).await;
            if more.is_err() {
                self.reserve(length, manner.spared).await?;
            }
        }
        let written = self.file.write_all(piece).await;
        written.map_err(|error| Trouble::disk(&error))?;
        self.hasher.update(piece);
        self.length = length;
        self.written.store(length, Ordering::Relaxed);
        Ok(true)
    }

    async fn reserve(&mut self, bytes: u64, spared: &HashSet<Digest>) -> Result<(), Trouble> {
        let (cache, digest, spared) = (self.cache.clone(), self.digest, spared.clone());
        let reserved = blocking(move || cache.reserve(&digest, bytes, &spared)).await;
        let reserved = reserved.and_then(|reserved| reserved);
        match reserved.map_err(|error| Trouble::disk(&error))? {
            Ok(()) => {
                self.reserved = bytes;
                Ok(())
            }
            Err(NoSpace::TooLarge) => Err(Trouble::TooLarge),
            Err(NoSpace::Full) => Err(Trouble::NoRoom),
        }
    }

    fn is_whole(&self) -> bool {
        self.hasher.clone().finish() == self.digest
    }

    /// What was written is the kernel's now.
    async fn settle(&mut self) -> Result<(), Trouble> {
        let flushed = self.file.flush().await;
        flushed.map_err(|error| Trouble::disk(&error))
    }

    async fn flush(&mut self) -> Result<(), Trouble> {
        let flushed = self.file.sync_all().await;
        flushed.map_err(|error| Trouble::disk(&error))
    }

    /// Gives it its name. It is there for good when this is done.
    pub async fn keep(self) -> io::Result<()> {
        let (cache, digest, length) = (self.cache.clone(), self.digest, self.length);
        blocking(move || cache.keep(&digest, length)).await?
    }

    /// Removes it.
    pub async fn discard(self) -> io::Result<()> {
        let (cache, digest) = (self.cache.clone(), self.digest);
        blocking(move || cache.discard(&digest)).await?
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.cache.leave(&self.digest);
    }
}

/// Whether what comes is another thing than what was asked for.
fn is_wrong(error: &RegistryError) -> bool {
    matches!(
        error,
        RegistryError::WrongDigest { .. }
            | RegistryError::TooLarge { .. }
            | RegistryError::Malformed { .. }
    )
}

/// The digest and the length of what is there.
fn look(file: &mut File) -> io::Result<(Hasher, u64)> {
    let mut hasher = Hasher::default();
    file.seek(SeekFrom::Start(0))?;
    let length = hash_rest(file, &mut hasher)?;
    Ok((hasher, length))
}
