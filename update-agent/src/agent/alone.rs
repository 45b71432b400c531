//! What the agent does when the server cannot be reached: what it was given leave for ahead, and nothing else.

use std::time::Duration;

use super::{Agent, AgentError};
use crate::journal::Phase;
use crate::modules::Try;

impl Agent {
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
