//! How a trial ends.

use super::*;

impl Machine {
    pub(super) fn judged(&self, model: &Model) -> Self {
        let slot = self.running();
        if model.is_blessed_early && *self.entry(slot) != Entry::Plain {
            return self.clone().with_entry(slot, Entry::Plain);
        }
        match self.bootable(slot) {
            Some(BROKEN) => self.to(Place::Failing(0)),
            _ => self.to(Place::Passing(0)),
        }
    }

    pub(super) fn passing(&self, model: &Model, done: u8) -> Outcome<Self> {
        let slot = self.running();
        match done {
            0 => self.must_step(slot, &Event::Passed, Place::Passing(1)),
            1 => Ok(self.blessed(model, slot, Place::Passing(2))),
            _ => self.must_step(slot, &Event::Committed, Place::Idle),
        }
    }

    pub(super) fn failing(&self, model: &Model, done: u8) -> Outcome<Self> {
        let slot = self.running();
        let failed = Event::Failed {
            why: String::new(),
            log: String::new(),
        };
        match done {
            0 => self.must_step(slot, &failed, Place::Failing(1)),
            1 => self.withdrawn(model, slot, Place::Failing(2)),
            _ => Ok(self.off()),
        }
    }

    /// Only the server is missing.
    pub(super) fn doubting(&self, model: &Model, done: u8) -> Outcome<Self> {
        let slot = self.running();
        let undecided = Event::Undecided {
            why: String::new(),
            log: String::new(),
        };
        match done {
            0 => self.must_step(slot, &undecided, Place::Doubting(1)),
            1 => self.withdrawn(model, slot, Place::Doubting(2)),
            _ => Ok(self.off()),
        }
    }
}
