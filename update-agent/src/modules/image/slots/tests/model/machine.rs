//! The machine: its disks, what runs on it, and how it continues if nothing disturbs it.

mod ends;
mod moves;

use super::*;

/// Number of boots of a new entry.
const TRIES: u8 = 3;

/// The image that was installed at first.
pub const FIRST: u8 = 0;
/// An image for an update that is healthy.
pub const GOOD: u8 = 1;
/// An image for an update that is never healthy.
pub const BROKEN: u8 = 2;

/// A result; the error is the violated law.
pub type LawResult<T> = Result<T, String>;

/// One write of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteStep {
    /// The record says that an image is about to be written.
    Intend,
    /// The boot entries of the slot are removed.
    Withdraw,
    /// Writing the slot begins.
    Tear,
    /// Writing the slot ends.
    Fill,
    /// The record says that the image is complete.
    Wrote,
    /// The kernel is installed.
    Kernel,
    /// The record says that the slot is armed.
    Arm,
    /// The boot entry is created.
    Enter,
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotContent {
    Torn,
    Whole(u8),
}

/// Progress of the machine. Numbers count the completed writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The machine is off: the loader is next.
    Off,
    /// The agent is about to observe and reconcile.
    Start,
    /// These repairs are to be made.
    Repairing(Vec<BootRepair>),
    /// The image on trial is being judged.
    Trial,
    /// The image is healthy: it is recorded, blessed and committed.
    Passing(u8),
    /// The image is not healthy: that is recorded, its entry is removed, and the machine is reset.
    Failing(u8),
    /// The server is unreachable: that is recorded, the entry is removed, and the machine is reset.
    EndingUndecided(u8),
    /// The reboot was prevented: the armed slot is disarmed.
    Disarming(u8),
    /// There is nothing to do.
    Idle,
    /// An image is being installed in the other slot.
    Updating { done: usize, image: u8, allow_retry: bool },
}

/// The whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelMachine {
    pub record: Slots,
    entries: [BootEntry; 2],
    /// The slot whose entry is newer: the loader prefers it.
    newer: Slot,
    /// Number of boots for which the loader has an order to start that slot.
    orders_left: u8,
    kernels: [Option<u8>; 2],
    contents: [SlotContent; 2],
    /// The running slot and the number of the boot.
    running: Option<(Slot, u8)>,
    pub phase: Phase,
    /// Which images were booted on trial, as far as the record ever knew.
    pub tried: [bool; 3],
    /// Whether the record was lost once.
    pub lost: bool,
}

fn index(slot: Slot) -> usize {
    usize::from(slot == Slot::B)
}

impl ModelMachine {
    /// A new machine: the first image in slot A, and no record.
    pub fn new() -> Self {
        Self {
            record: Slots::default(),
            entries: [BootEntry::Plain, BootEntry::Absent],
            newer: Slot::A,
            orders_left: 0,
            kernels: [Some(FIRST), None],
            contents: [SlotContent::Whole(FIRST), SlotContent::Torn],
            running: None,
            phase: Phase::Off,
            tried: [false; 3],
            lost: false,
        }
    }

    pub fn entry(&self, slot: Slot) -> &BootEntry {
        &self.entries[index(slot)]
    }

    /// The image that a slot can boot: its content is complete and its kernel is of the same image.
    pub fn bootable(&self, slot: Slot) -> Option<u8> {
        match self.contents[index(slot)] {
            SlotContent::Whole(image) if self.kernels[index(slot)] == Some(image) => Some(image),
            _ => None,
        }
    }

    pub fn running(&self) -> Slot {
        self.running.expect("something runs").0
    }

    /// Whether the running slot is neither blessed nor rejected.
    pub fn is_on_trial(&self) -> bool {
        matches!(self.record.state(self.running()), SlotState::Trial { .. })
    }

    /// Whether the loader would start a slot with this entry by itself, but not permanently.
    pub fn is_to_start(&self, entry: &BootEntry) -> bool {
        match entry {
            BootEntry::Counted { left, .. } => *left > 0,
            // The order of a running slot was already followed.
            BootEntry::OneShot => self.orders_left > 0,
            _ => false,
        }
    }

    fn observe(&self) -> BootObservation {
        let boot = self.running.expect("something runs").1;
        let [a, b] = self.entries.clone();
        BootObservation { boot_id: boot.to_string(), ..boot_observation(self.running(), a, b) }
    }

    pub fn with_phase(&self, phase: Phase) -> Self {
        Self { phase, ..self.clone() }
    }

    fn powered_off(&self) -> Self {
        Self { running: None, ..self.with_phase(Phase::Off) }
    }

    fn with_entry(mut self, slot: Slot, entry: BootEntry) -> Self {
        self.entries[index(slot)] = entry;
        self
    }

    fn with_content(mut self, slot: Slot, content: SlotContent) -> Self {
        self.contents[index(slot)] = content;
        self
    }

    fn with_record(mut self, record: Slots) -> Self {
        self.record = normalize(record);
        self
    }

    /// Applies an event to the record.
    fn step(&self, slot: Slot, event: &SlotEvent, phase: Phase) -> Result<Self, SlotError> {
        let record = step(&self.record, slot, event, &self.observe(), NOON)?;
        Ok(self.with_phase(phase).with_record(record))
    }

    /// Applies an event that must not be refused.
    fn must_step(&self, slot: Slot, event: &SlotEvent, phase: Phase) -> LawResult<Self> {
        self.step(slot, event, phase)
            .map_err(|refused| format!("a mandatory event is refused: {refused}"))
    }

    /// The last good slot must not be changed.
    fn check_not_last_good(&self, slot: Slot) -> LawResult<()> {
        if self.record.last_good == Some(slot) {
            return Err("the last good slot is written or loses its entry".to_owned());
        }
        Ok(())
    }

    fn withdraw(&self, model: &Model, slot: Slot, phase: Phase) -> LawResult<Self> {
        self.check_not_last_good(slot)?;
        let next = self.with_phase(phase);
        // The order was followed, and its mark may be the only evidence.
        let keeps_mark = model.control.is_marked() && self.running() == slot;
        let next = if keeps_mark { next } else { next.with_entry(slot, BootEntry::Absent) };
        Ok(match model.control {
            Control::Counts | Control::CountsNothing => next,
            Control::Once | Control::OnceUnmarked if keeps_mark => next,
            Control::Once | Control::OnceUnmarked => Self { orders_left: 0, ..next },
            // The other slot becomes the first one.
            Control::Attempts => Self { orders_left: 0, newer: slot.other(), ..next },
        })
    }

    /// Makes a slot the permanent default.
    fn bless(&self, model: &Model, slot: Slot, phase: Phase) -> Self {
        let next = self.with_phase(phase).with_entry(slot, BootEntry::Plain);
        match model.control {
            Control::Counts | Control::CountsNothing => next,
            // There is only one default slot.
            Control::Once | Control::OnceUnmarked => {
                next.with_entry(slot.other(), BootEntry::Absent)
            }
            Control::Attempts => Self { orders_left: 0, newer: slot, ..next },
        }
    }

    /// The slot that the loader starts by itself: the newest one whose counter is not used up.
    pub fn choice(&self) -> Option<Slot> {
        if self.orders_left > 0 {
            return Some(self.newer);
        }
        let is_used_up =
            |slot: &Slot| matches!(self.entry(*slot), BootEntry::Counted { left: 0, .. });
        [self.newer, self.newer.other()]
            .into_iter()
            .filter(|slot| !matches!(self.entry(*slot), BootEntry::Absent | BootEntry::OneShot))
            .min_by_key(is_used_up)
    }

    /// The loader counts a boot and starts a slot. An incomplete slot hangs, and the machine is
    /// reset.
    fn boot(&self, model: &Model, slot: Slot) -> Self {
        let mut next = self.clone();
        if self.orders_left > 0 {
            // A boot of the order is used up, whichever slot starts.
            next = next.try_out(self.newer);
            next.orders_left -= 1;
        } else if model.control == Control::OnceUnmarked
            && *self.entry(slot.other()) == BootEntry::OneShot
        {
            next = next.with_entry(slot.other(), BootEntry::Absent);
        }
        if let BootEntry::Counted { left, done } = &mut next.entries[index(slot)]
            && *left > 0
        {
            *left -= 1;
            *done += 1;
        }
        if next.bootable(slot).is_none() {
            return next;
        }
        let boot = self.next_boot();
        Self { running: Some((slot, boot)), ..next.try_out(slot).with_phase(Phase::Start) }
    }

    /// Marks the image in a slot as tried, if the record knows which image it is.
    fn try_out(mut self, slot: Slot) -> Self {
        let state = self.record.state(slot);
        let is_trial = matches!(
            state,
            SlotState::Armed { .. } | SlotState::Trial { .. } | SlotState::Bad { .. }
        );
        let recorded_file = state.image().filter(|_| is_trial).map(|stored| stored.file);
        // The record does not know the file of the first image.
        let image = self.bootable(slot).filter(|image| *image != FIRST);
        if let Some(image) = image
            && recorded_file == Some(super::slot_image(image).file)
        {
            self.tried[usize::from(image)] = true;
        }
        self
    }

    /// The smallest boot number that the record does not contain.
    fn next_boot(&self) -> u8 {
        let is_named = |boot: &u8| {
            let boot = boot.to_string();
            [&self.record.a, &self.record.b].into_iter().any(|state| match state {
                SlotState::Armed { boot_id, .. } => *boot_id == boot,
                SlotState::Trial { boots, .. } => boots.contains(&boot),
                _ => false,
            })
        };
        (0..u8::MAX).find(|boot| !is_named(boot)).expect("a record names few")
    }

    /// The next state of an undisturbed machine; `None` if it rests.
    pub fn next_undisturbed(&self, model: &Model) -> LawResult<Option<Self>> {
        let next = match &self.phase {
            Phase::Off => self.boot(model, self.choice().ok_or("nothing boots")?),
            Phase::Start => self.reconcile(),
            Phase::Repairing(repairs) => self.repair_next(model, repairs)?,
            Phase::Trial => self.judge_trial(model),
            Phase::Passing(done) => self.pass_next(model, *done)?,
            Phase::Failing(done) => self.fail_next(model, *done)?,
            Phase::EndingUndecided(done) => self.end_undecided_next(model, *done)?,
            Phase::Disarming(0) => {
                self.withdraw(model, self.running().other(), Phase::Disarming(1))?
            }
            Phase::Disarming(_) => {
                self.must_step(self.running().other(), &SlotEvent::NotTried, Phase::Idle)?
            }
            Phase::Updating { done, image, allow_retry } => {
                self.update_next(model, *done, *image, *allow_retry)?
            }
            Phase::Idle => {
                // The journal stores the permission to retry.
                let armed = |image: &u8| self.other_is_armed_with(*image);
                match [GOOD, BROKEN].into_iter().find(armed) {
                    Some(image) => self.with_phase(Phase::Updating {
                        done: model.arming_position(),
                        image,
                        allow_retry: true,
                    }),
                    None if self.reconcile() == *self => return Ok(None),
                    // The next start repeats a repair that failed.
                    None => self.with_phase(Phase::Start),
                }
            }
        };
        Ok(Some(next))
    }

    fn other_is_armed_with(&self, image: u8) -> bool {
        matches!(
            self.record.state(self.running().other()),
            SlotState::Armed { image: stored, .. } if stored.file == super::slot_image(image).file
        )
    }

    fn reconcile(&self) -> Self {
        let (record, repairs) = reconcile(&self.record, &self.observe(), NOON);
        let next = self.clone().with_record(record);
        if repairs.is_empty() {
            return next.after_repairs();
        }
        next.with_phase(Phase::Repairing(repairs))
    }

    /// Continues after the repairs.
    fn after_repairs(&self) -> Self {
        if self.is_on_trial() {
            return self.with_phase(Phase::Trial);
        }
        self.with_phase(Phase::Idle)
    }

    fn repair_next(&self, model: &Model, repairs: &[BootRepair]) -> LawResult<Self> {
        let Some((repair, rest)) = repairs.split_first() else {
            return Ok(self.with_phase(Phase::Start));
        };
        let phase = Phase::Repairing(rest.to_vec());
        match repair {
            BootRepair::Withdraw(slot) => self.withdraw(model, *slot, phase),
            BootRepair::Bless(slot) => Ok(self.bless(model, *slot, phase)),
            BootRepair::Reset => Ok(self.powered_off()),
        }
    }

    /// Makes the next write of the order. If a guard refuses it, the update ends.
    fn update_next(
        &self,
        model: &Model,
        done: usize,
        image: u8,
        allow_retry: bool,
    ) -> LawResult<Self> {
        let slot = self.running().other();
        let next = Phase::Updating { done: done + 1, image, allow_retry };
        let begin = SlotEvent::Begin { image: super::slot_image(image), allow_retry };
        let entry = match model.control {
            Control::Counts => counted(TRIES, 0),
            Control::CountsNothing => BootEntry::Plain,
            Control::Once | Control::OnceUnmarked | Control::Attempts => BootEntry::OneShot,
        };
        Ok(match model.order[done] {
            WriteStep::Intend => {
                self.step(slot, &begin, next).unwrap_or_else(|_| self.with_phase(Phase::Idle))
            }
            WriteStep::Withdraw => self.withdraw(model, slot, next)?,
            WriteStep::Tear => {
                self.check_not_last_good(slot)?;
                self.with_phase(next).with_content(slot, SlotContent::Torn)
            }
            WriteStep::Fill => self.with_phase(next).with_content(slot, SlotContent::Whole(image)),
            WriteStep::Wrote => self.must_step(slot, &SlotEvent::Wrote(raw_image(image)), next)?,
            WriteStep::Kernel if self.contents[index(slot)] != SlotContent::Whole(image) => {
                self.must_step(slot, &SlotEvent::Corrupted, Phase::Idle)?
            }
            WriteStep::Kernel => {
                self.check_not_last_good(slot)?;
                let mut with_kernel = self.with_phase(next);
                with_kernel.kernels[index(slot)] = Some(image);
                with_kernel
            }
            WriteStep::Arm => {
                let Ok(armed) = self.step(slot, &SlotEvent::Arm { allow_retry }, next) else {
                    return Ok(self.with_phase(Phase::Idle));
                };
                if image == BROKEN && self.tried[usize::from(image)] && !allow_retry {
                    return Err("a failed image is tried again without permission".to_owned());
                }
                armed
            }
            WriteStep::Enter => Self {
                newer: slot,
                orders_left: model.control.orders(),
                ..self.with_phase(next).with_entry(slot, entry)
            },
            WriteStep::Reset => self.powered_off(),
        })
    }

    /// Starts or continues an update. `None` if there is nothing to do, or if another update has to
    /// end first.
    pub fn start_update(&self, model: &Model, image: u8, allow_retry: bool) -> Option<Self> {
        let file = super::slot_image(image).file;
        if self.bootable(self.running()) == Some(image) {
            return None;
        }
        let done = match self.record.state(self.running().other()) {
            SlotState::Written(stored) if stored.file == file => model.position(WriteStep::Kernel),
            SlotState::Armed { image: stored, .. } if stored.file == file => {
                model.arming_position()
            }
            SlotState::Armed { .. } => return None,
            _ => 0,
        };
        Some(self.with_phase(Phase::Updating { done, image, allow_retry }))
    }
}

/// Removes everything that the model ignores, so that there are fewer different records.
fn normalize(mut slots: Slots) -> Slots {
    slots.sequence = 0;
    slots.version_floors.clear();
    slots.bad.sort_by_key(|bad| bad.file);
    slots.undecided.sort_by_key(|undecided| undecided.file);
    for bad in &mut slots.bad {
        bad.reason.clear();
    }
    for state in [&mut slots.a, &mut slots.b] {
        match state {
            SlotState::Trial { boots, .. } => {
                boots.drain(..boots.len().saturating_sub(1));
            }
            SlotState::Bad { reason, log, .. } => {
                reason.clear();
                log.clear();
            }
            _ => {}
        }
    }
    slots
}
