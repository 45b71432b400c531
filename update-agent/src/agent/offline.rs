//! What the agent does while the server cannot be reached: it uses the offline grant, and nothing
//! else.

use std::time::Duration;

use tokio::time::Instant;

use super::actions::StartCheck;
use super::long_poll::random_part;
use super::{Agent, AgentError};
use crate::journal::{JournalEntry, Phase};
use crate::link::LinkError;
use crate::modules::TryKind;

/// After this time an overloaded server counts as unreachable, so that the node does not miss its
/// window.
const MAX_BUSY_TIME: Duration = Duration::from_mins(2);

impl Agent {
    /// Whether an error means that the server cannot be reached.
    pub(super) fn is_server_unreachable(&mut self, error: &LinkError) -> bool {
        match error {
            LinkError::Unavailable(_) => true,
            LinkError::Busy { retry_after: again, message: why } => {
                tracing::debug!(?again, why, "the server is overloaded");
                let since = self.loop_state.busy_since.get_or_insert_with(Instant::now);
                since.elapsed() >= MAX_BUSY_TIME
            }
            LinkError::Unauthenticated(_)
            | LinkError::Denied(_)
            | LinkError::Refused(_)
            | LinkError::InvalidAnswer(_)
            | LinkError::Setup(_) => false,
        }
    }

    /// Time to wait after a failed round. `backoff` is the wait without a hint of the server. The
    /// wait is shortened if the agent has something to do offline before that.
    pub(super) fn retry_delay(&mut self, error: &AgentError, backoff: Duration) -> Duration {
        let wait = match error {
            AgentError::Link(LinkError::Unavailable(_)) => {
                backoff.saturating_add(self.take_reconnect_spread())
            }
            // A change that has begun is continued regardless of the server.
            AgentError::Link(LinkError::Busy { retry_after: again, .. })
                if !self.open_attempt_has_begun() =>
            {
                backoff.max(again.saturating_add(random_part(*again / 4)))
            }
            _ => backoff,
        };
        let own = [self.time_until_next_window(), self.time_until_busy_limit()];
        own.into_iter().flatten().fold(wait, Duration::min)
    }

    fn open_attempt_has_begun(&self) -> bool {
        let open = self.engine.open_attempt().ok().flatten();
        open.as_ref().is_some_and(JournalEntry::has_begun)
    }

    /// While a window is open: time until an overloaded server counts as unreachable.
    fn time_until_busy_limit(&self) -> Option<Duration> {
        let since = self.loop_state.busy_since?;
        let digest = &self.grants.get()?.target_digest;
        self.grants.start_deadline(digest, self.clock.now())?;
        let left = MAX_BUSY_TIME.saturating_sub(since.elapsed());
        (!left.is_zero()).then_some(left)
    }

    /// Carries out the prepared attempt if the offline grant is for its target and one of its
    /// windows is open. The result is reported when the server can be reached again.
    pub(super) async fn run_offline(&mut self) -> Result<(), AgentError> {
        let Some(entry) = self.engine.open_attempt()? else {
            return Ok(());
        };
        let digest = entry.target.digest.clone();
        let start_deadline = |agent: &Self| agent.grants.start_deadline(&digest, agent.clock.now());
        if entry.phase != Phase::Staged || start_deadline(self).is_none() {
            return Ok(());
        }
        // While a document is applied, no update begins.
        let Some(planning) = self.lock_planning()? else {
            return Ok(());
        };
        match self.check_start(&entry).await? {
            StartCheck::Ready => {}
            StartCheck::Delayed => return Ok(()),
            StartCheck::Failed(failure) => {
                let ended = self.engine.fail(entry, failure)?;
                self.record_end(&ended);
                return Ok(());
            }
        }
        // The checks take time, so the window may have closed.
        let Some(before) = start_deadline(self) else {
            return Ok(());
        };
        tracing::warn!(attempt = %entry.attempt, %before, "the server cannot be reached; starting with the offline grant");
        // The grant is removed before it is used: not using it is better than using it twice.
        self.grants.remove().map_err(AgentError::Grant)?;
        let entry = self.engine.begin(entry, Some(before)).await?;
        drop(planning);
        let mut entry = self.run_attempt(entry, TryKind::First).await?;
        // An agent that was asked to stop meanwhile leaves the reboot to the next one.
        if entry.phase == Phase::Rebooting && !self.stop.is_cancelled() {
            // The server cannot be reached, so there is no report to send before the reboot.
            entry = self.run_attempt(entry, TryKind::Again).await?;
        }
        if entry.phase == Phase::Ended {
            self.record_end(&entry);
        }
        Ok(())
    }

    /// Time until the next window opens in which the agent may start without the server.
    pub(super) fn time_until_next_window(&self) -> Option<Duration> {
        let now = self.clock.now();
        (self.grants.next_window_start(now)? - now).to_std().ok()
    }
}
