//! Downloads the file of an image in slices into a folder, and passes it on only if its digest is
//! right.
//!
//! The file is named by its SHA-256. `spool.json` next to it says how many of its bytes are synced.
//! A power cut costs the bytes that came after the last sync: the file is truncated there, and the
//! rest is requested as a range. Whatever servers sent the parts, the digest of the complete file
//! on the disk decides in the end.

mod failures;
pub(super) mod limits;
mod record;
mod work;

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_fetch::RangeRequest;
use evenkeel_kit::Clock;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use self::failures::{retry_shorter_file, retry_wrong_file};
use self::limits::{DEFAULT_LIMITS, DownloadLimits, TransferEnd, check_size};
use self::record::SpoolRecord;
use self::work::{DownloadWork, OpenTransfer, SpoolState};
use super::unpack::ImageFormat;
use super::web::{BodyEvent, DownloadError, OpenedFile, ResponseBody, WebClient};
use crate::model::{Failure, FailureKind, ImageSpec, Sha256};

/// Bytes that are collected before they are written.
const WRITE_BLOCK_BYTES: usize = 256 << 10;

/// Longer slices are shortened to this.
const MAX_SLICE: Duration = Duration::from_hours(1);

/// The complete and verified file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpooledImage {
    /// Path of the file.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Compression of the file.
    pub format: ImageFormat,
    /// Verified digest. The file must still have it when it is unpacked.
    pub sha256: Sha256,
}

/// Result of a slice of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpoolProgress {
    /// The complete file. Its content on the disk has the expected digest.
    Complete(SpooledImage),
    /// A part of the file. The next slice can start at once.
    Partial {
        /// Bytes that are synced.
        bytes: u64,
    },
    /// Nothing can be downloaded for a while, for this reason. An earlier call does no harm and
    /// sends nothing.
    Deferred(String),
}

/// Downloads files into its own folder, one at a time.
pub struct Spool {
    folder: PathBuf,
    web: WebClient,
    clock: Arc<dyn Clock>,
    limits: DownloadLimits,
    state: Arc<Mutex<SpoolState>>,
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spool")
            .field("folder", &self.folder)
            .field("web", &self.web)
            .finish_non_exhaustive()
    }
}

/// The work of one slice.
struct DownloadTask<'a> {
    spec: &'a ImageSpec,
    url: Url,
    deadline: Instant,
}

impl DownloadTask<'_> {
    fn is_expired(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// Whether a slice continues.
type SliceFlow = ControlFlow<SpoolProgress, DownloadWork>;

impl Spool {
    /// A spool in a folder, which is created on demand. Continues downloads of an earlier agent.
    pub fn new(folder: PathBuf, web: WebClient, clock: Arc<dyn Clock>) -> Self {
        Self::with_limits(folder, web, clock, DEFAULT_LIMITS)
    }

    fn with_limits(
        folder: PathBuf,
        web: WebClient,
        clock: Arc<dyn Clock>,
        limits: DownloadLimits,
    ) -> Self {
        Self { folder, web, clock, limits, state: Arc::default() }
    }

    /// Size of an image's file without the download; `None` if the server does not announce it or
    /// cannot be reached now. Fails if the server does not have the file or the file is too large.
    pub async fn size(&self, spec: &ImageSpec) -> Result<Option<u64>, Failure> {
        let url = self.web.resolve_address(&spec.url)?;
        let mut total = self.recorded_size(&spec.sha256).await?;
        if total.is_none() {
            let now = self.clock.now();
            total = self.web.query_size(&url, self.limits.open_timeout, now).await?;
        }
        if let Some(total) = total {
            check_size(spec, total)?;
        }
        Ok(total)
    }

    async fn recorded_size(&self, sha256: &Sha256) -> Result<Option<u64>, Failure> {
        let folder = self.folder.clone();
        let record = run_blocking(move || {
            SpoolRecord::read(&folder).map_err(|error| spool_failure(&evenkeel_kit::chain(&error)))
        });
        let is_known = |record: &SpoolRecord| record.file == *sha256 && !record.is_guessed;
        let record = record.await?.filter(is_known);
        Ok(record.and_then(|record| record.total))
    }

    /// Downloads the file of an image for at most `slice` plus the response time of the server. The
    /// future can be dropped: synced bytes are retained, and the next call waits until nothing is
    /// written any more.
    ///
    /// Fails with [`FailureKind::Download`] if too many attempts failed or the file is wrong, with
    /// [`FailureKind::Storage`] if it does not fit, and with [`FailureKind::Unsupported`] if it
    /// cannot be unpacked.
    pub async fn fetch(&self, spec: &ImageSpec, slice: Duration) -> Result<SpoolProgress, Failure> {
        let task = DownloadTask {
            spec,
            url: self.web.resolve_address(&spec.url)?,
            deadline: Instant::now() + slice.min(MAX_SLICE),
        };
        let mut state = Arc::clone(&self.state).lock_owned().await;
        state.select_file(spec.sha256, &task.url);
        let now = self.clock.now();
        if let Some(why) = state.wait_reason(now) {
            return Ok(SpoolProgress::Deferred(why.to_owned()));
        }
        let (folder, sha256, limits) = (self.folder.clone(), spec.sha256, self.limits);
        let opened = run_blocking(move || DownloadWork::open(state, &folder, sha256, limits, now));
        let mut work = opened.await?;
        // The limit may be lower than when the download began.
        check_size(spec, work.record.total.unwrap_or(work.bytes()))?;
        loop {
            let next = if work.is_complete() {
                self.verify_digest(work, &task).await?
            } else if let Some(transfer) = work.state.transfer.take() {
                self.receive_body(work, transfer, &task).await?
            } else {
                self.request_rest(work, &task).await?
            };
            match next {
                SliceFlow::Continue(back) => work = back,
                SliceFlow::Break(progress) => return Ok(progress),
            }
        }
    }

    /// Removes all downloads except one, which is removed as well if it made no progress for 30
    /// days. Fails while a download is running.
    pub fn discard_except(&self, keep: Option<&Sha256>) -> Result<(), Failure> {
        let Ok(mut state) = self.state.try_lock() else {
            let reason =
                "an image is being downloaded now: older downloads are removed when that has ended";
            return Err(Failure::new(FailureKind::Storage, reason));
        };
        if keep.is_none() || state.file.as_ref() != keep {
            *state = SpoolState::default();
        }
        work::clean_up(&self.folder, keep, self.clock.now()).map(|_| ())
    }

    /// Requests the missing bytes.
    async fn request_rest(
        &self,
        mut work: DownloadWork,
        task: &DownloadTask<'_>,
    ) -> Result<SliceFlow, Failure> {
        let requested = RangeRequest {
            from: work.bytes(),
            total: work.record.total,
            etag: work.record.etag.clone(),
        };
        let now = self.clock.now();
        let opened = self.web.open(&task.url, &requested, self.limits.open_timeout, now);
        let (body, from, total, etag) = match opened.await {
            Ok(OpenedFile::Body { body, from, total, etag }) => (body, from, total, etag),
            Ok(OpenedFile::WrongPart(why)) => {
                // Without a range the server may send the right bytes.
                let (work, ()) = run_on_disk(work, DownloadWork::restart).await?;
                return self.defer(work, task, why, None).await;
            }
            Ok(OpenedFile::RangeNotSatisfiable) => return retry_shorter_file(work, task).await,
            Err(DownloadError::Transient { reason, retry_after }) => {
                return self.defer(work, task, reason, retry_after).await;
            }
            Err(DownloadError::Permanent(failure)) => return Err(failure),
        };
        if let Some(total) = total {
            check_size(task.spec, total)?;
        }
        if from < work.bytes() {
            // The server does not support ranges, or the file changed. The broken connection was
            // counted before.
            tracing::info!(lost = work.bytes(), "the server sends the image from its first byte");
            work = run_on_disk(work, DownloadWork::restart).await?.0;
        }
        // Saved together with the first bytes that are synced.
        work.record.total = total;
        work.record.is_guessed = false;
        work.record.etag = etag;
        let left = total.map_or(0, |total| total.saturating_sub(work.bytes()));
        let (mut work, ()) = run_on_disk(work, move |work| work.check_space(left)).await?;
        work.state.transfer = Some(OpenTransfer { at: from, is_resumed: from > 0, body });
        Ok(SliceFlow::Continue(work))
    }

    /// Receives a body until it or the slice ends.
    async fn receive_body(
        &self,
        mut work: DownloadWork,
        mut transfer: OpenTransfer,
        task: &DownloadTask<'_>,
    ) -> Result<SliceFlow, Failure> {
        work.is_resumed = transfer.is_resumed;
        let mut block = Vec::with_capacity(WRITE_BLOCK_BYTES);
        let mut written_at = Instant::now();
        let end = loop {
            match self.next_event(&mut work, &mut transfer.body, task).await {
                BodyEvent::Bytes(bytes) => block.extend_from_slice(&bytes),
                BodyEvent::End => break TransferEnd::Complete,
                BodyEvent::Idle => {}
                BodyEvent::Broken(why) => break TransferEnd::Broken(why),
            }
            let bytes = work.bytes().saturating_add(block.len() as u64);
            let end = limits::end_after(bytes, work.record.total, task.spec.rules.max_bytes);
            if let Some(end) =
                end.or_else(|| task.is_expired().then_some(TransferEnd::SliceExpired))
            {
                break end;
            }
            if block.len() >= WRITE_BLOCK_BYTES || written_at.elapsed() >= self.limits.sync_interval
            {
                (work, block) = write_block(work, block).await?;
                written_at = Instant::now();
                if let Some(failure) = work.unpack_failure.take() {
                    break TransferEnd::CannotUnpack(failure);
                }
            }
        };
        match end {
            TransferEnd::Complete => {
                self.finish_body(write_block(work, block).await?.0, task).await
            }
            TransferEnd::SliceExpired => {
                let (work, _) = write_block(work, block).await?;
                let (mut work, ()) = run_on_disk(work, |work| work.sync(false)).await?;
                let bytes = work.bytes();
                transfer.at = bytes;
                work.state.transfer = Some(transfer);
                Ok(SliceFlow::Break(SpoolProgress::Partial { bytes }))
            }
            TransferEnd::Broken(why) => {
                let (work, _) = write_block(work, block).await?;
                self.defer(work, task, why, None).await
            }
            TransferEnd::Excess => {
                let (work, ()) = run_on_disk(work, DownloadWork::restart).await?;
                let why = "the server sends more bytes than it announced".to_owned();
                self.defer(work, task, why, None).await
            }
            TransferEnd::TooLarge => {
                let received = work.bytes().saturating_add(block.len() as u64);
                run_on_disk(work, DownloadWork::discard).await?;
                Err(limits::too_large_failure(task.spec, &format!("at least {received}")))
            }
            TransferEnd::CannotUnpack(failure) => retry_wrong_file(work, failure).await,
        }
    }

    /// Handles the end of a body.
    async fn finish_body(
        &self,
        mut work: DownloadWork,
        task: &DownloadTask<'_>,
    ) -> Result<SliceFlow, Failure> {
        match work.record.total {
            Some(total) if work.bytes() < total => {
                let why = format!("the server sent {} of {total} bytes", work.bytes());
                return self.defer(work, task, why, None).await;
            }
            Some(_) => {}
            // Only the digest can show whether the file is complete.
            None => {
                work.record.total = Some(work.bytes());
                work.record.is_guessed = true;
            }
        }
        let (work, ()) = run_on_disk(work, |work| work.sync(false)).await?;
        Ok(SliceFlow::Continue(work))
    }

    /// Waits for the next part of the body, within the rate limit.
    async fn next_event(
        &self,
        work: &mut DownloadWork,
        body: &mut ResponseBody,
        task: &DownloadTask<'_>,
    ) -> BodyEvent {
        let rate = task.spec.rules.download_bytes_per_second;
        let now = Instant::now();
        let delay = work.state.bucket(rate).delay(now);
        if !delay.is_zero() {
            let left = task.deadline.saturating_duration_since(now);
            tokio::time::sleep(delay.min(left)).await;
            if delay >= left {
                return BodyEvent::Idle;
            }
        }
        let event = body.next_event(task.deadline, &self.limits.stall_limits).await;
        if let BodyEvent::Bytes(bytes) = &event {
            work.state.bucket(rate).consume(bytes.len(), Instant::now());
        }
        event
    }

    /// Compares the digest of the file on the disk.
    async fn verify_digest(
        &self,
        work: DownloadWork,
        task: &DownloadTask<'_>,
    ) -> Result<SliceFlow, Failure> {
        let (mut work, digest) = run_on_disk(work, DownloadWork::hash_next).await?;
        work.state.transfer = None;
        let expected = task.spec.sha256;
        match digest {
            None if task.is_expired() => {
                Ok(SliceFlow::Break(SpoolProgress::Partial { bytes: work.bytes() }))
            }
            None => Ok(SliceFlow::Continue(work)),
            Some(digest) if digest == expected => {
                let (_, spooled) = run_on_disk(work, DownloadWork::finish).await?;
                Ok(SliceFlow::Break(SpoolProgress::Complete(spooled)))
            }
            Some(digest) if work.record.is_guessed => {
                // The connection may have broken undetected. Retain the bytes and request the rest.
                work.record.is_guessed = false;
                work.record.total = None;
                let why = format!(
                    "the server does not say how long the image's file is, and the {} bytes that it sent have the \
                     SHA-256 {digest} and should have {expected}",
                    work.bytes()
                );
                self.defer(work, task, why, None).await
            }
            Some(digest) => {
                let failure = download_failure(format!(
                    "the image's file has the SHA-256 {digest} and should have {expected}: the address serves another \
                     file than the release names; publish the release again, or put its file there"
                ));
                retry_wrong_file(work, failure).await
            }
        }
    }
}

/// Writes a block and returns it empty.
async fn write_block(
    work: DownloadWork,
    mut block: Vec<u8>,
) -> Result<(DownloadWork, Vec<u8>), Failure> {
    run_on_disk(work, move |work| {
        work.append(&block)?;
        block.clear();
        Ok(block)
    })
    .await
}

/// Runs a blocking function. It owns the work, and with it the mutex, so that there is no other
/// writer until it ends.
async fn run_on_disk<T: Send + 'static>(
    mut work: DownloadWork,
    act: impl FnOnce(&mut DownloadWork) -> Result<T, Failure> + Send + 'static,
) -> Result<(DownloadWork, T), Failure> {
    run_blocking(move || {
        let done = act(&mut work)?;
        Ok((work, done))
    })
    .await
}

async fn run_blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done,
        Err(error) => Err(spool_failure(&error)),
    }
}

fn spool_failure(why: &dyn fmt::Display) -> Failure {
    let reason = format!("cannot read the downloaded image: {why}");
    Failure::new(FailureKind::Storage, reason)
}

fn download_failure(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Download, reason)
}

#[cfg(test)]
mod tests;
