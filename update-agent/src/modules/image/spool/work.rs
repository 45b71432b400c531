//! The disk side of a download: the file and its record. All functions block.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_fetch::{FileHash, PartialFile};
use rustix::fs::{Advice, fadvise, statvfs};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use url::Url;

use super::SpooledImage;
use super::limits::DownloadLimits;
use super::record::{self, SpoolRecord};
use crate::durable::{self, FileError};
use crate::model::{Failure, FailureKind, Sha256};
use crate::modules::image::unpack::{self, HEAD_BYTES};
use crate::modules::image::web::ResponseBody;
use crate::modules::image::web::pacing::TokenBucket;

const MAX_HASH_BYTES_PER_CALL: u64 = 16 << 20;

/// A longer wait is the result of a clock that jumped.
const MAX_WAIT: TimeDelta = TimeDelta::hours(3);

const MEBIBYTE: u64 = 1 << 20;

/// State of a spool between two slices, while the agent runs.
#[derive(Default)]
pub struct SpoolState {
    /// Digest of the file.
    pub file: Option<Sha256>,
    /// Address of the last download.
    url: Option<Url>,
    /// The open response.
    pub transfer: Option<OpenTransfer>,
    /// Hash of the bytes that were hashed so far.
    partial_hash: Option<FileHash>,
    /// Until when no request is sent.
    wait: Option<DownloadWait>,
    bucket: Option<TokenBucket>,
}

/// An open response.
pub struct OpenTransfer {
    /// Offset of the next byte.
    pub at: u64,
    /// Whether it is the response to a range request.
    pub is_resumed: bool,
    pub body: ResponseBody,
}

struct DownloadWait {
    until: DateTime<Utc>,
    reason: String,
}

impl SpoolState {
    /// Selects a file at an address. Forgets the state of another file, and of the same file at
    /// another address the open response and the wait.
    pub fn select_file(&mut self, file: Sha256, url: &Url) {
        if self.file != Some(file) {
            *self = Self { file: Some(file), ..Self::default() };
        }
        if self.url.as_ref() != Some(url) {
            self.url = Some(url.clone());
            self.transfer = None;
            self.wait = None;
        }
    }

    /// Why no request is sent now; `None` if one may be sent.
    pub fn wait_reason(&self, now: DateTime<Utc>) -> Option<&str> {
        let wait = self.wait.as_ref()?;
        let left = wait.until - now;
        let is_active = left > TimeDelta::zero() && left <= MAX_WAIT;
        is_active.then_some(wait.reason.as_str())
    }

    /// Sends no request until then.
    pub fn set_wait(&mut self, until: DateTime<Utc>, reason: String) {
        self.wait = Some(DownloadWait { until, reason });
    }

    /// Token bucket for a rate in bytes per second.
    pub fn bucket(&mut self, rate: u64) -> &mut TokenBucket {
        let current = self.bucket.take().filter(|bucket| bucket.rate() == rate);
        let now = Instant::now();
        self.bucket.insert(current.unwrap_or_else(|| TokenBucket::new(rate, now)))
    }
}

/// A file during its download. It holds the mutex of the spool: while something may be written,
/// even after its future was dropped, there is no second writer.
pub struct DownloadWork {
    pub state: OwnedMutexGuard<SpoolState>,
    pub record: SpoolRecord,
    /// Whether the current response is one to a range request.
    pub is_resumed: bool,
    /// Why the file cannot be unpacked, once that is known. It is found again in the next slice if
    /// it is not read now.
    pub unpack_failure: Option<Failure>,
    /// The record on the disk.
    saved: Option<SpoolRecord>,
    folder: PathBuf,
    part: PartialFile,
    synced_at: Instant,
    head_checked: bool,
    limits: DownloadLimits,
    /// Start of the slice, by the node's clock.
    now: DateTime<Utc>,
}

impl DownloadWork {
    /// Opens the file at its synced length and removes the files of other images. The caller holds
    /// the mutex and has selected the file.
    pub fn open(
        state: OwnedMutexGuard<SpoolState>,
        folder: &Path,
        sha256: Sha256,
        limits: DownloadLimits,
        now: DateTime<Utc>,
    ) -> Result<Self, Failure> {
        durable::create_folder(folder, 0o700).map_err(|error| storage_failure(folder, &error))?;
        let stored = clean_up(folder, Some(&sha256), now)?;
        let path = folder.join(sha256.to_string());
        let part = PartialFile::open(&path, 0o600)
            .map_err(|error| io_failure(folder, "open", &path, error))?;
        let mut work = Self {
            state,
            record: stored.clone().unwrap_or_else(|| SpoolRecord::new(sha256)),
            is_resumed: false,
            unpack_failure: None,
            saved: stored,
            folder: folder.to_owned(),
            part,
            synced_at: Instant::now(),
            head_checked: false,
            limits,
            now,
        };
        work.truncate_to_synced()?;
        Ok(work)
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.part.length()
    }

    /// Truncates the file to its synced length. A shorter file is damaged and restarts from the
    /// first byte.
    fn truncate_to_synced(&mut self) -> Result<(), Failure> {
        let length = self.bytes();
        if length < self.record.synced {
            tracing::warn!(
                length,
                synced = self.record.synced,
                "the image's file is shorter than its record: downloading it from its first byte"
            );
            return self.restart();
        }
        self.truncate(self.record.synced)?;
        let bytes = self.bytes();
        self.state.transfer.take_if(|transfer| transfer.at != bytes);
        self.state.partial_hash.take_if(|hashed| hashed.length() > bytes);
        Ok(())
    }

    /// Appends bytes and syncs them from time to time.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.state.partial_hash = None;
        self.part.append(bytes).map_err(|error| self.io_failure("write", error))?;
        if !self.head_checked && self.bytes() >= HEAD_BYTES as u64 {
            let head = self.read_head()?;
            self.unpack_failure = unpack::check_head(unpack::detect_format(&head), &head).err();
            self.head_checked = true;
        }
        let due = self.bytes() - self.record.synced >= self.limits.sync_bytes
            || self.synced_at.elapsed() >= self.limits.sync_interval;
        if due { self.sync(false) } else { Ok(()) }
    }

    /// Syncs the written bytes and saves the record, with a failure if there was one.
    pub fn sync(&mut self, failed: bool) -> Result<(), Failure> {
        // Bytes first: after a power cut the record must not name more bytes than are on the disk.
        if self.bytes() != self.record.synced {
            self.part.sync().map_err(|error| self.io_failure("flush", error))?;
        }
        self.record.record_progress(self.part.length(), self.is_resumed);
        if failed {
            self.record.record_failure();
        }
        self.save_record()?;
        self.synced_at = Instant::now();
        // Check the space after the record was saved: then nothing is lost if other programs fill
        // the disk.
        if self.record.is_complete() {
            return Ok(());
        }
        let total = self.record.total.unwrap_or_default();
        self.check_space(total.saturating_sub(self.bytes()))
    }

    /// Restarts from the first byte.
    pub fn restart(&mut self) -> Result<(), Failure> {
        // The record first: it must not describe the bytes that follow.
        self.record.restart();
        self.save_record()?;
        self.state.transfer = None;
        self.state.partial_hash = None;
        self.unpack_failure = None;
        self.head_checked = false;
        self.truncate(0)
    }

    /// Removes the file and its state.
    pub fn discard(&mut self) -> Result<(), Failure> {
        *self.state = SpoolState::default();
        clean_up(&self.folder, None, self.now).map(|_| ())
    }

    /// Whether the file is complete and synced.
    pub fn is_complete(&self) -> bool {
        self.record.is_complete() && self.bytes() == self.record.synced
    }

    /// Hashes the next bytes of the complete file on the disk; returns the digest after the last
    /// ones.
    pub fn hash_next(&mut self) -> Result<Option<Sha256>, Failure> {
        let mut hashed = self.state.partial_hash.take().unwrap_or_else(|| {
            // Drop cached pages, so that the disk is read. If the kernel refuses, the cache is
            // hashed.
            fadvise(self.part.file(), 0, None, Advice::DontNeed).ok();
            FileHash::default()
        });
        let end = self.bytes().min(hashed.length().saturating_add(MAX_HASH_BYTES_PER_CALL));
        let read = hashed.read(self.part.file(), end);
        read.map_err(|error| self.io_failure("read", error))?;
        if hashed.length() < end {
            return Err(self.io_failure("read", ErrorKind::UnexpectedEof.into()));
        }
        if end < self.bytes() {
            self.state.partial_hash = Some(hashed);
            return Ok(None);
        }
        Ok(Some(hashed.digest().into()))
    }

    /// Returns the verified file. Fails if it cannot be unpacked: another download would not help.
    pub fn finish(&mut self) -> Result<SpooledImage, Failure> {
        let head = self.read_head()?;
        let format = unpack::detect_format(&head);
        if let Err(failure) = unpack::check_head(format, &head) {
            self.discard()?;
            return Err(failure);
        }
        Ok(SpooledImage {
            path: self.part.path().to_owned(),
            bytes: self.bytes(),
            format,
            sha256: self.record.file,
        })
    }

    /// The first bytes of the file, which show how the image is packed.
    fn read_head(&self) -> Result<Vec<u8>, Failure> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        File::open(self.part.path())
            .and_then(|file| file.take(HEAD_BYTES as u64).read_to_end(&mut head))
            .map_err(|error| self.io_failure("read", error))?;
        Ok(head)
    }

    /// Fails unless `more` bytes fit and some space stays free for the journal and other programs.
    pub fn check_space(&self, more: u64) -> Result<(), Failure> {
        let stats = match statvfs(&self.folder) {
            Ok(stats) => stats,
            Err(error) => {
                // A full disk is detected while the file is written.
                tracing::warn!(%error, folder = %self.folder.display(), "cannot read the free disk space");
                return Ok(());
            }
        };
        let bytes = |blocks: u64| blocks.saturating_mul(stats.f_frsize);
        let free = bytes(stats.f_bavail);
        let margin = (self.limits.free_margin)(bytes(stats.f_blocks));
        let needed = more.saturating_add(margin);
        if free >= needed {
            return Ok(());
        }
        Err(no_space_failure(
            &self.folder,
            &format!(
                "{} MiB are free and {} MiB are needed",
                free / MEBIBYTE,
                needed.div_ceil(MEBIBYTE)
            ),
        ))
    }

    fn truncate(&mut self, bytes: u64) -> Result<(), Failure> {
        self.part.truncate(bytes).map_err(|error| self.io_failure("truncate", error))
    }

    /// Saves the record if it changed.
    fn save_record(&mut self) -> Result<(), Failure> {
        self.record.at = self.saved.as_ref().and_then(|saved| saved.at);
        if self.saved.as_ref() == Some(&self.record) {
            return Ok(());
        }
        self.record.at = Some(self.now);
        let saved = self.record.save(&self.folder);
        saved.map_err(|error| storage_failure(&self.folder, &error))?;
        self.saved = Some(self.record.clone());
        Ok(())
    }

    fn io_failure(&self, doing: &'static str, error: io::Error) -> Failure {
        io_failure(&self.folder, doing, self.part.path(), error)
    }
}

/// Removes everything from the folder of a spool that does not belong to `keep`. Removes `keep` as
/// well if it is too old or has no record: without one the state of the file is unknown. Other
/// files in the folder stay. Returns the record of `keep`.
pub fn clean_up(
    folder: &Path,
    keep: Option<&Sha256>,
    now: DateTime<Utc>,
) -> Result<Option<SpoolRecord>, Failure> {
    let failed = |error: FileError| storage_failure(folder, &error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_failure(folder, "list", folder, error)),
    };
    let stored = SpoolRecord::read(folder).map_err(failed)?;
    let stored = stored.filter(|record| Some(&record.file) == keep);
    let mut retained = stored.filter(|record| record.is_old(now) != Some(true));
    // The record first: without it the rest of the file is ignored.
    if retained.is_none() {
        durable::remove_file(&folder.join(record::FILE_NAME)).map_err(failed)?;
    }
    for entry in entries {
        let entry = entry.map_err(|error| io_failure(folder, "list", folder, error))?;
        let Ok(sha256) = entry.file_name().to_string_lossy().parse::<Sha256>() else {
            continue;
        };
        if retained.as_ref().is_none_or(|record| record.file != sha256) {
            durable::remove_file(&entry.path()).map_err(failed)?;
        }
    }
    // A clock jumped since the record was written: restart its month, so that it does not stay
    // forever.
    if let Some(record) = retained.as_mut().filter(|record| record.is_old(now).is_none()) {
        record.at = Some(now);
        record.save(folder).map_err(failed)?;
    }
    Ok(retained)
}

fn io_failure(folder: &Path, doing: &'static str, path: &Path, error: io::Error) -> Failure {
    storage_failure(folder, &FileError::while_doing(doing, path)(error))
}

/// Describes a failure of the disk and its remedy.
fn storage_failure(folder: &Path, error: &FileError) -> Failure {
    match error.source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            no_space_failure(folder, &error.source.to_string())
        }
        ErrorKind::ReadOnlyFilesystem => Failure::new(
            FailureKind::Storage,
            format!(
                "images are downloaded into {}, which is read-only: mount it for writing, or check \
                 its disk",
                folder.display()
            ),
        ),
        _ => Failure::new(
            FailureKind::Storage,
            format!("{}: check the disk", evenkeel_kit::chain(error)),
        ),
    }
}

fn no_space_failure(folder: &Path, why: &str) -> Failure {
    let reason = format!(
        "there is no room for the image in {} ({why}): free some space there, or put the agent's \
         state on a larger file system with state_dir",
        folder.display()
    );
    Failure::new(FailureKind::Storage, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_failures_are_reported_with_a_remedy() {
        let failure_reason = |kind: ErrorKind| {
            let folder = Path::new("/data/agent/images");
            let failure = io_failure(folder, "write", &folder.join("x"), kind.into());
            assert_eq!(failure.kind, FailureKind::Storage);
            assert!(failure.reason.contains("/data/agent/images"), "{}", failure.reason);
            failure.reason
        };
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let reason = failure_reason(kind);
            assert!(reason.contains("no room"), "{reason}");
            assert!(reason.contains("state_dir"), "{reason}");
        }
        let reason = failure_reason(ErrorKind::ReadOnlyFilesystem);
        assert!(reason.contains("mount it"), "{reason}");
        let reason = failure_reason(ErrorKind::Other);
        assert!(reason.contains("check the disk"), "{reason}");
    }

    #[test]
    fn a_wait_ends_even_if_the_clock_jumps() {
        let mut state = SpoolState::default();
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        state.set_wait(now + TimeDelta::minutes(5), "busy".to_owned());
        assert_eq!(state.wait_reason(now), Some("busy"));
        assert_eq!(state.wait_reason(now + TimeDelta::minutes(5)), None);
        assert_eq!(state.wait_reason(now - TimeDelta::days(9_000)), None);
    }

    #[test]
    fn a_wait_applies_only_to_its_own_file_and_address() {
        let (file, now) = (Sha256::hash(b"x"), DateTime::UNIX_EPOCH);
        let url = |text: &str| Url::parse(text).expect("an address");
        let waiting = || {
            let mut state = SpoolState::default();
            state.select_file(file, &url("https://a.example/x"));
            state.set_wait(now + TimeDelta::minutes(5), "busy".to_owned());
            state
        };
        let mut same = waiting();
        same.select_file(file, &url("https://a.example/x"));
        assert_eq!(same.wait_reason(now), Some("busy"));
        let mut moved = waiting();
        moved.select_file(file, &url("https://b.example/x"));
        assert_eq!(moved.wait_reason(now), None);
        let mut other = waiting();
        other.select_file(Sha256::hash(b"y"), &url("https://a.example/x"));
        assert_eq!(other.wait_reason(now), None);
    }
}
