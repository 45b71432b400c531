//! The machine: its disks, what runs on it, and what comes of it if nothing happens.

mod ends;
mod moves;

use super::*;

/// So often a new entry may be tried.
const TRIES: u8 = 3;

/// The image that the machine came with.
pub const FIRST: u8 = 0;
/// One that is wished for and does well.
pub const GOOD: u8 = 1;
/// One that is wished for and is never healthy.
pub const BROKEN: u8 = 2;

/// What happens, or what comes of a machine that breaks a law.
pub type Outcome<T> = Result<T, String>;

/// One write of the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// W0.
    Intend,
    /// W1.
    Withdraw,
    /// W2 begins.
    Tear,
    /// W2 ends.
    Fill,
    /// W3.
    Wrote,
    /// W4.
    Kernel,
    /// W5.
    Arm,
    /// W6.
    Enter,
    /// The reset.
    Reset,
}

/// What lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    Torn,
    Whole(u8),
}

/// How far what runs has come. Numbers count the writes that are done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Nothing runs: the loader is next.
    Off,
    /// The agent is about to look and to reconcile.
    Start,
    /// These are to be mended.
    Mending(Vec<Mend>),
    /// The image on trial is being judged.
    Trial,
    /// It is healthy: W9 to W11.
    Passing(u8),
    /// It is not: U1 to U3.
    Failing(u8),
    /// Nobody can say, because the server is away: U1 to U3.
    Doubting(u8),
    /// The reboot was hindered: what was armed is taken back.
    Disarming(u8),
    /// Nothing is to be done.
    Idle,
    /// An image is being brought into the other slot.
    Updating { done: usize, image: u8, again: bool },
}

/// The whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    pub record: Slots,
    entries: [Entry; 2],
    /// Whose entry is the newer one: the loader takes it first.
    newer: Slot,
    /// Whether the loader has the order to start that slot once.
    is_ordered: bool,
    kernels: [Option<u8>; 2],
    contents: [Content; 2],
    /// The slot that runs, and the number of the boot.
    running: Option<(Slot, u8)>,
    pub place: Place,
    /// Which images were booted on trial, as far as the record ever knew.
    pub tried: [bool; 3],
    /// Whether the record was lost once.
    pub lost: bool,
}

fn index(slot: Slot) -> usize {
    usize::from(slot == Slot::B)
}

impl Machine {
    /// As it came from its maker: the first image in slot a, and no record.
    pub fn new() -> Self {
        Self {
            record: Slots::default(),
            entries: [Entry::Plain, Entry::Absent],
            newer: Slot::A,
            is_ordered: false,
            kernels: [Some(FIRST), None],
            contents: [Content::Whole(FIRST), Content::Torn],
            running: None,
            place: Place::Off,
            tried: [false; 3],
            lost: false,
        }
    }

    pub fn entry(&self, slot: Slot) -> &Entry {
        &self.entries[index(slot)]
    }

    /// The image that a slot can boot: root and kernel are whole and of one image.
    pub fn bootable(&self, slot: Slot) -> Option<u8> {
        match self.contents[index(slot)] {
            Content::Whole(image) if self.kernels[index(slot)] == Some(image) => Some(image),
            _ => None,
        }
    }

    pub fn running(&self) -> Slot {
        self.running.expect("something runs").0
    }

    /// Whether what runs is neither kept nor given up.
    pub fn is_on_trial(&self) -> bool {
        matches!(self.record.state(self.running()), SlotState::Trial { .. })
    }

    /// Whether the loader would start by itself what has this entry, and not for ever.
    pub fn is_to_start(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Counted { left, .. } => *left > 0,
            // One that runs has no order any more.
            Entry::Once => self.is_ordered,
            _ => false,
        }
    }

    fn seen(&self) -> Seen {
        let boot = self.running.expect("something runs").1;
        let [a, b] = self.entries.clone();
        Seen {
            boot_id: boot.to_string(),
            ..seen(self.running(), a, b)
        }
    }

    pub fn to(&self, place: Place) -> Self {
        Self {
            place,
            ..self.clone()
        }
    }

    fn off(&self) -> Self {
        Self {
            running: None,
            ..self.to(Place::Off)
        }
    }

    fn with_entry(mut self, slot: Slot, entry: Entry) -> Self {
        self.entries[index(slot)] = entry;
        self
    }

    fn with_content(mut self, slot: Slot, content: Content) -> Self {
        self.contents[index(slot)] = content;
        self
    }

    fn with_record(mut self, record: Slots) -> Self {
        self.record = bare(record);
        self
    }

    /// The record moves as the table says.
    fn step(&self, slot: Slot, event: &Event, place: Place) -> Result<Self, Refused> {
        let record = step(&self.record, slot, event, &self.seen(), NOON)?;
        Ok(self.to(place).with_record(record))
    }

    /// The same where the agent counts on it.
    fn must_step(&self, slot: Slot, event: &Event, place: Place) -> Outcome<Self> {
        self.step(slot, event, place)
            .map_err(|refused| format!("what must be noted is refused: {refused}"))
    }

    /// The last good slot is left alone by everybody.
    fn left_alone(&self, slot: Slot) -> Outcome<()> {
        if self.record.last_good == Some(slot) {
            return Err("the last good slot is written or loses its entry".to_owned());
        }
        Ok(())
    }

    fn withdrawn(&self, model: &Model, slot: Slot, place: Place) -> Outcome<Self> {
        self.left_alone(slot)?;
        let next = self.to(place);
        if !model.control.is_once() {
            return Ok(next.with_entry(slot, Entry::Absent));
        }
        if self.running() == slot {
            // The order was followed, and its mark may be all that says so.
            return Ok(next);
        }
        Ok(Self {
            is_ordered: false,
            ..next.with_entry(slot, Entry::Absent)
        })
    }

    /// What runs starts from now on.
    fn blessed(&self, model: &Model, slot: Slot, place: Place) -> Self {
        let next = self.to(place).with_entry(slot, Entry::Plain);
        if model.control.is_once() {
            // There is one that starts by default, and this is it.
            return next.with_entry(slot.other(), Entry::Absent);
        }
        next
    }

    /// The slot that the loader takes by itself: the newest that is not used up.
    pub fn choice(&self) -> Option<Slot> {
        if self.is_ordered {
            return Some(self.newer);
        }
        let is_used_up = |slot: &Slot| matches!(self.entry(*slot), Entry::Counted { left: 0, .. });
        [self.newer, self.newer.other()]
            .into_iter()
            .filter(|slot| !matches!(self.entry(*slot), Entry::Absent | Entry::Once))
            .min_by_key(is_used_up)
    }

    /// The loader counts and starts a slot. What is not whole hangs, and is reset.
    fn boot(&self, model: &Model, slot: Slot) -> Self {
        let mut next = self.clone();
        if self.is_ordered {
            // Whatever it starts, it has followed its order.
            next = next.try_out(self.newer);
            next.is_ordered = false;
        } else if model.control == Control::OnceUnmarked && *self.entry(slot.other()) == Entry::Once
        {
            next = next.with_entry(slot.other(), Entry::Absent);
        }
        if let Entry::Counted { left, done } = &mut next.entries[index(slot)]
            && *left > 0
        {
            *left -= 1;
            *done += 1;
        }
        if next.bootable(slot).is_none() {
            return next;
        }
        let boot = self.next_boot();
        Self {
            running: Some((slot, boot)),
            ..next.try_out(slot).to(Place::Start)
        }
    }

    /// What lies in a slot is tried from here on, if the record knows it for what it is.
    fn try_out(mut self, slot: Slot) -> Self {
        let state = self.record.state(slot);
        let is_trial = matches!(
            state,
            SlotState::Armed { .. } | SlotState::Trial { .. } | SlotState::Bad { .. }
        );
        let known = state.what().filter(|_| is_trial).map(|what| what.file);
        // Of the first image no record knows the file.
        let image = self.bootable(slot).filter(|image| *image != FIRST);
        if let Some(image) = image
            && known == Some(super::image(image).file)
        {
            self.tried[usize::from(image)] = true;
        }
        self
    }

    /// The smallest number of a boot that the record does not name.
    fn next_boot(&self) -> u8 {
        let is_named = |boot: &u8| {
            let boot = boot.to_string();
            [&self.record.a, &self.record.b]
                .into_iter()
                .any(|state| match state {
                    SlotState::Armed { boot_id, .. } => *boot_id == boot,
                    SlotState::Trial { boots, .. } => boots.contains(&boot),
                    _ => false,
                })
        };
        (0..u8::MAX)
            .find(|boot| !is_named(boot))
            .expect("a record names few")
    }

    /// What comes next if nothing happens to it; `None` if it rests.
    pub fn calm(&self, model: &Model) -> Outcome<Option<Self>> {
        let next = match &self.place {
            Place::Off => self.boot(model, self.choice().ok_or("nothing boots")?),
            Place::Start => self.reconciled(),
            Place::Mending(mends) => self.mended(model, mends)?,
            Place::Trial => self.judged(model),
            Place::Passing(done) => self.passing(model, *done)?,
            Place::Failing(done) => self.failing(model, *done)?,
            Place::Doubting(done) => self.doubting(model, *done)?,
            Place::Disarming(0) => {
                self.withdrawn(model, self.running().other(), Place::Disarming(1))?
            }
            Place::Disarming(_) => {
                self.must_step(self.running().other(), &Event::NotTried, Place::Idle)?
            }
            Place::Updating { done, image, again } => {
                self.updating(model, *done, *image, *again)?
            }
            Place::Idle => {
                // The journal knows what was ordered.
                let armed = |image: &u8| self.other_is_armed_with(*image);
                match [GOOD, BROKEN].into_iter().find(armed) {
                    Some(image) => self.to(Place::Updating {
                        done: model.at_arming(),
                        image,
                        again: true,
                    }),
                    None if self.reconciled() == *self => return Ok(None),
                    // What could not be done is done at the next start.
                    None => self.to(Place::Start),
                }
            }
        };
        Ok(Some(next))
    }

    fn other_is_armed_with(&self, image: u8) -> bool {
        matches!(
            self.record.state(self.running().other()),
            SlotState::Armed { what, .. } if what.file == super::image(image).file
        )
    }

    fn reconciled(&self) -> Self {
        let (record, mends) = reconcile(&self.record, &self.seen(), NOON);
        let next = self.clone().with_record(record);
        if mends.is_empty() {
            return next.gone_on();
        }
        next.to(Place::Mending(mends))
    }

    /// Behind the mends.
    fn gone_on(&self) -> Self {
        if self.is_on_trial() {
            return self.to(Place::Trial);
        }
        self.to(Place::Idle)
    }

    fn mended(&self, model: &Model, mends: &[Mend]) -> Outcome<Self> {
        let Some((mend, rest)) = mends.split_first() else {
            return Ok(self.to(Place::Start));
        };
        let place = Place::Mending(rest.to_vec());
        match mend {
            Mend::Withdraw(slot) => self.withdrawn(model, *slot, place),
            Mend::Bless(slot) => Ok(self.blessed(model, *slot, place)),
            Mend::Reset => Ok(self.off()),
        }
    }

    /// The next write of the order. What the guards refuse is left.
    fn updating(&self, model: &Model, done: usize, image: u8, again: bool) -> Outcome<Self> {
        let slot = self.running().other();
        let next = Place::Updating {
            done: done + 1,
            image,
            again,
        };
        let begin = Event::Begin {
            what: super::image(image),
            again,
        };
        let entry = match model.control {
            Control::Counts => counted(TRIES, 0),
            Control::CountsNothing => Entry::Plain,
            Control::Once | Control::OnceUnmarked => Entry::Once,
        };
        Ok(match model.order[done] {
            Write::Intend => self
                .step(slot, &begin, next)
                .unwrap_or_else(|_| self.to(Place::Idle)),
            Write::Withdraw => self.withdrawn(model, slot, next)?,
            Write::Tear => {
                self.left_alone(slot)?;
                self.to(next).with_content(slot, Content::Torn)
            }
            Write::Fill => self.to(next).with_content(slot, Content::Whole(image)),
            Write::Wrote => self.must_step(slot, &Event::Wrote(raw(image)), next)?,
            Write::Kernel if self.contents[index(slot)] != Content::Whole(image) => {
                self.must_step(slot, &Event::Spoilt, Place::Idle)?
            }
            Write::Kernel => {
                self.left_alone(slot)?;
                let mut with_kernel = self.to(next);
                with_kernel.kernels[index(slot)] = Some(image);
                with_kernel
            }
            Write::Arm => {
                let Ok(armed) = self.step(slot, &Event::Arm { again }, next) else {
                    return Ok(self.to(Place::Idle));
                };
                if image == BROKEN && self.tried[usize::from(image)] && !again {
                    return Err("what failed before is tried again without an order".to_owned());
                }
                armed
            }
            Write::Enter => Self {
                newer: slot,
                is_ordered: model.control.is_once(),
                ..self.to(next).with_entry(slot, entry)
            },
            Write::Reset => self.off(),
        })
    }

    /// How a wish is begun, or gone on with; `None` if there is nothing to do, or something else first.
    pub fn wished(&self, model: &Model, image: u8, again: bool) -> Option<Self> {
        let file = super::image(image).file;
        if self.bootable(self.running()) == Some(image) {
            return None;
        }
        let done = match self.record.state(self.running().other()) {
            SlotState::Written(what) if what.file == file => model.at(Write::Kernel),
            SlotState::Armed { what, .. } if what.file == file => model.at_arming(),
            SlotState::Armed { .. } => return None,
            _ => 0,
        };
        Some(self.to(Place::Updating { done, image, again }))
    }
}

/// Without what nobody looks at, so that there are fewer records.
fn bare(mut slots: Slots) -> Slots {
    slots.sequence = 0;
    slots.bad.sort_by_key(|bad| bad.file);
    slots.undecided.sort_by_key(|undecided| undecided.file);
    for bad in &mut slots.bad {
        bad.why.clear();
    }
    for state in [&mut slots.a, &mut slots.b] {
        match state {
            SlotState::Trial { boots, .. } => {
                boots.drain(..boots.len().saturating_sub(1));
            }
            SlotState::Bad { why, log, .. } => {
                why.clear();
                log.clear();
            }
            _ => {}
        }
    }
    slots
}
