//! Reports why the node does not go on, while it waits for another program or delays a change.

use std::future::Future;
use std::time::Duration;

use evenkeel_kit::chain;

use super::warnings::to_short_line;
use super::{Agent, run_unless_stopped};
use crate::journal::{JournalEntry, JournalError};

/// How long the agent waits for another program before it reports that to the server. Together
/// with the report itself it stays below ten seconds.
const WAIT_REPORT_DELAY: Duration = Duration::from_secs(3);

impl Agent {
    /// Completes work of the engine. If a module waits for another program meanwhile, the server
    /// and the status show why. `entry` is the open attempt.
    pub(super) async fn with_wait_reports<T>(
        &mut self,
        entry: Option<&JournalEntry>,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = Box::pin(work);
        let (mut shown, mut is_sent) = (String::new(), false);
        let done = loop {
            tokio::select! {
                biased;
                done = &mut work => break done,
                () = tokio::time::sleep(WAIT_REPORT_DELAY) => {}
            }
            let Some(reason) = self.engine.current_wait() else { continue };
            let reason = to_short_line(&reason);
            if reason != shown {
                self.set_waiting_reason(reason.clone());
                (shown, is_sent) = (reason, false);
            }
            if !is_sent {
                is_sent = self.send_waiting_reason(entry).await;
            }
        };
        if !shown.is_empty() && self.loop_state.waiting_reason == shown {
            self.set_waiting_reason(String::new());
        }
        done
    }

    /// Reports why the node delays the update if the server does not know of a reason yet. Without
    /// this, an agent that ends after one round would never report it.
    pub(super) async fn report_new_waiting_reason(&mut self) -> Result<(), JournalError> {
        let state = &self.loop_state;
        if !state.waiting_reason.is_empty() && state.sent_waiting_reason.is_empty() {
            let open = self.engine.open_attempt()?;
            self.send_waiting_reason(open.as_ref()).await;
        }
        Ok(())
    }

    /// Polls only to report the waiting reason; the next poll gets the decision. Returns whether
    /// the server has it.
    async fn send_waiting_reason(&mut self, entry: Option<&JournalEntry>) -> bool {
        let tag = self.loop_state.terms.decision_tag;
        let stop = self.stop.clone();
        let sent = Box::pin(run_unless_stopped(&stop, self.poll(entry, None))).await;
        // The agent does not act on this decision, so the next long poll must return it.
        self.loop_state.terms.decision_tag = tag;
        match sent {
            Ok(Ok(_)) => true,
            Ok(Err(error)) | Err(error) => {
                tracing::debug!(error = %chain(&error), "cannot report why the node waits");
                false
            }
        }
    }
}
