//! How a trial ends.

use super::*;

impl ModelMachine {
    pub(super) fn judge_trial(&self, model: &Model) -> Self {
        let slot = self.running();
        if model.is_blessed_early && *self.entry(slot) != BootEntry::Plain {
            return self.clone().with_entry(slot, BootEntry::Plain);
        }
        match self.bootable(slot) {
            Some(BROKEN) => self.with_phase(Phase::Failing(0)),
            _ => self.with_phase(Phase::Passing(0)),
        }
    }

    pub(super) fn pass_next(&self, model: &Model, done: u8) -> LawResult<Self> {
        let slot = self.running();
        match done {
            0 => self.must_step(slot, &SlotEvent::Passed, Phase::Passing(1)),
            1 => Ok(self.bless(model, slot, Phase::Passing(2))),
            _ => self.must_step(slot, &SlotEvent::Committed, Phase::Idle),
        }
    }

    pub(super) fn fail_next(&self, model: &Model, done: u8) -> LawResult<Self> {
        let slot = self.running();
        let failed = SlotEvent::Failed { reason: String::new(), log: String::new() };
        match done {
            0 => self.must_step(slot, &failed, Phase::Failing(1)),
            1 => self.withdraw(model, slot, Phase::Failing(2)),
            _ => Ok(self.powered_off()),
        }
    }

    /// Only the server is unreachable.
    pub(super) fn end_undecided_next(&self, model: &Model, done: u8) -> LawResult<Self> {
        let slot = self.running();
        let undecided = SlotEvent::Undecided { reason: String::new(), log: String::new() };
        match done {
            0 => self.must_step(slot, &undecided, Phase::EndingUndecided(1)),
            1 => self.withdraw(model, slot, Phase::EndingUndecided(2)),
            _ => Ok(self.powered_off()),
        }
    }
}
