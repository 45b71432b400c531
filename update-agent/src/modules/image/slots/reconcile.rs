//! What the record says against what the boot loader knows: at each start, and after each mend.
//!
//! The record follows the boot entries where it comes to trust a slot more, and goes ahead of them where it trusts it
//! less. So an armed slot is taken for untried, and one that was healthy and never blessed, or left undecided, for
//! written, only once its entry is gone: were it the other way round, a power cut in between would leave an entry that
//! boots what the record calls untried, and nobody would know it for a trial. A slot that fell back is called bad first
//! and loses its entry then.

use chrono::{DateTime, Utc};

use super::table::step;
use super::{Entry, Event, Seen, Slot, SlotState, Slots};

/// Something that the boot control has to set right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mend {
    /// Remove the slot's boot entries.
    Withdraw(Slot),
    /// Take the counter from the slot's boot entry.
    Bless(Slot),
    /// Reset the machine.
    Reset,
}

/// Brings the record to what is seen, and says what is to be mended besides, in this order. Total.
///
/// The mends are to be done once the record is on the disk. If one fails, those behind it must not be done: to reset a
/// machine whose bad slot could not lose its entry would go on for ever. After them one looks and reconciles again,
/// until there are none, which is so after two rounds.
pub fn reconcile(slots: &Slots, seen: &Seen, now: DateTime<Utc>) -> (Slots, Vec<Mend>) {
    // What runs is the ground that everything stands on.
    let Some(running) = seen.booted else {
        return (slots.clone(), Vec::new());
    };
    let start = Reconciling {
        slots: slots.clone(),
        mends: Vec::new(),
        seen,
        now,
    };
    let Reconciling { slots, mends, .. } = start
        .take(running, &Event::Booted)
        .confirm(running)
        .settle(running.other(), running)
        .leave(running);
    (slots, mends)
}

struct Reconciling<'a> {
    slots: Slots,
    mends: Vec<Mend>,
    seen: &'a Seen,
    now: DateTime<Utc>,
}

impl Reconciling<'_> {
    /// What the table refuses changes nothing.
    fn take(mut self, slot: Slot, event: &Event) -> Self {
        if let Ok(slots) = step(&self.slots, slot, event, self.seen, self.now) {
            self.slots = slots;
        }
        self
    }

    fn mend(mut self, mend: Mend) -> Self {
        self.mends.push(mend);
        self
    }

    /// What runs and was found healthy becomes what boots for ever (W10, W11).
    fn confirm(self, running: Slot) -> Self {
        let SlotState::Trial { passed: true, .. } = self.slots.state(running) else {
            return self;
        };
        match self.seen.entry(running) {
            Entry::Plain => self.take(running, &Event::Committed),
            Entry::Counted { .. } | Entry::Once | Entry::Absent => self.mend(Mend::Bless(running)),
            // Nobody knows what a blessing of it would be.
            Entry::Strange(_) => self,
        }
    }

    /// What does not run, and was on the way to it.
    fn settle(self, other: Slot, running: Slot) -> Self {
        let entry = self.seen.entry(other);
        match self.slots.state(other) {
            // What is not known may be what this node fell back to before its record was lost.
            SlotState::Empty | SlotState::Good(_) => self,
            // It is armed, and the reset is still to come.
            SlotState::Armed { boot_id, .. } if is_this_boot(boot_id, self.seen) => self,
            SlotState::Armed { .. } => match entry {
                Entry::Absent => self.take(other, &Event::NotTried),
                Entry::Counted { done: 0, .. } => self.withdraw(other, running),
                tried => {
                    let why = why_armed(tried);
                    self.take(other, &Event::FellBack { why })
                        .withdraw(other, running)
                }
            },
            // It comes to be written once its entry is gone.
            SlotState::Trial { passed, doubt, .. }
                if (*passed || doubt.is_some()) && *entry != Entry::Absent =>
            {
                self.withdraw(other, running)
            }
            SlotState::Trial { boots, .. } => {
                let why = why_trial(boots.len());
                self.take(other, &Event::FellBack { why })
                    .withdraw(other, running)
            }
            // A cut between W0 and W1, one between U1 and U2, or an entry that was made by hand.
            SlotState::Writing(_) | SlotState::Written(_) | SlotState::Bad { .. } => {
                self.withdraw(other, running)
            }
        }
    }

    /// Removes the entries of what does not run, unless they may be all that boots.
    fn withdraw(self, other: Slot, running: Slot) -> Self {
        let is_there = *self.seen.entry(other) != Entry::Absent;
        let is_needed = !matches!(self.slots.state(running), SlotState::Good(_))
            || *self.seen.entry(running) != Entry::Plain;
        if is_there && !is_needed {
            return self.mend(Mend::Withdraw(other));
        }
        self
    }

    /// What runs is known to be bad (a cut between U1 and U3): away from it, if there is something to go to. Whether
    /// its entry has a counter does not matter: an image may bring a service that blesses it before it proved itself.
    fn leave(self, running: Slot) -> Self {
        let other = running.other();
        let is_bad = matches!(self.slots.state(running), SlotState::Bad { .. });
        let is_way_back = *self.seen.entry(other) == Entry::Plain
            && matches!(
                self.slots.state(other),
                SlotState::Good(_) | SlotState::Empty
            );
        if !is_bad || !is_way_back {
            return self;
        }
        if *self.seen.entry(running) != Entry::Absent {
            return self.mend(Mend::Withdraw(running)).mend(Mend::Reset);
        }
        // Its entry is gone and only the reset is missing; or somebody else's entry starts it, and then a reset would
        // come back here, again and again.
        if self.seen.foreign.is_empty() {
            return self.mend(Mend::Reset);
        }
        self
    }
}

/// A boot without an id is none that could be recognised.
fn is_this_boot(boot_id: &str, seen: &Seen) -> bool {
    !boot_id.is_empty() && boot_id == seen.boot_id
}

fn why_armed(entry: &Entry) -> String {
    match entry {
        Entry::Counted { done, .. } => {
            format!("it did not come up in {}", boots(usize::from(*done)))
        }
        Entry::Once => "it was to be booted once, and did not come up".to_owned(),
        Entry::Plain => {
            "its boot entry lost its counter before it had proved itself, and another slot runs"
                .to_owned()
        }
        Entry::Strange(how) => format!("its boot entry is not as the agent left it: {how}"),
        Entry::Absent => "it was armed, and another slot runs".to_owned(),
    }
}

fn why_trial(came_up: usize) -> String {
    format!(
        "it came up in {} and did not prove healthy in time",
        boots(came_up)
    )
}

fn boots(number: usize) -> String {
    match number {
        1 => "1 boot".to_owned(),
        number => format!("{number} boots"),
    }
}
