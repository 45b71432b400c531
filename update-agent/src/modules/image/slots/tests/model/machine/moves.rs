//! What can happen to the machine.

use super::*;

impl Machine {
    /// All that can happen.
    pub fn moves(&self, model: &Model) -> Outcome<Vec<Self>> {
        let mut moves: Vec<Self> = self.calm(model)?.into_iter().collect();
        if self.place == Place::Off {
            // A person chooses.
            let there = |slot: &Slot| *self.entry(*slot) != Entry::Absent;
            let chosen = Slot::ALL.into_iter().filter(there);
            moves.extend(chosen.map(|slot| self.boot(model, slot)));
        } else {
            // The power goes, or the machine is reset from outside; or the agent is killed.
            moves.push(self.off());
            moves.push(self.to(Place::Start));
        }
        if !self.lost {
            moves.push(Self {
                record: Slots::default(),
                tried: [false; 3],
                lost: true,
                ..self.off()
            });
        }
        match &self.place {
            Place::Mending(mends) => moves.extend(self.unmended(mends)),
            // All is well but for the server. Of what is on trial under no name the record would tell the same, and what
            // has passed is not asked again.
            Place::Trial if self.is_known_as_good() && !self.has_passed() => {
                moves.push(self.to(Place::Doubting(0)));
            }
            Place::Passing(1) => self.unkept(model, &mut moves)?,
            // The data partition is gone: U1 fails, and what follows is done all the same. So it is if U2 fails, and
            // then it is as if the power went.
            Place::Failing(0) => moves.push(self.to(Place::Failing(1))),
            Place::Doubting(0) => moves.push(self.to(Place::Doubting(1))),
            // What is armed cannot be taken back.
            Place::Disarming(0) => moves.push(self.to(Place::Idle)),
            Place::Idle => {
                for image in [GOOD, BROKEN] {
                    let wished = [false, true].map(|again| self.wished(model, image, again));
                    moves.extend(wished.into_iter().flatten());
                }
                if let SlotState::Armed { .. } = self.record.state(self.running().other()) {
                    moves.push(self.to(Place::Disarming(0)));
                }
            }
            Place::Updating { done, .. } => self.hitches(model, model.order[*done], &mut moves)?,
            _ => {}
        }
        Ok(moves)
    }

    /// Whether what runs has passed its trial.
    fn has_passed(&self) -> bool {
        let state = self.record.state(self.running());
        matches!(state, SlotState::Trial { passed: true, .. })
    }

    /// Whether the good image runs, and the record knows which one it is.
    fn is_known_as_good(&self) -> bool {
        let slot = self.running();
        let known = self.record.state(slot).what().map(|what| what.file);
        self.bootable(slot) == Some(GOOD) && known == Some(super::image(GOOD).file)
    }

    /// The first of these mends fails. Nothing behind it is done, but that a bad image is left whose boots the loader
    /// counts: that comes to an end.
    fn unmended(&self, mends: &[Mend]) -> Option<Self> {
        let running = self.running();
        let is_counted = matches!(self.entry(running), Entry::Counted { .. });
        match mends.first()? {
            Mend::Reset => None,
            Mend::Withdraw(slot) if *slot == running && is_counted => Some(self.off()),
            Mend::Withdraw(_) | Mend::Bless(_) => Some(self.gone_on()),
        }
    }

    /// W10 does not come about.
    fn unkept(&self, model: &Model, moves: &mut Vec<Self>) -> Outcome<()> {
        let slot = self.running();
        if !model.control.is_once() {
            // Of the two names of a rename neither may be left.
            moves.push(self.off().with_entry(slot, Entry::Absent));
        }
        // It fails until the deadline: U2 and U3 without U1. If U2 fails as well, it runs on.
        moves.push(self.withdrawn(model, slot, Place::Idle)?.off());
        moves.push(self.to(Place::Idle));
        Ok(())
    }

    /// What can happen to an update but for what can happen always.
    fn hitches(&self, model: &Model, next: Write, moves: &mut Vec<Self>) -> Outcome<()> {
        let slot = self.running().other();
        let state = self.record.state(slot);
        let is_under_way = matches!(state, SlotState::Writing(_) | SlotState::Written(_));
        // Not before its entry is gone: of an empty slot none is removed.
        let before_arming = !matches!(
            next,
            Write::Intend | Write::Withdraw | Write::Arm | Write::Enter
        );
        if is_under_way && before_arming {
            // It is not wished for any more.
            moves.push(self.to(Place::Idle));
        }
        match next {
            // W1 fails.
            Write::Withdraw => moves.push(self.to(Place::Idle)),
            Write::Wrote => {
                // What is read back is not what was written.
                let spoilt = self.must_step(slot, &Event::Spoilt, Place::Idle)?;
                moves.push(spoilt.with_content(slot, Content::Torn));
            }
            Write::Enter if model.control.is_once() => {
                // The power goes between the mark and the order: it looks as if the order had been followed.
                let marked = self.off().with_entry(slot, Entry::Once).try_out(slot);
                moves.push(Self {
                    newer: slot,
                    ..marked
                });
            }
            Write::Reset => moves.push(self.to(Place::Disarming(0))),
            _ => {}
        }
        Ok(())
    }
}
