//! Permits to write: a limited number of calls writes at once, and a limited number waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::Load;

/// How long a call waits for a permit.
const WRITE_PERMIT_TIMEOUT: Duration = Duration::from_secs(10);

impl Load {
    /// Waits for a permit to write.
    pub async fn acquire_write_permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        if let Ok(permit) = Arc::clone(&self.write_permits).try_acquire_owned() {
            self.record_database_turns(1);
            return Ok(permit);
        }
        let before = self.waiting_writers.fetch_add(1, Ordering::Relaxed);
        let _waiting = WaitingWriter(&self.waiting_writers);
        if before < self.settings.max_waiting_writers {
            let turn = Arc::clone(&self.write_permits).acquire_owned();
            if let Ok(Ok(permit)) = tokio::time::timeout(WRITE_PERMIT_TIMEOUT, turn).await {
                self.record_database_turns(1);
                return Ok(permit);
            }
        }
        self.metrics.writers.increment(1);
        // The admission layer adds the retry delay.
        Err(Status::unavailable("too many calls wait to write"))
    }
}

/// Counts a call that waits for a permit, also if it is cancelled.
struct WaitingWriter<'a>(&'a AtomicUsize);

impl Drop for WaitingWriter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
