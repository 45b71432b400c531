//! Decides after a failed attempt whether the download is delayed, is restarted or fails for good.

use std::time::Duration;

use super::work::DownloadWork;
use super::{DownloadTask, SliceFlow, Spool, SpoolProgress, download_failure, limits, run_on_disk};
use crate::model::Failure;
use crate::modules::image::web::pacing;

impl Spool {
    /// Handles a temporary failure: syncs the received bytes and sends no request until the delay
    /// has passed.
    pub(super) async fn defer(
        &self,
        mut work: DownloadWork,
        task: &DownloadTask<'_>,
        why: String,
        retry_after: Option<Duration>,
    ) -> Result<SliceFlow, Failure> {
        // A server that names a retry time is not broken: that is no failed attempt, unless it
        // repeats too often.
        let failed = retry_after.is_none() || work.record.record_wait();
        let (mut work, ()) = run_on_disk(work, move |work| work.sync(failed)).await?;
        if let Some(how_often) = limits::final_failure_reason(&work.record, task.spec) {
            return fail_download(work, &format!("{how_often}: {why}")).await;
        }
        let wait = match retry_after {
            Some(retry_after) => pacing::retry_after_delay(retry_after),
            None => pacing::retry_delay(work.record.attempts),
        };
        let message = if failed {
            let count = limits::format_attempts(&work.record, task.spec);
            format!("the image cannot be fetched for now: {why} ({count})")
        } else {
            format!("the image cannot be fetched for now: {why}")
        };
        let bytes = work.bytes();
        tracing::info!(why = message, ?wait, bytes, "the download is delayed");
        let now = self.clock.now();
        work.state.set_wait(now + wait, message.clone());
        Ok(SliceFlow::Break(SpoolProgress::Deferred(message)))
    }
}

/// The file is not the image or cannot be unpacked. Downloads it once more; the second time is a
/// failure.
pub async fn retry_wrong_file(
    mut work: DownloadWork,
    failure: Failure,
) -> Result<SliceFlow, Failure> {
    if work.record.was_wrong {
        run_on_disk(work, DownloadWork::discard).await?;
        return Err(failure);
    }
    tracing::warn!(%failure, "the downloaded file is not the image: downloading it once more");
    work.record.was_wrong = true;
    let (work, ()) = run_on_disk(work, DownloadWork::restart).await?;
    Ok(SliceFlow::Continue(work))
}

/// The server's file is shorter than the downloaded part, so it is another file. Restarts once; the
/// second time is a failure.
pub async fn retry_shorter_file(
    mut work: DownloadWork,
    task: &DownloadTask<'_>,
) -> Result<SliceFlow, Failure> {
    if work.record.was_shorter {
        run_on_disk(work, DownloadWork::discard).await?;
        return Err(download_failure(format!(
            "the server reported twice that the image's file is shorter than what it sent of it: \
             check what serves {}",
            task.url.path()
        )));
    }
    work.record.was_shorter = true;
    let (work, ()) = run_on_disk(work, DownloadWork::restart).await?;
    Ok(SliceFlow::Continue(work))
}

/// Ends the download with a failure. The next fetch continues with the retained bytes and with all
/// attempts. Bytes are discarded if the server sent something wrong before.
async fn fail_download(mut work: DownloadWork, how_and_why: &str) -> Result<SliceFlow, Failure> {
    let reason = format!("the image could not be fetched {how_and_why}");
    if work.record.was_wrong || work.record.was_shorter {
        run_on_disk(work, DownloadWork::discard).await?;
        return Err(download_failure(reason));
    }
    work.record.reset_failures();
    let (work, ()) = run_on_disk(work, |work| work.sync(false)).await?;
    Err(download_failure(format!("{reason}; {} bytes are kept for the next attempt", work.bytes())))
}
