//! Compares the record with the boot entries: at each start, and after each round of repairs.
//!
//! If the record is to trust a slot more, the boot entries change first; if it is to trust a slot
//! less, the record changes first. So an armed slot becomes untried, and a slot that was healthy
//! but never blessed, or undecided, becomes written, only after its entry is removed. In the other
//! order, a power cut in between would leave an entry that boots an image which the record calls
//! untried, and the boot would not be recognised as a trial. A slot that fell back is first
//! recorded as bad, and then loses its entry.

use chrono::{DateTime, Utc};

use super::table::step;
use super::{BootEntry, BootObservation, Slot, SlotEvent, SlotState, Slots};

/// A change that the boot control has to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BootRepair {
    /// Removes the boot entries of the slot.
    Withdraw(Slot),
    /// Removes the counter from the boot entry of the slot.
    Bless(Slot),
    /// Resets the machine.
    Reset,
}

/// Reconciles the record with the observation and lists the necessary repairs in their order.
/// Total.
///
/// The caller makes the repairs after the record is on disk. If one fails, it must skip the later
/// ones: resetting a machine whose bad slot could not lose its entry would never end. Then the
/// caller observes and reconciles again until there are no repairs, which takes at most two rounds.
pub fn reconcile(
    slots: &Slots,
    observed: &BootObservation,
    now: DateTime<Utc>,
) -> (Slots, Vec<BootRepair>) {
    // Without the running slot nothing can be concluded.
    let Some(running) = observed.booted else {
        return (slots.clone(), Vec::new());
    };
    let start = Reconciliation { slots: slots.clone(), repairs: Vec::new(), observed, now };
    let Reconciliation { slots, repairs, .. } = start
        .apply_event(running, &SlotEvent::Booted)
        .bless_or_commit(running)
        .settle_other_slot(running.other(), running)
        .reset_bad_image(running);
    (slots, repairs)
}

struct Reconciliation<'a> {
    slots: Slots,
    repairs: Vec<BootRepair>,
    observed: &'a BootObservation,
    now: DateTime<Utc>,
}

impl Reconciliation<'_> {
    /// Applies an event. If the table refuses it, nothing changes.
    fn apply_event(mut self, slot: Slot, event: &SlotEvent) -> Self {
        if let Ok(slots) = step(&self.slots, slot, event, self.observed, self.now) {
            self.slots = slots;
        }
        self
    }

    fn add_repair(mut self, repair: BootRepair) -> Self {
        self.repairs.push(repair);
        self
    }

    /// Blesses a running slot that is healthy, and commits it once it is blessed.
    fn bless_or_commit(self, running: Slot) -> Self {
        let SlotState::Trial { passed: true, .. } = self.slots.state(running) else {
            return self;
        };
        match self.observed.entry(running) {
            BootEntry::Plain => self.apply_event(running, &SlotEvent::Committed),
            BootEntry::Counted { .. } | BootEntry::OneShot | BootEntry::Absent => {
                self.add_repair(BootRepair::Bless(running))
            }
            // It is not known what a blessing would do to such an entry.
            BootEntry::Invalid(_) => self,
        }
    }

    /// Settles the slot that does not run.
    fn settle_other_slot(self, other: Slot, running: Slot) -> Self {
        let entry = self.observed.entry(other);
        match self.slots.state(other) {
            // An empty slot may hold the image to which this node fell back before its record was
            // lost.
            SlotState::Empty | SlotState::Good(_) => self,
            // The slot is armed, and the reset is still to come.
            SlotState::Armed { boot_id, .. } if is_this_boot(boot_id, self.observed) => self,
            SlotState::Armed { .. } => match entry {
                BootEntry::Absent => self.apply_event(other, &SlotEvent::NotTried),
                BootEntry::Counted { done: 0, .. } => self.withdraw_other_slot(other, running),
                tried => {
                    let reason = armed_failure_reason(tried);
                    self.apply_event(other, &SlotEvent::FellBack { reason })
                        .withdraw_other_slot(other, running)
                }
            },
            // It becomes written after its entry is removed.
            SlotState::Trial { passed: is_healthy, undecided_end, .. }
                if (*is_healthy || undecided_end.is_some()) && *entry != BootEntry::Absent =>
            {
                self.withdraw_other_slot(other, running)
            }
            SlotState::Trial { boots, .. } => {
                let reason = trial_failure_reason(boots.len());
                self.apply_event(other, &SlotEvent::FellBack { reason })
                    .withdraw_other_slot(other, running)
            }
            // A power cut came before the entry was removed, or someone created an entry by hand.
            SlotState::Writing(_) | SlotState::Written(_) | SlotState::Bad { .. } => {
                self.withdraw_other_slot(other, running)
            }
        }
    }

    /// Removes the entries of the slot that does not run, unless nothing else might boot.
    fn withdraw_other_slot(self, other: Slot, running: Slot) -> Self {
        let is_there = *self.observed.entry(other) != BootEntry::Absent;
        let is_needed = !matches!(self.slots.state(running), SlotState::Good(_))
            || *self.observed.entry(running) != BootEntry::Plain;
        if is_there && !is_needed {
            return self.add_repair(BootRepair::Withdraw(other));
        }
        self
    }

    /// Resets a machine that runs an image that is known to be bad, if there is a fallback. A power
    /// cut may have prevented the reset after the failure. The counter of the entry does not
    /// matter, because the image may have blessed itself.
    fn reset_bad_image(self, running: Slot) -> Self {
        let other = running.other();
        let is_bad = matches!(self.slots.state(running), SlotState::Bad { .. });
        let is_way_back = *self.observed.entry(other) == BootEntry::Plain
            && matches!(self.slots.state(other), SlotState::Good(_) | SlotState::Empty);
        if !is_bad || !is_way_back {
            return self;
        }
        if *self.observed.entry(running) != BootEntry::Absent {
            return self.add_repair(BootRepair::Withdraw(running)).add_repair(BootRepair::Reset);
        }
        // Only the reset is missing; or a foreign entry starts the slot, and then a reset would
        // come back here again and again.
        if self.observed.foreign.is_empty() {
            return self.add_repair(BootRepair::Reset);
        }
        self
    }
}

/// Whether a boot ID is that of the observed boot. An empty ID matches none.
fn is_this_boot(boot_id: &str, observed: &BootObservation) -> bool {
    !boot_id.is_empty() && boot_id == observed.boot_id
}

fn armed_failure_reason(entry: &BootEntry) -> String {
    match entry {
        BootEntry::Counted { done, .. } => {
            format!("it did not come up in {}", format_boots(usize::from(*done)))
        }
        BootEntry::OneShot => "it was to be booted once, and did not come up".to_owned(),
        BootEntry::Plain => {
            "its boot entry lost its counter before the image proved healthy, and another slot runs"
                .to_owned()
        }
        BootEntry::Invalid(how) => format!("its boot entry is not as the agent wrote it: {how}"),
        BootEntry::Absent => "it was armed, and another slot runs".to_owned(),
    }
}

fn trial_failure_reason(came_up: usize) -> String {
    format!("it came up in {} and did not prove healthy in time", format_boots(came_up))
}

fn format_boots(number: usize) -> String {
    match number {
        1 => "1 boot".to_owned(),
        number => format!("{number} boots"),
    }
}
