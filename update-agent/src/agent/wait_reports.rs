//! Reports why the node does not go on, while it waits for another program or delays a change.

use std::convert::Infallible;
use std::future::{self, Future};
use std::ops::ControlFlow;
use std::time::Duration;

use evenkeel_kit::chain;

use super::warnings::to_short_line;
use super::{Agent, run_unless_stopped};
use crate::journal::{JournalEntry, JournalError};

/// How long the agent waits for another program before it reports that to the server.
const WAIT_REPORT_DELAY: Duration = Duration::from_secs(3);

const _: () = assert!(WAIT_REPORT_DELAY.as_secs() <= 3, "the settings promise a report by then");

impl Agent {
    /// Completes work of the engine. If a module waits for another program meanwhile, the server
    /// and the status show why. The work continues during the report. `entry` is the open attempt.
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
                match self.send_waiting_reason(entry, &mut work).await {
                    ControlFlow::Continue(sent) => is_sent = sent,
                    ControlFlow::Break(done) => break done,
                }
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
            let nothing = &mut future::pending::<Infallible>();
            let _: ControlFlow<Infallible, bool> =
                self.send_waiting_reason(open.as_ref(), nothing).await;
        }
        Ok(())
    }

    /// Polls only to report the waiting reason; the next poll gets the decision. Continues with
    /// whether the server has it. If `work` is done before the server answers, the result of the
    /// work is returned instead.
    async fn send_waiting_reason<T>(
        &mut self,
        entry: Option<&JournalEntry>,
        work: &mut (impl Future<Output = T> + Unpin),
    ) -> ControlFlow<T, bool> {
        let tag = self.loop_state.terms.decision_tag;
        let stop = self.stop.clone();
        let sent = {
            let sending = Box::pin(run_unless_stopped(&stop, self.poll(entry, None)));
            tokio::select! {
                biased;
                done = work => ControlFlow::Break(done),
                sent = sending => ControlFlow::Continue(sent),
            }
        };
        // The agent does not act on this decision, so the next long poll must return it.
        self.loop_state.terms.decision_tag = tag;
        match sent {
            ControlFlow::Break(done) => ControlFlow::Break(done),
            ControlFlow::Continue(Ok(Ok(_))) => ControlFlow::Continue(true),
            ControlFlow::Continue(Ok(Err(error)) | Err(error)) => {
                tracing::debug!(error = %chain(&error), "cannot report why the node waits");
                ControlFlow::Continue(false)
            }
        }
    }
}
