//! Everything that can happen to the machine.

use super::*;

impl ModelMachine {
    /// All possible next states.
    pub fn moves(&self, model: &Model) -> LawResult<Vec<Self>> {
        let mut moves: Vec<Self> = self.next_undisturbed(model)?.into_iter().collect();
        if self.phase == Phase::Off {
            // A person selects a slot.
            let there = |slot: &Slot| *self.entry(*slot) != BootEntry::Absent;
            let chosen = Slot::ALL.into_iter().filter(there);
            moves.extend(chosen.map(|slot| self.boot(model, slot)));
        } else {
            // The power fails or the machine is reset from outside; or the agent is killed.
            moves.push(self.powered_off());
            moves.push(self.with_phase(Phase::Start));
        }
        if !self.lost {
            moves.push(Self {
                record: Slots::default(),
                tried: [false; 3],
                lost: true,
                ..self.powered_off()
            });
        }
        match &self.phase {
            Phase::Repairing(repairs) => moves.extend(self.failed_repair(repairs)),
            // Everything is healthy but the server is unreachable. For an image without a name the
            // record would be the same, and an image that has passed is not checked again.
            Phase::Trial if self.is_known_as_good() && !self.has_passed() => {
                moves.push(self.with_phase(Phase::EndingUndecided(0)));
            }
            Phase::Passing(1) => self.failed_blessing(model, &mut moves)?,
            // The data partition is gone: recording the failure fails, and the next writes are made
            // all the same. If removing the entry fails too, the effect is that of a power cut.
            Phase::Failing(0) => moves.push(self.with_phase(Phase::Failing(1))),
            Phase::EndingUndecided(0) => moves.push(self.with_phase(Phase::EndingUndecided(1))),
            // The armed slot cannot be disarmed.
            Phase::Disarming(0) => moves.push(self.with_phase(Phase::Idle)),
            Phase::Idle => {
                for image in [GOOD, BROKEN] {
                    let updates = [false, true]
                        .map(|allow_retry| self.start_update(model, image, allow_retry));
                    moves.extend(updates.into_iter().flatten());
                }
                if let SlotState::Armed { .. } = self.record.state(self.running().other()) {
                    moves.push(self.with_phase(Phase::Disarming(0)));
                }
            }
            Phase::Updating { done, .. } => {
                self.update_failures(model, model.order[*done], &mut moves)?;
            }
            _ => {}
        }
        Ok(moves)
    }

    /// Whether the running slot has passed its trial.
    fn has_passed(&self) -> bool {
        let state = self.record.state(self.running());
        matches!(state, SlotState::Trial { passed: true, .. })
    }

    /// Whether the good image runs, and the record knows its file.
    fn is_known_as_good(&self) -> bool {
        let slot = self.running();
        let recorded_file = self.record.state(slot).image().map(|image| image.file);
        self.bootable(slot) == Some(GOOD) && recorded_file == Some(super::slot_image(GOOD).file)
    }

    /// The first of these repairs fails, so the later ones are skipped. The exception is a bad
    /// image whose boots the loader counts: the machine is reset, because that comes to an end.
    fn failed_repair(&self, repairs: &[BootRepair]) -> Option<Self> {
        let running = self.running();
        let is_counted = matches!(self.entry(running), BootEntry::Counted { .. });
        match repairs.first()? {
            BootRepair::Reset => None,
            BootRepair::Withdraw(slot) if *slot == running && is_counted => {
                Some(self.powered_off())
            }
            BootRepair::Withdraw(_) | BootRepair::Bless(_) => Some(self.after_repairs()),
        }
    }

    fn failed_blessing(&self, model: &Model, moves: &mut Vec<Self>) -> LawResult<()> {
        let slot = self.running();
        if !model.control.is_marked() {
            // The rename may lose both names.
            moves.push(self.powered_off().with_entry(slot, BootEntry::Absent));
        }
        // It fails until the deadline: the entry is removed and the machine reset without recording
        // a failure. If removing the entry fails too, the image continues to run.
        moves.push(self.withdraw(model, slot, Phase::Idle)?.powered_off());
        moves.push(self.with_phase(Phase::Idle));
        Ok(())
    }

    /// What can happen only during an update.
    fn update_failures(
        &self,
        model: &Model,
        next: WriteStep,
        moves: &mut Vec<Self>,
    ) -> LawResult<()> {
        let slot = self.running().other();
        let state = self.record.state(slot);
        let is_under_way = matches!(state, SlotState::Writing(_) | SlotState::Written(_));
        // Only after the entry is removed: no entry of an empty slot is removed.
        let before_arming = !matches!(
            next,
            WriteStep::Intend | WriteStep::Withdraw | WriteStep::Arm | WriteStep::Enter
        );
        if is_under_way && before_arming {
            // The update is withdrawn.
            moves.push(self.with_phase(Phase::Idle));
        }
        match next {
            // Removing the entries fails.
            WriteStep::Withdraw => moves.push(self.with_phase(Phase::Idle)),
            WriteStep::Wrote => {
                // The content that is read back differs from what was written.
                let spoilt = self.must_step(slot, &SlotEvent::Corrupted, Phase::Idle)?;
                moves.push(spoilt.with_content(slot, SlotContent::Torn));
            }
            WriteStep::Enter if model.control.is_marked() => {
                // The power fails between mark and order: it looks as if the order had been
                // followed.
                let marked = self.powered_off().with_entry(slot, BootEntry::OneShot).try_out(slot);
                moves.push(Self { newer: slot, ..marked });
            }
            WriteStep::Reset => moves.push(self.with_phase(Phase::Disarming(0))),
            _ => {}
        }
        Ok(())
    }
}
