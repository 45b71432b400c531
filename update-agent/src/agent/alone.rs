//! What the agent does when the server cannot be reached: what it was given leave for ahead, and nothing else.

use std::time::Duration;

use tokio::time::Instant;

use super::hold::part_of;
use super::{Agent, AgentError};
use crate::journal::{Entry, Phase};
use crate::link::LinkError;
use crate::modules::Try;

/// A server that has too much to do for so long is one that cannot be reached: it must not cost the node its window.
const MOST_BUSY: Duration = Duration::from_mins(2);

impl Agent {
    /// Whether an error means that the server cannot be reached.
    pub(super) fn is_left_alone(&mut self, error: &LinkError) -> bool {
        match error {
            LinkError::Unavailable(_) => true,
            LinkError::Busy { again, why } => {
                tracing::debug!(?again, why, "the server has too much to do");
                let since = self.memory.busy.get_or_insert_with(Instant::now);
                since.elapsed() >= MOST_BUSY
            }
            LinkError::Denied(_)
            | LinkError::Refused(_)
            | LinkError::Nonsense(_)
            | LinkError::Setup(_) => false,
        }
    }

    /// How long to wait after a round that failed, given how long that would be without a word of the server. What the
    /// agent may do alone is not missed for it.
    pub(super) fn until_next_try(&mut self, error: &AgentError, backoff: Duration) -> Duration {
        let wait = match error {
            AgentError::Link(LinkError::Unavailable(_)) => backoff.saturating_add(self.spread()),
            // What was begun is gone on with all the same.
            AgentError::Link(LinkError::Busy { again, .. }) if !self.has_begun() => {
                backoff.max(again.saturating_add(part_of(*again / 4)))
            }
            _ => backoff,
        };
        let own = [self.until_next_window(), self.until_patience_ends()];
        own.into_iter().flatten().fold(wait, Duration::min)
    }

    fn has_begun(&self) -> bool {
        let open = self.engine.open().ok().flatten();
        open.as_ref().is_some_and(Entry::has_begun)
    }

    /// While a window is open: how long it takes until a server that has too much to do is not waited for any more.
    fn until_patience_ends(&self) -> Option<Duration> {
        let since = self.memory.busy?;
        let digest = &self.grants.get()?.target_digest;
        self.grants.before(digest, self.clock.now())?;
        let left = MOST_BUSY.saturating_sub(since.elapsed());
        (!left.is_zero()).then_some(left)
    }

    /// Carries out the attempt that is prepared, if there is a grant for exactly its target and one of the windows is
    /// open. All of it is told when the server can be reached again.
    pub(super) async fn go_alone(&mut self) -> Result<(), AgentError> {
        let Some(entry) = self.engine.open()? else {
            return Ok(());
        };
        let digest = entry.target.digest.clone();
        let leave = |agent: &Self| agent.grants.before(&digest, agent.clock.now());
        if entry.phase != Phase::Staged || leave(self).is_none() {
            return Ok(());
        }
        match self.may_begin(&entry).await? {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(failure) => {
                let over = self.engine.fail(entry, failure)?;
                self.remember(&over);
                return Ok(());
            }
        }
        // To get ready takes time.
        let Some(before) = leave(self) else {
            return Ok(());
        };
        tracing::warn!(attempt = %entry.attempt, %before, "the server cannot be reached; beginning with the leave that it gave ahead");
        // It is spent before it is used: to use it twice would be worse than not to use it.
        self.grants.forget().map_err(AgentError::Grant)?;
        let entry = self.engine.begin(entry, Some(before)).await?;
        let mut entry = self.carry_out(entry, Try::First).await?;
        if entry.phase == Phase::Rebooting {
            // There is nobody to tell first.
            entry = self.carry_out(entry, Try::Again).await?;
        }
        if entry.phase == Phase::Over {
            self.remember(&entry);
        }
        Ok(())
    }

    /// How long it takes until a window opens in which the agent may begin without asking.
    pub(super) fn until_next_window(&self) -> Option<Duration> {
        let now = self.clock.now();
        (self.grants.next_window(now)? - now).to_std().ok()
    }
}
