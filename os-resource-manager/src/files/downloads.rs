//! Downloads of files from their sources. Concurrent requests for a file share one download.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_fetch::{Digest, run_blocking};
use evenkeel_kit::{Clock, Lifecycle};
use tokio::sync::{Semaphore, watch};

use super::cache::{FileCache, FilePresence};
use super::offers::{FileSource, OfferedFile};
use super::partial_download::{DownloadError, PartialDownload};
use super::upstream;
use crate::Sources;

/// How many files are downloaded at once; others wait.
const MAX_DOWNLOADS: usize = 8;

/// How many files of an earlier process are verified at once.
const MAX_VERIFICATIONS: usize = 2;

/// Result of a download; `None` while it runs.
pub(super) type DownloadResult = Option<Result<(), DownloadError>>;

/// The running downloads. Clones share the same state.
#[derive(Clone, Debug)]
pub(super) struct Downloads(Arc<DownloadsInner>);

#[derive(Debug)]
struct DownloadsInner {
    cache: FileCache,
    sources: Arc<Sources>,
    clock: Arc<dyn Clock>,
    /// How long a file with wrong content is not downloaded again.
    bad_file_retry_interval: TimeDelta,
    running: Mutex<HashMap<Digest, watch::Receiver<DownloadResult>>>,
    /// Files with wrong content, each with the end of its wait and the error.
    failures: Mutex<HashMap<Digest, (Time, DownloadError)>>,
    download_slots: Semaphore,
    verification_slots: Semaphore,
}

/// Removes a download from the running ones when dropped, however it ends.
struct RunningEntry {
    downloads: Downloads,
    digest: Digest,
}

impl Drop for RunningEntry {
    fn drop(&mut self) {
        let running = self.downloads.0.running.lock();
        let mut running = running.unwrap_or_else(PoisonError::into_inner);
        running.remove(&self.digest);
    }
}

impl Downloads {
    pub fn new(
        cache: FileCache,
        sources: Arc<Sources>,
        clock: Arc<dyn Clock>,
        retry_interval: Duration,
    ) -> Self {
        Self(Arc::new(DownloadsInner {
            cache,
            sources,
            clock,
            bad_file_retry_interval: TimeDelta::from_std(retry_interval).unwrap_or(TimeDelta::MAX),
            running: Mutex::default(),
            failures: Mutex::default(),
            download_slots: Semaphore::new(MAX_DOWNLOADS),
            verification_slots: Semaphore::new(MAX_VERIFICATIONS),
        }))
    }

    /// Joins the download of a file, or starts it. It continues even if all waiting requests are gone. Files in `spared`
    /// are not evicted for it.
    pub fn join(
        &self,
        file: &Arc<OfferedFile>,
        spared: &Arc<HashSet<Digest>>,
    ) -> watch::Receiver<DownloadResult> {
        let running = self.0.running.lock();
        let mut running = running.unwrap_or_else(PoisonError::into_inner);
        if let Some(download_result) = running.get(&file.digest) {
            return download_result.clone();
        }
        let (sender, receiver) = watch::channel(None);
        running.insert(file.digest, receiver.clone());
        drop(running);
        let entry = RunningEntry { downloads: self.clone(), digest: file.digest };
        let (downloads, file, spared) = (self.clone(), Arc::clone(file), Arc::clone(spared));
        Lifecycle::detach(async move {
            let result = downloads.download(&file, &spared).await;
            // From here on a new request starts a new download.
            drop(entry);
            sender.send(Some(result)).ok();
        });
        receiver
    }

    async fn download(
        &self,
        file: &OfferedFile,
        spared: &HashSet<Digest>,
    ) -> Result<(), DownloadError> {
        let digest = file.digest;
        match self.0.cache.presence(&digest) {
            FilePresence::Verified => return Ok(()),
            FilePresence::Unverified => {
                let cache = self.0.cache.clone();
                // The semaphore is never closed. A verification does not wait for downloads.
                let _verification = self.0.verification_slots.acquire().await;
                if run_blocking(move || cache.verify(&digest)).await? {
                    return Ok(());
                }
            }
            FilePresence::Absent => {}
        }
        if let Some(failure) = self.recent_failure(&digest) {
            return Err(failure);
        }
        // The semaphore is never closed.
        let _slot = self.0.download_slots.acquire().await;
        let result = self.fetch_from_any(file, spared).await;
        match &result {
            Ok(()) => count_download("good"),
            Err(failure) => {
                count_download(outcome_label(failure));
                tracing::warn!(%digest, %failure, "cannot download a file for nodes");
                self.remember_failure(digest, failure);
            }
        }
        result
    }

    /// Downloads a file from the first source that provides it.
    async fn fetch_from_any(
        &self,
        file: &OfferedFile,
        spared: &HashSet<Digest>,
    ) -> Result<(), DownloadError> {
        let mut last_error = DownloadError::Unavailable("no configured registry has it".to_owned());
        for source in &file.sources {
            match self.fetch_from(source, file.digest, spared).await {
                Ok(()) => return Ok(()),
                // No other source can help. `TooLarge` depends on the source: each states its own size.
                Err(fatal @ (DownloadError::NoSpace | DownloadError::Disk(_))) => {
                    return Err(fatal);
                }
                Err(other) => last_error = other,
            }
        }
        Err(last_error)
    }

    async fn fetch_from(
        &self,
        source: &FileSource,
        digest: Digest,
        spared: &HashSet<Digest>,
    ) -> Result<(), DownloadError> {
        let origin = upstream::resolve_origin(&self.0.sources, source);
        let origin = origin.map_err(|error| DownloadError::Unavailable(error.to_string()))?;
        let Some(origin) = origin else {
            let why = format!("the registry {} is not configured", source.registry);
            return Err(DownloadError::Unavailable(why));
        };
        let mut part = PartialDownload::open(&self.0.cache, digest).await?;
        match part.fetch(&origin, source.size, spared).await {
            Ok(()) => Ok(part.commit().await?),
            Err(failure) => {
                // Wrong content is removed already, and a full disk needs the space.
                let needs_space =
                    matches!(failure, DownloadError::NoSpace | DownloadError::TooLarge);
                if needs_space || part.is_empty() {
                    part.discard().await?;
                }
                Err(failure)
            }
        }
    }

    /// The recent failure of a file that is not to be downloaded yet.
    fn recent_failure(&self, digest: &Digest) -> Option<DownloadError> {
        let now = self.0.clock.now();
        let mut failures = self.0.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.retain(|_, (until, _)| now < *until);
        failures.get(digest).map(|(_, failure)| failure.clone())
    }

    /// Remembers a file with wrong content for a while, because its source is unlikely to change soon.
    fn remember_failure(&self, digest: Digest, failure: &DownloadError) {
        if !matches!(failure, DownloadError::WrongContent(_)) {
            return;
        }
        let until = self.0.clock.now().checked_add_signed(self.0.bad_file_retry_interval);
        let until = until.unwrap_or(Time::MAX_UTC);
        let failures = self.0.failures.lock();
        let mut failures = failures.unwrap_or_else(PoisonError::into_inner);
        failures.insert(digest, (until, failure.clone()));
    }
}

fn outcome_label(failure: &DownloadError) -> &'static str {
    match failure {
        DownloadError::TooLarge => "too_large",
        DownloadError::NoSpace => "no_space",
        DownloadError::WrongContent(_) => "wrong_content",
        DownloadError::Unavailable(_) => "unavailable",
        DownloadError::Disk(_) => "disk",
    }
}

fn count_download(outcome: &'static str) {
    metrics::counter!("evenkeel_files_fetched_total", "outcome" => outcome).increment(1);
}
