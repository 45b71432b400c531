//! The files that are kept, each under its digest, and what is there of those that are still coming.
//!
//! A file gets its name only when all of it is on the disk and has its digest, so whoever is killed leaves either the
//! whole file or a part that is carried on. Everything here waits for the disk: call it aside ([`blocking`]).

mod folder;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use evenkeel_domain::Time;
use evenkeel_registry::{Digest, Hasher};

use folder::Folder;
pub(super) use folder::hash_rest;

/// How much may be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// In all, in bytes.
    pub most: u64,
    /// What stays free on the disk, in bytes.
    pub keep_free: u64,
}

/// Why there is no room for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSpace {
    /// It is larger than all that may be kept.
    TooLarge,
    /// Everything else is in use, or the disk is full.
    Full,
}

/// What is there of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum There {
    /// The whole of it, and it has its digest.
    Verified,
    /// The whole of it, as another process left it.
    Unverified,
    /// Not the whole of it.
    No,
}

/// The files that are kept. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Cache(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    folder: Folder,
    bounds: Bounds,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    whole: HashMap<Digest, Whole>,
    parts: HashMap<Digest, Begun>,
    /// Grows with each use of a file.
    turn: u64,
}

#[derive(Debug)]
struct Whole {
    size: u64,
    is_verified: bool,
    /// When it was used last, in turns.
    used: u64,
    /// How many read it now.
    readers: usize,
}

/// A file that is not there as a whole.
#[derive(Debug, Default)]
struct Begun {
    /// How much room is kept for it.
    reserved: u64,
    /// How much of it is there.
    written: Arc<AtomicU64>,
    /// Whether somebody fills it now.
    is_filled: bool,
}

/// A file that is open. It is not removed as long as this lives.
#[derive(Debug)]
pub(super) struct Open {
    pub file: File,
    pub size: u64,
    cache: Cache,
    digest: Digest,
}

/// Does what waits for the disk aside.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)
}

impl Cache {
    /// Opens the folder and takes it for this process. What is too much is removed, what was used longest ago first.
    ///
    /// # Errors
    /// The folder cannot be made or read, or another process has it.
    pub fn open(path: &Path, bounds: Bounds) -> io::Result<Self> {
        let folder = Folder::take(path)?;
        let mut held = Held::default();
        for (digest, size) in folder.files()? {
            held.turn += 1;
            let whole = Whole {
                size,
                is_verified: false,
                used: held.turn,
                readers: 0,
            };
            held.whole.insert(digest, whole);
        }
        for (digest, size) in folder.parts()? {
            let begun = Begun {
                reserved: size,
                written: Arc::new(AtomicU64::new(size)),
                is_filled: false,
            };
            held.parts.insert(digest, begun);
        }
        let cache = Self(Arc::new(Inside {
            folder,
            bounds,
            held: Mutex::new(held),
        }));
        let mut held = cache.lock();
        let too_much = held.bytes().saturating_sub(bounds.most);
        for digest in held.victims(too_much, &HashSet::new()).0 {
            cache.evict(&mut held, &digest)?;
        }
        tell(&held);
        drop(held);
        Ok(cache)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is there of a file.
    pub fn has(&self, digest: &Digest) -> There {
        match self.lock().whole.get(digest) {
            Some(whole) if whole.is_verified => There::Verified,
            Some(_) => There::Unverified,
            None => There::No,
        }
    }

    /// Opens a file that is there and has its digest, and notes that it was used; none if there is no such.
    ///
    /// # Errors
    /// The disk fails.
    pub fn read(&self, digest: &Digest, now: Time) -> io::Result<Option<Open>> {
        let mut held = self.lock();
        let turn = held.turn + 1;
        let Some(whole) = held.whole.get_mut(digest).filter(|one| one.is_verified) else {
            return Ok(None);
        };
        let path = self.0.folder.file(digest);
        let Some(file) = folder::open_if_there(&path)? else {
            held.whole.remove(digest);
            return Ok(None);
        };
        if file.metadata()?.len() != whole.size {
            held.whole.remove(digest);
            folder::remove(&path)?;
            return Ok(None);
        }
        whole.used = turn;
        whole.readers += 1;
        let size = whole.size;
        held.turn = turn;
        drop(held);
        // The order of use is all that is lost if this fails.
        file.set_modified(SystemTime::from(now)).ok();
        Ok(Some(Open {
            file,
            size,
            cache: self.clone(),
            digest: *digest,
        }))
    }

    /// Looks whether a file that another process left has its digest. One that has another is removed. Answers whether it is
    /// there and good.
    ///
    /// # Errors
    /// The disk fails.
    pub fn verify(&self, digest: &Digest) -> io::Result<bool> {
        let path = self.0.folder.file(digest);
        let Some(mut file) = folder::open_if_there(&path)? else {
            self.lock().whole.remove(digest);
            return Ok(false);
        };
        let mut hasher = Hasher::default();
        let size = hash_rest(&mut file, &mut hasher)?;
        let mut held = self.lock();
        if hasher.finish() == *digest {
            let Some(whole) = held.whole.get_mut(digest) else {
                return Ok(false);
            };
            whole.is_verified = true;
            whole.size = size;
            return Ok(true);
        }
        tracing::warn!(%digest, "a file that is kept is not what it was; it is fetched anew");
        held.whole.remove(digest);
        folder::remove(&path)?;
        tell(&held);
        Ok(false)
    }

    /// Takes what is there of a file to fill it: the file, and how much of it has been written. Nobody else fills it until
    /// it is kept, dropped or left.
    ///
    /// # Errors
    /// The disk fails, or somebody fills it.
    pub fn part(&self, digest: &Digest) -> io::Result<(File, Arc<AtomicU64>)> {
        let mut held = self.lock();
        let begun = held.parts.entry(*digest).or_default();
        if begun.is_filled {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let file = self.0.folder.open_part(digest)?;
        let there = file.metadata()?.len();
        begun.written.store(there, Ordering::Relaxed);
        begun.reserved = begun.reserved.max(there);
        begun.is_filled = true;
        Ok((file, Arc::clone(&begun.written)))
    }

    /// Keeps room for so much of a file that is being filled. Others go for it, those that were used longest ago first, but
    /// none that is `spared`; if that is not enough, none goes.
    ///
    /// # Errors
    /// There is no room, or the disk cannot be looked at.
    pub fn reserve(
        &self,
        digest: &Digest,
        bytes: u64,
        spared: &HashSet<Digest>,
    ) -> io::Result<Result<(), NoSpace>> {
        let bounds = self.0.bounds;
        if bytes > bounds.most {
            return Ok(Err(NoSpace::TooLarge));
        }
        let mut held = self.lock();
        let (reserved, written) = held.parts.get(digest).map_or((0, 0), |begun| {
            (begun.reserved, begun.written.load(Ordering::Relaxed))
        });
        let others = held.bytes().saturating_sub(reserved);
        let too_much = others.saturating_add(bytes).saturating_sub(bounds.most);
        let wanted = bounds
            .keep_free
            .saturating_add(held.promised(digest))
            .saturating_add(bytes.saturating_sub(written));
        let lacking = wanted.saturating_sub(self.0.folder.free()?);
        let must_go = too_much.max(lacking);
        let (victims, gained) = held.victims(must_go, spared);
        if gained < must_go {
            return Ok(Err(NoSpace::Full));
        }
        for victim in victims {
            self.evict(&mut held, &victim)?;
        }
        held.parts.entry(*digest).or_default().reserved = bytes;
        tell(&held);
        Ok(Ok(()))
    }

    fn evict(&self, held: &mut Held, digest: &Digest) -> io::Result<()> {
        if held.parts.remove(digest).is_some() {
            return folder::remove(&self.0.folder.part(digest));
        }
        held.whole.remove(digest);
        metrics::counter!("evenkeel_files_evicted_total").increment(1);
        tracing::info!(%digest, "a file that is kept makes room for others");
        folder::remove(&self.0.folder.file(digest))
    }

    /// Gives a part that is whole, flushed and has its digest its name. It is there for good when this is done.
    ///
    /// # Errors
    /// The disk fails.
    pub fn keep(&self, digest: &Digest, size: u64) -> io::Result<()> {
        self.0.folder.keep(digest)?;
        let mut held = self.lock();
        held.parts.remove(digest);
        held.turn += 1;
        let whole = Whole {
            size,
            is_verified: true,
            used: held.turn,
            readers: 0,
        };
        held.whole.insert(*digest, whole);
        tell(&held);
        Ok(())
    }

    /// Removes a part that is worth nothing.
    ///
    /// # Errors
    /// The disk fails.
    pub fn discard(&self, digest: &Digest) -> io::Result<()> {
        let mut held = self.lock();
        held.parts.remove(digest);
        tell(&held);
        folder::remove(&self.0.folder.part(digest))
    }

    /// Leaves a part to whoever carries it on. Nothing happens if it was kept or removed.
    pub fn leave(&self, digest: &Digest) {
        let mut held = self.lock();
        if let Some(begun) = held.parts.get_mut(digest) {
            begun.is_filled = false;
            begun.reserved = begun.written.load(Ordering::Relaxed);
        }
        tell(&held);
    }
}

impl Held {
    /// How much is kept, and kept free for what comes.
    fn bytes(&self) -> u64 {
        let whole = self.whole.values().map(|whole| whole.size);
        whole
            .chain(self.parts.values().map(|begun| begun.reserved))
            .fold(0, u64::saturating_add)
    }

    /// How much others will still write for which room is kept.
    fn promised(&self, digest: &Digest) -> u64 {
        let others = self.parts.iter().filter(|(other, _)| *other != digest);
        others.fold(0, |sum, (_, begun)| {
            let written = begun.written.load(Ordering::Relaxed);
            sum.saturating_add(begun.reserved.saturating_sub(written))
        })
    }

    /// What goes to gain so many bytes, and how many it gains. Parts that nobody fills go first.
    fn victims(&self, bytes: u64, spared: &HashSet<Digest>) -> (Vec<Digest>, u64) {
        let parts = self.parts.iter().filter(|(_, begun)| !begun.is_filled);
        let parts = parts.map(|(digest, begun)| (0, begun.reserved, *digest));
        let whole = self.whole.iter();
        let whole = whole.filter(|(digest, whole)| whole.readers == 0 && !spared.contains(digest));
        let whole = whole.map(|(digest, whole)| (whole.used, whole.size, *digest));
        let mut all: Vec<(u64, u64, Digest)> = parts.chain(whole).collect();
        all.sort_unstable();
        let mut gained: u64 = 0;
        let mut going = Vec::new();
        for (_, size, digest) in all {
            if gained >= bytes {
                break;
            }
            gained = gained.saturating_add(size);
            going.push(digest);
        }
        (going, gained)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(whole) = self.cache.lock().whole.get_mut(&self.digest) {
            whole.readers = whole.readers.saturating_sub(1);
        }
    }
}

fn tell(held: &Held) {
    #[expect(clippy::cast_precision_loss, reason = "nobody counts so far")]
    metrics::gauge!("evenkeel_files_cache_bytes").set(held.bytes() as f64);
}

#[cfg(test)]
mod tests;
