//! Leave to write: so many calls have it at once, and only some wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::Load;

/// How long a call may wait for a pen.
const PEN_WITHIN: Duration = Duration::from_secs(10);

impl Load {
    /// Leave to write, once it is this call's turn.
    pub async fn pen(&self) -> Result<OwnedSemaphorePermit, Status> {
        if let Ok(pen) = Arc::clone(&self.pens).try_acquire_owned() {
            self.had_turns(1);
            return Ok(pen);
        }
        let before = self.waiting_for_pens.fetch_add(1, Ordering::Relaxed);
        let _waiting = InLine(&self.waiting_for_pens);
        if before < self.settings.writers_waiting {
            let turn = Arc::clone(&self.pens).acquire_owned();
            if let Ok(Ok(pen)) = tokio::time::timeout(PEN_WITHIN, turn).await {
                self.had_turns(1);
                return Ok(pen);
            }
        }
        self.told.writers.increment(1);
        // The door says when to try again.
        Err(Status::unavailable("too many calls wait to write"))
    }
}

/// A call that waits for a pen, or did until it was cancelled.
struct InLine<'a>(&'a AtomicUsize);

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
