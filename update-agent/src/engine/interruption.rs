//! Interruptions of an attempt that has begun to change the node.

use std::sync::PoisonError;

use uuid::Uuid;

use super::Engine;
use crate::journal::{JournalEntry, JournalError, JournalPoint, Phase};
use crate::model::{Interruption, InterruptionCause};

impl Engine {
    /// Records that an earlier agent process ended while the attempt was changing the node. Call it before the attempt is
    /// resumed.
    pub(super) fn record_interruption(&self, entry: &mut JournalEntry) -> Result<(), JournalError> {
        if self.adopt_attempt(entry.attempt) {
            return Ok(());
        }
        let phase = match entry.phase {
            Phase::Applying => "apply",
            Phase::Verifying => "verify",
            // Nothing changes the node while it waits for its reboot.
            Phase::Downloading | Phase::Staged | Phase::Rebooting | Phase::Ended => return Ok(()),
        };
        let cause = if entry.last_boot() == Some(self.parts.boot_id.as_str()) {
            InterruptionCause::AgentStopped
        } else {
            InterruptionCause::MachineRestarted
        };
        tracing::warn!(attempt = %entry.attempt, phase, why = cause.label(), "the attempt was interrupted");
        let is_added = entry.add_interruption(Interruption {
            cause,
            phase: phase.to_owned(),
            resumed_at: self.now(),
            boot_id: self.parts.boot_id.clone(),
        });
        if !is_added {
            return Ok(());
        }
        self.parts.journal.write(&JournalPoint::interrupted(), entry)
    }

    /// Records that this process has begun or resumed the attempt. Returns whether it already had.
    pub(super) fn adopt_attempt(&self, attempt: Uuid) -> bool {
        let mut own = self.own_attempt.lock().unwrap_or_else(PoisonError::into_inner);
        own.replace(attempt) == Some(attempt)
    }
}
