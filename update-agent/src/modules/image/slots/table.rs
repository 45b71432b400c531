//! What may become of a slot: every state against every event.
//!
//! A slot may be written, and armed, only if another one runs, which is good, is the last good one, and has a boot
//! entry without a counter: whatever becomes of the slot, that one boots. So the last good slot is never written, and
//! never anything else than good.
//!
//! In four places the table is not the first draft of it; `tests/model.rs` shows what becomes of a node otherwise.
//!
//! - An order to try a bad image again opens the way once, and does not make the node forget: the image leaves the list
//!   when it is committed. Were it forgotten with [`Event::Begin`], an order that is withdrawn before the slot is armed
//!   would let the next policy try the image by itself.
//! - A slot whose record says that it is being written may be found running: the power went between W0 and W1, and its
//!   earlier entry sorts first. Its content is untouched then (W1 comes before W2), but the record has lost what it is.
//!   So it goes on trial under no name instead of being a dead end.
//! - An empty slot that runs is taken for good only as long as none is known to be: at the first start, and after the
//!   record was lost. Else it has to prove itself.
//! - What runs needs a boot entry without a counter before another slot is written: without one nothing boots after a
//!   trial that failed.

use chrono::{DateTime, Utc};

use super::{Doubt, Entry, Event, Raw, Refused, Seen, Slot, SlotState, Slots, What};
use crate::model::{Failure, FailureKind, Sha256, tail};

/// So many boots of a trial are remembered.
const MOST_BOOTS: usize = 16;

/// So many trials of an image may end undecided. The next one that would is a failure: a server that the old image
/// reaches each time, and the new one never, is not what is wrong.
pub(super) const MOST_UNDECIDED: u8 = 2;

/// What becomes of the slots when something happens to one of them. Total: whatever does not belong is refused, and
/// then nothing changes.
pub fn step(
    slots: &Slots,
    slot: Slot,
    event: &Event,
    seen: &Seen,
    now: DateTime<Utc>,
) -> Result<Slots, Refused> {
    let case = Case {
        slots,
        slot,
        event,
        seen,
        now,
    };
    match event {
        Event::Begin { what, again } => case.begin(what, *again),
        Event::Wrote(raw) => case.wrote(*raw),
        Event::Spoilt => case.spoilt(),
        Event::Arm { again } => case.arm(*again),
        Event::Booted => case.booted(),
        Event::Passed => case.passed(),
        Event::Committed => case.committed(),
        Event::Failed { why, log } => case.failed(why, log),
        Event::FellBack { why } => case.fell_back(why),
        Event::Undecided { why, log } => case.undecided(why, log),
        Event::NotTried => case.left(),
    }
}

/// Why no slot may be written at present, whatever is wanted: something is as the agent does not make it, and a person
/// has to settle it. `None` if all is well, or if what runs is on trial.
pub fn trouble(slots: &Slots, seen: &Seen) -> Option<Refused> {
    let on_trial = |slot| matches!(slots.state(slot), SlotState::Trial { .. });
    way_back(slots, seen)
        .err()
        .filter(|_| !seen.booted.is_some_and(on_trial))
}

/// The slot that boots if the other one fails: it runs, is good, and has a boot entry without a counter.
fn way_back(slots: &Slots, seen: &Seen) -> Result<Slot, Refused> {
    let slot = seen.booted.ok_or(Refused::RunningUnknown)?;
    let state = slots.state(slot);
    if !matches!(state, SlotState::Good(_)) || slots.last_good != Some(slot) {
        return Err(Refused::RunningNotGood {
            slot,
            state: state.words(),
        });
    }
    match seen.entry(slot) {
        Entry::Plain => Ok(slot),
        _ => Err(Refused::NoWayBack { slot }),
    }
}

/// One event at one slot.
struct Case<'a> {
    slots: &'a Slots,
    slot: Slot,
    event: &'a Event,
    seen: &'a Seen,
    now: DateTime<Utc>,
}

impl Case<'_> {
    fn state(&self) -> &SlotState {
        self.slots.state(self.slot)
    }

    fn runs(&self) -> bool {
        self.seen.booted == Some(self.slot)
    }

    /// All stays as it was.
    fn same(&self) -> Slots {
        self.slots.clone()
    }

    fn with(&self, state: SlotState) -> Slots {
        let mut slots = self.same();
        slots.set(self.slot, state);
        slots
    }

    /// The image failed: that is noted of the slot, and remembered of the image.
    fn with_bad(&self, what: &What, why: &str, log: &str) -> Slots {
        let Failure { reason, log, .. } = Failure::with_log(FailureKind::Verify, why, log);
        let mut slots = self.with(SlotState::Bad {
            what: what.clone(),
            why: reason.clone(),
            log,
        });
        slots.brand(what, &reason, self.now);
        slots
    }

    fn out_of_place(&self) -> Refused {
        Refused::OutOfPlace {
            slot: self.slot,
            state: self.state().words(),
            event: words(self.event),
        }
    }

    fn must_not_run(&self) -> Result<(), Refused> {
        if self.runs() {
            return Err(Refused::Runs {
                slot: self.slot,
                event: words(self.event),
            });
        }
        Ok(())
    }

    fn must_run(&self) -> Result<(), Refused> {
        if self.runs() {
            return Ok(());
        }
        Err(Refused::RunsNot {
            slot: self.slot,
            event: words(self.event),
        })
    }

    /// The guard of the last good slot and of what is known to be bad.
    fn may_hold(&self, what: &What, again: bool) -> Result<(), Refused> {
        self.must_not_run()?;
        way_back(self.slots, self.seen)?;
        match self.slots.known_bad(&what.file) {
            Some(bad) if !again => Err(Refused::KnownBad {
                image_id: bad.image_id.clone(),
                why: bad.why.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn begin(&self, what: &What, again: bool) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Empty
            | SlotState::Writing(_)
            | SlotState::Written(_)
            | SlotState::Good(_)
            | SlotState::Bad { .. } => {
                self.may_hold(what, again)?;
                Ok(self.with(SlotState::Writing(What {
                    raw: None,
                    ..what.clone()
                })))
            }
            // It may boot at any reset: its entry goes first, then the record says so.
            SlotState::Armed { .. } | SlotState::Trial { .. } => Err(self.out_of_place()),
        }
    }

    fn wrote(&self, raw: Raw) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Writing(what) | SlotState::Written(what) => {
                self.must_not_run()?;
                Ok(self.with(SlotState::Written(What {
                    raw: Some(raw),
                    ..what.clone()
                })))
            }
            _ => Err(self.out_of_place()),
        }
    }

    fn spoilt(&self) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) => {
                Ok(self.with(SlotState::Empty))
            }
            SlotState::Bad { .. } => Ok(self.same()),
            SlotState::Armed { .. } | SlotState::Trial { .. } | SlotState::Good(_) => {
                Err(self.out_of_place())
            }
        }
    }

    fn arm(&self, again: bool) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Written(what) | SlotState::Armed { what, .. } => {
                self.may_hold(what, again)?;
                let mut slots = self.with(SlotState::Armed {
                    what: what.clone(),
                    boot_id: self.seen.boot_id.clone(),
                });
                let next = slots.sequence.checked_add(1);
                slots.sequence = next.ok_or(Refused::NoNumberLeft)?;
                Ok(slots)
            }
            _ => Err(self.out_of_place()),
        }
    }

    fn booted(&self) -> Result<Slots, Refused> {
        self.must_run()?;
        match self.state() {
            SlotState::Empty | SlotState::Writing(_) => self.booted_unknown(),
            SlotState::Armed { what, .. } => Ok(self.on_trial(what, &[], false, None)),
            SlotState::Trial {
                what,
                boots,
                passed,
                doubt,
            } => Ok(self.on_trial(what, boots, *passed, doubt.as_ref())),
            // It is what runs, so a person chose it: from now on it is what a trial falls back to.
            SlotState::Good(_) => {
                let mut slots = self.same();
                slots.last_good = Some(self.slot);
                Ok(slots)
            }
            // Neither has a boot entry that the agent made, but for a bad one between U1 and U2: that is not started
            // anew, it is ended (`reconcile`).
            SlotState::Written(_) | SlotState::Bad { .. } => Err(self.out_of_place()),
        }
    }

    /// Runs, and the record does not say what it is. An entry of the agent's means that it is whole: none names what is
    /// torn.
    fn booted_unknown(&self) -> Result<Slots, Refused> {
        let (profile_name, image_id) = self.seen.image.clone().unwrap_or_default();
        let what = What {
            file: Sha256::from([0; 32]),
            profile_name,
            image_id,
            raw: None,
        };
        let nothing_known =
            self.slots.last_good.is_none() && matches!(self.state(), SlotState::Empty);
        match self.seen.entry(self.slot) {
            Entry::Plain if nothing_known => {
                let mut slots = self.with(SlotState::Good(what));
                slots.last_good = Some(self.slot);
                Ok(slots)
            }
            Entry::Plain | Entry::Counted { .. } | Entry::Once => {
                Ok(self.on_trial(&what, &[], false, None))
            }
            Entry::Absent | Entry::Strange(_) => Err(self.out_of_place()),
        }
    }

    /// A doubt is one about the boot in which it was said: each boot has to prove itself anew.
    fn on_trial(
        &self,
        what: &What,
        boots: &[String],
        passed: bool,
        doubt: Option<&Doubt>,
    ) -> Slots {
        let doubt = doubt.filter(|_| boots.contains(&self.seen.boot_id));
        let mut boots = boots.to_vec();
        if !boots.contains(&self.seen.boot_id) {
            let excess = (boots.len() + 1).saturating_sub(MOST_BOOTS);
            boots.drain(..excess);
            boots.push(self.seen.boot_id.clone());
        }
        self.with(SlotState::Trial {
            what: what.clone(),
            boots,
            passed,
            doubt: doubt.cloned(),
        })
    }

    fn passed(&self) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Trial { what, boots, .. } => {
                self.must_run()?;
                Ok(self.with(SlotState::Trial {
                    what: what.clone(),
                    boots: boots.clone(),
                    passed: true,
                    doubt: None,
                }))
            }
            SlotState::Good(_) => Ok(self.same()),
            _ => Err(self.out_of_place()),
        }
    }

    /// It stays on trial: its entry still boots it, and what the record called written would boot unnoticed.
    fn undecided(&self, why: &str, log: &str) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Trial {
                what,
                boots,
                passed: false,
                ..
            } => {
                self.must_run()?;
                let before = self.slots.undecided(&what.file);
                if before.is_some_and(|before| before.times >= MOST_UNDECIDED) {
                    let why = format!("{why}; so ended {MOST_UNDECIDED} trials of it before");
                    return Ok(self.with_bad(what, &why, log));
                }
                let Failure { reason, log, .. } = Failure::with_log(FailureKind::Verify, why, log);
                Ok(self.with(SlotState::Trial {
                    what: what.clone(),
                    boots: boots.clone(),
                    passed: false,
                    doubt: Some(Doubt { why: reason, log }),
                }))
            }
            _ => Err(self.out_of_place()),
        }
    }

    fn committed(&self) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Trial { what, passed, .. } => {
                self.must_run()?;
                let slot = self.slot;
                if !passed {
                    return Err(Refused::NotPassed { slot });
                }
                if !matches!(self.seen.entry(slot), Entry::Plain) {
                    return Err(Refused::NotBlessed { slot });
                }
                let mut slots = self.with(SlotState::Good(what.clone()));
                slots.last_good = Some(slot);
                // If it failed here before, it has proved now that it can do better.
                slots.forget_bad(&what.file);
                Ok(slots)
            }
            SlotState::Good(_) => Ok(self.same()),
            _ => Err(self.out_of_place()),
        }
    }

    fn failed(&self, why: &str, log: &str) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Trial { what, .. } => Ok(self.with_bad(what, why, log)),
            // Who comes later may know more: what runs instead finds the last words of a kernel.
            SlotState::Bad {
                what,
                why: known_why,
                log: known,
            } => {
                let why = if why.is_empty() {
                    known_why.as_str()
                } else {
                    why
                };
                // The newer words are in the whole of a full log, the older ones make room.
                let older = tail(known, Failure::MAX_LOG.saturating_sub(log.len() + 1));
                if known.ends_with(log) {
                    Ok(self.with_bad(what, why, known))
                } else if older.is_empty() {
                    Ok(self.with_bad(what, why, log))
                } else {
                    Ok(self.with_bad(what, why, &format!("{older}\n{log}")))
                }
            }
            _ => Err(self.out_of_place()),
        }
    }

    fn fell_back(&self, why: &str) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Armed { what, .. } => {
                self.must_not_run()?;
                Ok(self.with_bad(what, why, ""))
            }
            // Nobody can say that it does not do. How often that happened is counted.
            SlotState::Trial {
                what,
                doubt: Some(doubt),
                ..
            } => {
                self.must_not_run()?;
                let mut slots = self.with(SlotState::Written(what.clone()));
                slots.doubt(&what.file, doubt);
                Ok(slots)
            }
            SlotState::Trial {
                what,
                passed: false,
                ..
            } => {
                self.must_not_run()?;
                Ok(self.with_bad(what, why, ""))
            }
            // It was healthy; only the power went before its entry was blessed.
            SlotState::Trial { what, .. } => {
                self.must_not_run()?;
                Ok(self.with(SlotState::Written(what.clone())))
            }
            SlotState::Good(_) | SlotState::Bad { .. } => Ok(self.same()),
            SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) => {
                Err(self.out_of_place())
            }
        }
    }

    /// Not tried, or not to be.
    fn left(&self) -> Result<Slots, Refused> {
        match self.state() {
            SlotState::Empty | SlotState::Writing(_) => Ok(self.with(SlotState::Empty)),
            SlotState::Armed { what, .. } => {
                self.must_not_run()?;
                Ok(self.with(SlotState::Written(what.clone())))
            }
            SlotState::Written(_) | SlotState::Good(_) | SlotState::Bad { .. } => Ok(self.same()),
            SlotState::Trial { .. } => Err(self.out_of_place()),
        }
    }
}

/// What an event would be, to be put before "is not possible".
fn words(event: &Event) -> &'static str {
    match event {
        Event::Begin { .. } => "to write an image",
        Event::Wrote(_) => "to have written an image",
        Event::Spoilt => "to give up what was written",
        Event::Arm { .. } => "to arm a slot",
        Event::Booted => "to go on with what was booted",
        Event::Passed => "to pass a trial",
        Event::Committed => "to commit a slot",
        Event::Failed { .. } => "to fail a trial",
        Event::FellBack { .. } => "to fall back",
        Event::NotTried => "to have armed in vain",
        Event::Undecided { .. } => "to leave a trial undecided",
    }
}
