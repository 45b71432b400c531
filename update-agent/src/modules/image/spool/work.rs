//! The disk's half of a download: the file and its record. Everything here blocks.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use rustix::fs::{Advice, fadvise, statvfs};
use sha2::Digest as _;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use url::Url;

use super::Spooled;
use super::record::{self, Record};
use super::terms::Terms;
use crate::durable::{self, FileError};
use crate::model::{Failure, FailureKind, Sha256};
use crate::modules::image::unpack::{self, HEAD};
use crate::modules::image::web::Line;
use crate::modules::image::web::pace::Bucket;

/// What is read at once to be hashed.
const CHUNK: usize = 1 << 20;

/// What is hashed without asking whether it should go on.
const HASHED_AT_ONCE: u64 = 16 << 20;

/// A wait that is longer was made by a clock that jumped.
const LONGEST_WAIT: TimeDelta = TimeDelta::hours(3);

const MEBIBYTE: u64 = 1 << 20;

/// What a spool remembers from one slice of work to the next, while the agent runs.
#[derive(Default)]
pub struct Held {
    /// Of which file.
    pub file: Option<Sha256>,
    /// From where it was fetched last.
    url: Option<Url>,
    /// The open answer.
    pub line: Option<Flow>,
    /// How far the whole file was hashed.
    hashed: Option<Hashed>,
    /// How long nothing is asked for.
    wait: Option<Wait>,
    bucket: Option<Bucket>,
}

/// An open answer.
pub struct Flow {
    /// The byte that comes next on it.
    pub at: u64,
    /// Whether it began behind what was there already.
    pub is_resumed: bool,
    /// What brings it.
    pub line: Line,
}

struct Hashed {
    so_far: sha2::Sha256,
    at: u64,
}

struct Wait {
    until: DateTime<Utc>,
    why: String,
}

impl Held {
    /// Turns to a file at an address. What is remembered of another file is forgotten, and of the same one at another
    /// address what that one said: its answer, and how long to wait.
    pub fn turn_to(&mut self, file: Sha256, url: &Url) {
        if self.file != Some(file) {
            *self = Self {
                file: Some(file),
                ..Self::default()
            };
        }
        if self.url.as_ref() != Some(url) {
            self.url = Some(url.clone());
            self.line = None;
            self.wait = None;
        }
    }

    /// Why nothing is asked for now; `None` if something may be.
    pub fn waits(&self, now: DateTime<Utc>) -> Option<&str> {
        let wait = self.wait.as_ref()?;
        let left = wait.until - now;
        let counts = left > TimeDelta::zero() && left <= LONGEST_WAIT;
        counts.then_some(wait.why.as_str())
    }

    /// Asks for nothing until then.
    pub fn wait(&mut self, until: DateTime<Utc>, why: String) {
        self.wait = Some(Wait { until, why });
    }

    /// The bucket for a rate in bytes per second.
    pub fn bucket(&mut self, rate: u64) -> &mut Bucket {
        let kept = self.bucket.take().filter(|bucket| bucket.rate() == rate);
        let now = Instant::now();
        self.bucket
            .insert(kept.unwrap_or_else(|| Bucket::new(rate, now)))
    }
}

/// A file while it is being fetched. It holds the spool's mutex: as long as something may still be written, also after
/// nobody waits for it any more, there is no second writer.
pub struct Work {
    pub held: OwnedMutexGuard<Held>,
    pub record: Record,
    /// So many bytes are in the file.
    pub bytes: u64,
    /// Whether what comes now comes on a line that began behind what was there already.
    pub is_resumed: bool,
    /// Why what is in the file could not be unpacked, as soon as that is known. Whoever does not look finds it again in
    /// the next slice.
    pub unfit: Option<Failure>,
    /// The record as it lies on the disk.
    saved: Option<Record>,
    folder: PathBuf,
    path: PathBuf,
    file: File,
    synced_at: Instant,
    looked: bool,
    terms: Terms,
    /// When this slice of work began, by the node's clock.
    now: DateTime<Utc>,
}

impl Work {
    /// Opens the file where its record says that it is sure, and removes what belongs to other files. Who holds the
    /// mutex has turned to it.
    pub fn open(
        held: OwnedMutexGuard<Held>,
        folder: &Path,
        sha256: Sha256,
        terms: Terms,
        now: DateTime<Utc>,
    ) -> Result<Self, Failure> {
        durable::make_folder(folder, 0o700).map_err(|error| storage(folder, &error))?;
        let known = tidy(folder, Some(&sha256), now)?;
        let path = folder.join(sha256.to_string());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|error| cannot(folder, "open", &path, error))?;
        let mut work = Self {
            held,
            record: known.clone().unwrap_or_else(|| Record::new(sha256)),
            bytes: 0,
            is_resumed: false,
            unfit: None,
            saved: known,
            folder: folder.to_owned(),
            path,
            file,
            synced_at: Instant::now(),
            looked: false,
            terms,
            now,
        };
        work.settle()?;
        Ok(work)
    }

    /// Makes the file as long as the record says. One that is shorter was damaged, and nothing of it counts.
    fn settle(&mut self) -> Result<(), Failure> {
        let found = self.file.metadata();
        let length = found.map_err(|error| self.cannot("look at", error))?.len();
        if length < self.record.synced {
            tracing::warn!(
                length,
                synced = self.record.synced,
                "the image's file is shorter than it was: it is fetched from its first byte"
            );
            return self.anew();
        }
        self.cut(self.record.synced)?;
        let bytes = self.bytes;
        self.held.line.take_if(|flow| flow.at != bytes);
        self.held.hashed.take_if(|hashed| hashed.at > bytes);
        Ok(())
    }

    /// Writes what comes next, and from time to time flushes it.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.held.hashed = None;
        self.file
            .write_all_at(bytes, self.bytes)
            .map_err(|error| self.cannot("write", error))?;
        self.bytes += bytes.len() as u64;
        if !self.looked && self.bytes >= HEAD as u64 {
            let head = self.head()?;
            self.unfit = unpack::look(unpack::form(&head), &head).err();
            self.looked = true;
        }
        let due = self.bytes - self.record.synced >= self.terms.sync_bytes
            || self.synced_at.elapsed() >= self.terms.sync_every;
        if due { self.mark(false) } else { Ok(()) }
    }

    /// Makes sure of what was written, and notes it, with a failure if there was one.
    pub fn mark(&mut self, failed: bool) -> Result<(), Failure> {
        // Bytes first: what the record says of them must be true after a power cut.
        if self.bytes != self.record.synced {
            self.file
                .sync_data()
                .map_err(|error| self.cannot("flush", error))?;
        }
        self.record.reached(self.bytes, self.is_resumed);
        if failed {
            self.record.failed();
        }
        self.save()?;
        self.synced_at = Instant::now();
        // Behind the record: whatever else fills the disk, what is here is not lost.
        if self.record.is_whole() {
            return Ok(());
        }
        let total = self.record.total.unwrap_or_default();
        self.has_room(total.saturating_sub(self.bytes))
    }

    /// Begins anew, from the first byte.
    pub fn anew(&mut self) -> Result<(), Failure> {
        // The record first: bytes that come now must not be taken for those of which it spoke.
        self.record.anew();
        self.save()?;
        self.held.line = None;
        self.held.hashed = None;
        self.unfit = None;
        self.looked = false;
        self.cut(0)
    }

    /// Removes the file and everything that was known about it.
    pub fn discard(&mut self) -> Result<(), Failure> {
        *self.held = Held::default();
        tidy(&self.folder, None, self.now).map(|_| ())
    }

    /// Whether the file is whole and lies on the disk.
    pub fn is_whole(&self) -> bool {
        self.record.is_whole() && self.bytes == self.record.synced
    }

    /// Hashes some more of the whole file, as it lies on the disk; its digest once that was all.
    pub fn hash(&mut self) -> Result<Option<Sha256>, Failure> {
        let mut hashed = self.held.hashed.take().unwrap_or_else(|| {
            // What the kernel still has in memory says nothing of the disk. It may refuse: then that is hashed.
            fadvise(&self.file, 0, None, Advice::DontNeed).ok();
            Hashed {
                so_far: sha2::Sha256::new(),
                at: 0,
            }
        });
        let end = self.bytes.min(hashed.at.saturating_add(HASHED_AT_ONCE));
        let mut chunk = vec![0; CHUNK];
        while hashed.at < end {
            let most = usize::try_from(end - hashed.at).unwrap_or(CHUNK).min(CHUNK);
            let read = self.file.read_at(&mut chunk[..most], hashed.at);
            match read {
                Ok(0) => return Err(self.cannot("read", ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    hashed.so_far.update(&chunk[..count]);
                    hashed.at += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.cannot("read", error)),
            }
        }
        if hashed.at < self.bytes {
            self.held.hashed = Some(hashed);
            return Ok(None);
        }
        let digest: [u8; 32] = hashed.so_far.finalize().into();
        Ok(Some(Sha256::from(digest)))
    }

    /// The whole file, whose digest is right. Fails if it is none that could be unpacked: to fetch it again would not
    /// help.
    pub fn spooled(&mut self) -> Result<Spooled, Failure> {
        let head = self.head()?;
        let form = unpack::form(&head);
        if let Err(failure) = unpack::look(form, &head) {
            self.discard()?;
            return Err(failure);
        }
        Ok(Spooled {
            path: self.path.clone(),
            bytes: self.bytes,
            form,
            sha256: self.record.file,
        })
    }

    /// The beginning of the file, by which it is known how the image is packed.
    fn head(&self) -> Result<Vec<u8>, Failure> {
        let mut head = Vec::with_capacity(HEAD);
        File::open(&self.path)
            .and_then(|file| file.take(HEAD as u64).read_to_end(&mut head))
            .map_err(|error| self.cannot("read", error))?;
        Ok(head)
    }

    /// Whether so many bytes more fit, with something left for the journal and all others who write there.
    pub fn has_room(&self, more: u64) -> Result<(), Failure> {
        let found = match statvfs(&self.folder) {
            Ok(found) => found,
            Err(error) => {
                // What does not fit is found out while it is written.
                tracing::warn!(%error, folder = %self.folder.display(), "cannot tell how much room there is");
                return Ok(());
            }
        };
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        let free = bytes(found.f_bavail);
        let margin = (self.terms.margin)(bytes(found.f_blocks));
        let needed = more.saturating_add(margin);
        if free >= needed {
            return Ok(());
        }
        Err(no_room(
            &self.folder,
            &format!(
                "{} MiB are free and {} MiB are needed",
                free / MEBIBYTE,
                needed.div_ceil(MEBIBYTE)
            ),
        ))
    }

    fn cut(&mut self, bytes: u64) -> Result<(), Failure> {
        self.file
            .set_len(bytes)
            .map_err(|error| self.cannot("cut", error))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Writes the record down, unless it says nothing new.
    fn save(&mut self) -> Result<(), Failure> {
        self.record.at = self.saved.as_ref().and_then(|saved| saved.at);
        if self.saved.as_ref() == Some(&self.record) {
            return Ok(());
        }
        self.record.at = Some(self.now);
        let saved = self.record.save(&self.folder);
        saved.map_err(|error| storage(&self.folder, &error))?;
        self.saved = Some(self.record.clone());
        Ok(())
    }

    fn cannot(&self, doing: &'static str, error: io::Error) -> Failure {
        cannot(&self.folder, doing, &self.path, error)
    }
}

/// Removes from a spool's folder what does not belong to `keep`, and `keep` as well if nobody went on with it for too
/// long or there is no record of it: without one nothing is known of the file. What else lies there is not the spool's.
/// The answer is the record of what stays.
pub fn tidy(
    folder: &Path,
    keep: Option<&Sha256>,
    now: DateTime<Utc>,
) -> Result<Option<Record>, Failure> {
    let failed = |error: FileError| storage(folder, &error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot(folder, "list", folder, error)),
    };
    let known = Record::read(folder).map_err(failed)?;
    let known = known.filter(|record| Some(&record.file) == keep);
    let mut kept = known.filter(|record| record.is_old(now) != Some(true));
    // The record first: without it nobody believes what is left of the file.
    if kept.is_none() {
        durable::remove(&folder.join(record::NAME)).map_err(failed)?;
    }
    for entry in entries {
        let entry = entry.map_err(|error| cannot(folder, "list", folder, error))?;
        let Ok(sha256) = entry.file_name().to_string_lossy().parse::<Sha256>() else {
            continue;
        };
        if kept.as_ref().is_none_or(|record| record.file != sha256) {
            durable::remove(&entry.path()).map_err(failed)?;
        }
    }
    // A clock jumped since it was written down: it gets its month from now on, lest it stay for ever.
    if let Some(record) = kept.as_mut().filter(|record| record.is_old(now).is_none()) {
        record.at = Some(now);
        record.save(folder).map_err(failed)?;
    }
    Ok(kept)
}

fn cannot(folder: &Path, doing: &'static str, path: &Path, error: io::Error) -> Failure {
    storage(folder, &FileError::while_doing(doing, path)(error))
}

/// What the disk said, and what to do about it.
fn storage(folder: &Path, error: &FileError) -> Failure {
    match error.source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            no_room(folder, &error.source.to_string())
        }
        ErrorKind::ReadOnlyFilesystem => Failure::new(
            FailureKind::Storage,
            format!(
                "images are fetched into {}, which cannot be written to: mount it so that it can, or check its disk",
                folder.display()
            ),
        ),
        _ => Failure::new(
            FailureKind::Storage,
            format!("{}: check the disk", evenkeel_kit::chain(error)),
        ),
    }
}

fn no_room(folder: &Path, why: &str) -> Failure {
    let reason = format!(
        "there is no room for the image in {} ({why}): make some there, or put the agent's state on a larger file system \
         with state_dir",
        folder.display()
    );
    Failure::new(FailureKind::Storage, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_no_more_is_told_with_what_to_do() {
        let said = |kind: ErrorKind| {
            let folder = Path::new("/data/agent/images");
            let failure = cannot(folder, "write", &folder.join("x"), kind.into());
            assert_eq!(failure.kind, FailureKind::Storage);
            assert!(
                failure.reason.contains("/data/agent/images"),
                "{}",
                failure.reason
            );
            failure.reason
        };
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let reason = said(kind);
            assert!(reason.contains("no room"), "{reason}");
            assert!(reason.contains("state_dir"), "{reason}");
        }
        let reason = said(ErrorKind::ReadOnlyFilesystem);
        assert!(reason.contains("mount it"), "{reason}");
        let reason = said(ErrorKind::Other);
        assert!(reason.contains("check the disk"), "{reason}");
    }

    #[test]
    fn a_wait_ends_also_if_the_clock_jumps() {
        let mut held = Held::default();
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        held.wait(now + TimeDelta::minutes(5), "busy".to_owned());
        assert_eq!(held.waits(now), Some("busy"));
        assert_eq!(held.waits(now + TimeDelta::minutes(5)), None);
        assert_eq!(held.waits(now - TimeDelta::days(9_000)), None);
    }

    #[test]
    fn what_is_waited_for_at_one_address_or_of_one_file_is_nothing_to_another() {
        let (file, now) = (Sha256::of(b"x"), DateTime::UNIX_EPOCH);
        let url = |text: &str| Url::parse(text).expect("an address");
        let waiting = || {
            let mut held = Held::default();
            held.turn_to(file, &url("https://a.example/x"));
            held.wait(now + TimeDelta::minutes(5), "busy".to_owned());
            held
        };
        let mut same = waiting();
        same.turn_to(file, &url("https://a.example/x"));
        assert_eq!(same.waits(now), Some("busy"));
        let mut moved = waiting();
        moved.turn_to(file, &url("https://b.example/x"));
        assert_eq!(moved.waits(now), None);
        let mut other = waiting();
        other.turn_to(Sha256::of(b"y"), &url("https://a.example/x"));
        assert_eq!(other.waits(now), None);
    }
}
