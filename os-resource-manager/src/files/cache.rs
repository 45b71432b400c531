//! The cache of files, each stored under its digest, and the partial files of running and interrupted downloads.
//!
//! A file gets its final name only when it is completely on the disk and has its digest. A killed process therefore
//! leaves either a complete file or a part that can be resumed. All functions here block on the disk: call them in
//! [`evenkeel_fetch::run_blocking`].

mod folder;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use evenkeel_domain::Time;
use evenkeel_fetch::{Digest, FileHash, PartialFile};

use folder::CacheFolder;

/// Size limits of the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheLimits {
    /// Maximum size of all files, in bytes.
    pub max_bytes: u64,
    /// Space that stays free on the disk, in bytes.
    pub min_free_bytes: u64,
}

/// Result of reserving space for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum ReserveResult {
    Reserved,
    /// The file is larger than the whole cache may be.
    TooLarge,
    /// All other files are in use, or the disk is full.
    Full,
}

/// What the cache has of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilePresence {
    /// The complete file, and its digest is verified.
    Verified,
    /// The complete file of an earlier process, not verified yet.
    Unverified,
    /// Not the complete file.
    Absent,
}

/// The cache. Clones share the same state.
#[derive(Clone, Debug)]
pub(super) struct FileCache(Arc<CacheInner>);

#[derive(Debug)]
struct CacheInner {
    folder: CacheFolder,
    limits: CacheLimits,
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    files: HashMap<Digest, StoredFile>,
    parts: HashMap<Digest, CachedPart>,
    /// Increases with each use of a file.
    use_counter: u64,
}

#[derive(Debug)]
struct StoredFile {
    size: u64,
    is_verified: bool,
    /// Value of `use_counter` at the last use.
    last_used: u64,
    /// Number of open readers.
    readers: usize,
}

/// A file that is not complete yet.
#[derive(Debug, Default)]
struct CachedPart {
    /// Bytes reserved for it.
    reserved: u64,
    /// Bytes written so far.
    written: Arc<AtomicU64>,
    /// Whether a download is writing it.
    is_being_filled: bool,
}

/// An open file. It is not evicted while this value lives.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub file: File,
    pub size: u64,
    cache: FileCache,
    digest: Digest,
}

impl FileCache {
    /// Opens the folder and locks it for this process. Evicts the least recently used files if the cache is too large.
    ///
    /// # Errors
    /// The folder cannot be created or read, or another process uses it.
    pub fn open(path: &Path, limits: CacheLimits) -> io::Result<Self> {
        let folder = CacheFolder::open(path)?;
        let mut state = CacheState::default();
        for (digest, size) in folder.list_files()? {
            state.use_counter += 1;
            let stored =
                StoredFile { size, is_verified: false, last_used: state.use_counter, readers: 0 };
            state.files.insert(digest, stored);
        }
        for (digest, size) in folder.list_parts()? {
            let partial = CachedPart {
                reserved: size,
                written: Arc::new(AtomicU64::new(size)),
                is_being_filled: false,
            };
            state.parts.insert(digest, partial);
        }
        let cache = Self(Arc::new(CacheInner { folder, limits, state: Mutex::new(state) }));
        let mut state = cache.lock();
        let too_much = state.total_bytes().saturating_sub(limits.max_bytes);
        for digest in state.eviction_candidates(too_much, &HashSet::new()).0 {
            cache.evict(&mut state, &digest)?;
        }
        report_size(&state);
        drop(state);
        Ok(cache)
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cache has of a file.
    pub fn presence(&self, digest: &Digest) -> FilePresence {
        match self.lock().files.get(digest) {
            Some(stored) if stored.is_verified => FilePresence::Verified,
            Some(_) => FilePresence::Unverified,
            None => FilePresence::Absent,
        }
    }

    /// Opens a verified file, and records its use; `None` if there is none.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open_file(&self, digest: &Digest, now: Time) -> io::Result<Option<OpenFile>> {
        let mut state = self.lock();
        let use_counter = state.use_counter + 1;
        let Some(stored) = state.files.get_mut(digest).filter(|one| one.is_verified) else {
            return Ok(None);
        };
        let path = self.0.folder.file_path(digest);
        let Some(file) = folder::open_if_present(&path)? else {
            state.files.remove(digest);
            return Ok(None);
        };
        if file.metadata()?.len() != stored.size {
            state.files.remove(digest);
            folder::remove_if_present(&path)?;
            return Ok(None);
        }
        stored.last_used = use_counter;
        stored.readers += 1;
        let size = stored.size;
        state.use_counter = use_counter;
        drop(state);
        // If this fails, only the order of use is lost.
        file.set_modified(SystemTime::from(now)).ok();
        Ok(Some(OpenFile { file, size, cache: self.clone(), digest: *digest }))
    }

    /// Verifies the digest of a file of an earlier process. Removes the file if the digest is wrong. Returns whether the
    /// file is valid.
    ///
    /// # Errors
    /// The disk fails.
    pub fn verify(&self, digest: &Digest) -> io::Result<bool> {
        let path = self.0.folder.file_path(digest);
        let Some(file) = folder::open_if_present(&path)? else {
            self.lock().files.remove(digest);
            return Ok(false);
        };
        let mut hash = FileHash::default();
        hash.read(&file, u64::MAX)?;
        let mut state = self.lock();
        if hash.digest() == *digest {
            let Some(stored) = state.files.get_mut(digest) else {
                return Ok(false);
            };
            stored.is_verified = true;
            stored.size = hash.length();
            return Ok(true);
        }
        tracing::warn!(%digest, "a cached file has a wrong digest and is downloaded again");
        state.files.remove(digest);
        folder::remove_if_present(&path)?;
        report_size(&state);
        Ok(false)
    }

    /// Opens the part of a file for writing. Returns it and the number of bytes written so far. The
    /// part has one writer until it is committed, discarded or released.
    ///
    /// # Errors
    /// The disk fails, or another download is writing the part.
    pub fn open_part(&self, digest: &Digest) -> io::Result<(PartialFile, Arc<AtomicU64>)> {
        let mut state = self.lock();
        let partial = state.parts.entry(*digest).or_default();
        if partial.is_being_filled {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let file = self.0.folder.open_part(digest)?;
        let length = file.length();
        partial.written.store(length, Ordering::Relaxed);
        partial.reserved = partial.reserved.max(length);
        partial.is_being_filled = true;
        Ok((file, Arc::clone(&partial.written)))
    }

    /// Reserves `bytes` in all for a part that is being written. Evicts the least recently used files for it, but none of
    /// `spared`. Evicts nothing if that would not be enough.
    ///
    /// # Errors
    /// The disk cannot be examined.
    pub fn reserve(
        &self,
        digest: &Digest,
        bytes: u64,
        spared: &HashSet<Digest>,
    ) -> io::Result<ReserveResult> {
        let limits = self.0.limits;
        if bytes > limits.max_bytes {
            return Ok(ReserveResult::TooLarge);
        }
        let mut state = self.lock();
        let (reserved, written) = state
            .parts
            .get(digest)
            .map_or((0, 0), |partial| (partial.reserved, partial.written.load(Ordering::Relaxed)));
        let others = state.total_bytes().saturating_sub(reserved);
        let too_much = others.saturating_add(bytes).saturating_sub(limits.max_bytes);
        let required = limits
            .min_free_bytes
            .saturating_add(state.outstanding_bytes(digest))
            .saturating_add(bytes.saturating_sub(written));
        let lacking = required.saturating_sub(self.0.folder.free_bytes()?);
        let must_go = too_much.max(lacking);
        let (victims, gained) = state.eviction_candidates(must_go, spared);
        if gained < must_go {
            return Ok(ReserveResult::Full);
        }
        for victim in victims {
            self.evict(&mut state, &victim)?;
        }
        state.parts.entry(*digest).or_default().reserved = bytes;
        report_size(&state);
        Ok(ReserveResult::Reserved)
    }

    fn evict(&self, state: &mut CacheState, digest: &Digest) -> io::Result<()> {
        if state.parts.remove(digest).is_some() {
            return folder::remove_if_present(&self.0.folder.part_path(digest));
        }
        state.files.remove(digest);
        metrics::counter!("evenkeel_files_evicted_total").increment(1);
        tracing::info!(%digest, "a cached file is evicted to make space");
        folder::remove_if_present(&self.0.folder.file_path(digest))
    }

    /// Gives its final name to a complete, flushed part with the right digest. The file is durable when this returns.
    ///
    /// # Errors
    /// The disk fails.
    pub fn commit(&self, digest: &Digest, size: u64) -> io::Result<()> {
        self.0.folder.commit_part(digest)?;
        let mut state = self.lock();
        state.parts.remove(digest);
        state.use_counter += 1;
        let stored =
            StoredFile { size, is_verified: true, last_used: state.use_counter, readers: 0 };
        state.files.insert(*digest, stored);
        report_size(&state);
        Ok(())
    }

    /// Removes a part that is of no use.
    ///
    /// # Errors
    /// The disk fails.
    pub fn discard(&self, digest: &Digest) -> io::Result<()> {
        let mut state = self.lock();
        state.parts.remove(digest);
        report_size(&state);
        folder::remove_if_present(&self.0.folder.part_path(digest))
    }

    /// Releases a part, so that another download can resume it. Does nothing if it was committed or discarded.
    pub fn release(&self, digest: &Digest) {
        let mut state = self.lock();
        if let Some(partial) = state.parts.get_mut(digest) {
            partial.is_being_filled = false;
            partial.reserved = partial.written.load(Ordering::Relaxed);
        }
        report_size(&state);
    }
}

impl CacheState {
    /// Size of all files, and of all reservations.
    fn total_bytes(&self) -> u64 {
        let files = self.files.values().map(|file| file.size);
        files
            .chain(self.parts.values().map(|partial| partial.reserved))
            .fold(0, u64::saturating_add)
    }

    /// Reserved bytes that the other parts have not written yet.
    fn outstanding_bytes(&self, digest: &Digest) -> u64 {
        let others = self.parts.iter().filter(|(other, _)| *other != digest);
        others.fold(0, |sum, (_, partial)| {
            let written = partial.written.load(Ordering::Relaxed);
            sum.saturating_add(partial.reserved.saturating_sub(written))
        })
    }

    /// What to evict to gain `bytes`, and how many bytes that gains. Parts that no download writes come first.
    fn eviction_candidates(&self, bytes: u64, spared: &HashSet<Digest>) -> (Vec<Digest>, u64) {
        let parts = self.parts.iter().filter(|(_, partial)| !partial.is_being_filled);
        let parts = parts.map(|(digest, partial)| (0, partial.reserved, *digest));
        let files = self.files.iter();
        let files = files.filter(|(digest, file)| file.readers == 0 && !spared.contains(digest));
        let files = files.map(|(digest, file)| (file.last_used, file.size, *digest));
        let mut all: Vec<(u64, u64, Digest)> = parts.chain(files).collect();
        all.sort_unstable();
        let mut gained: u64 = 0;
        let mut candidates = Vec::new();
        for (_, size, digest) in all {
            if gained >= bytes {
                break;
            }
            gained = gained.saturating_add(size);
            candidates.push(digest);
        }
        (candidates, gained)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(stored) = self.cache.lock().files.get_mut(&self.digest) {
            stored.readers = stored.readers.saturating_sub(1);
        }
    }
}

fn report_size(state: &CacheState) {
    #[expect(clippy::cast_precision_loss, reason = "a cache is far smaller than 2^53 bytes")]
    metrics::gauge!("evenkeel_files_cache_bytes").set(state.total_bytes() as f64);
}

#[cfg(test)]
mod tests;
