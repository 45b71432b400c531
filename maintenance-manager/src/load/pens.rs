//! Leave to write: so many calls have it at once, and only some wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use super::{CallKind, Load};

/// How long a call may wait for a pen.
const PEN_WITHIN: Duration = Duration::from_secs(10);

impl Load {
    /// Leave to write, once it is this call's turn.
    pub async fn pen(&self, kind: CallKind) -> Result<OwnedSemaphorePermit, Status> {
        if let Ok(pen) = Arc::clone(&self.pens).try_acquire_owned() {
            self.had_turns(1);
            return Ok(pen);
        }
        let before = self.waiting_for_pens.fetch_add(1, Ordering::Relaxed);
        let _waiting = InLine(&self.waiting_for_pens);
        let most = match kind {
            CallKind::News => self.settings.writers_waiting,
            CallKind::Quiet | CallKind::Eim => self
                .polls_at_the_database()
                .min(self.settings.writers_waiting),
        };
        if before < most {
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
