//! The state machine of a slot: every state against every event.
//!
//! A slot may be written or armed only if the other slot runs, is good, is the last good one, and
//! has a boot entry without a counter. Then that slot boots whatever happens. So the last good slot
//! is never written, and it stays good.
//!
//! Four rules are not obvious. `tests/model.rs` shows what happens without them:
//!
//! - The permission to retry a bad image is valid once and does not make the node forget the
//!   failure: the image stays in the list until it is committed. If [`SlotEvent::Begin`] removed
//!   it, a retry that is withdrawn before the slot is armed would let the next policy try the image
//!   without permission.
//! - A slot in state `Writing` may be found running, if a power cut came before its earlier entry,
//!   which sorts first, was removed. Its content is intact then, because the entry is removed
//!   before the content is written, but the record has lost which image it is. So the slot goes on
//!   trial without an image name, which avoids a dead end.
//! - An empty slot that runs counts as good only while no slot is known to be good: at the first
//!   start, and after the record was lost. Otherwise it has to prove itself.
//! - The running slot needs a boot entry without a counter before the other slot is written.
//!   Otherwise nothing would boot after a failed trial.

use chrono::{DateTime, Utc};

use super::{
    BootEntry, BootObservation, RawImage, Slot, SlotError, SlotEvent, SlotImage, SlotState, Slots,
    TrialEnd,
};
use crate::model::{Failure, FailureKind, Sha256, tail};

/// Number of boots of a trial to remember.
const MAX_TRIAL_BOOTS: usize = 16;

/// Number of trials of an image that may end undecided. The next undecided trial is a failure: if
/// the old image reaches the server each time and the new one never does, the server is not the
/// cause.
pub(super) const MAX_UNDECIDED_TRIALS: u8 = 2;

/// Applies an event to a slot and returns the new record. Total: an event that does not fit is
/// refused and changes nothing.
pub fn step(
    slots: &Slots,
    slot: Slot,
    event: &SlotEvent,
    observed: &BootObservation,
    now: DateTime<Utc>,
) -> Result<Slots, SlotError> {
    let case = SlotStep { slots, slot, event, observed, now };
    match event {
        SlotEvent::Begin { image, allow_retry } => case.begin(image, *allow_retry),
        SlotEvent::Wrote(raw) => case.wrote(*raw),
        SlotEvent::Corrupted => case.corrupted(),
        SlotEvent::Arm { allow_retry } => case.arm(*allow_retry),
        SlotEvent::Booted => case.booted(),
        SlotEvent::Passed => case.passed(),
        SlotEvent::Committed => case.committed(),
        SlotEvent::Failed { reason, log } => case.failed(reason, log),
        SlotEvent::FellBack { reason } => case.fell_back(reason),
        SlotEvent::Undecided { reason, log } => case.undecided(reason, log),
        SlotEvent::NotTried => case.not_tried(),
    }
}

/// Why no slot may be written at present, for any image: something is in a state that the agent
/// does not create, and a person has to correct it. `None` if there is no such obstacle, or if the
/// running slot is on trial.
pub fn find_write_obstacle(slots: &Slots, observed: &BootObservation) -> Option<SlotError> {
    let on_trial = |slot| matches!(slots.state(slot), SlotState::Trial { .. });
    find_fallback(slots, observed).err().filter(|_| !observed.booted.is_some_and(on_trial))
}

/// The slot that boots if the other one fails: it runs, is good, and has a boot entry without a
/// counter.
fn find_fallback(slots: &Slots, observed: &BootObservation) -> Result<Slot, SlotError> {
    let slot = observed.booted.ok_or(SlotError::RunningUnknown)?;
    let state = slots.state(slot);
    if !matches!(state, SlotState::Good(_)) || slots.last_good != Some(slot) {
        return Err(SlotError::RunningNotGood { slot, state: state.description() });
    }
    match observed.entry(slot) {
        BootEntry::Plain => Ok(slot),
        _ => Err(SlotError::NoFallback { slot }),
    }
}

/// One event of one slot.
struct SlotStep<'a> {
    slots: &'a Slots,
    slot: Slot,
    event: &'a SlotEvent,
    observed: &'a BootObservation,
    now: DateTime<Utc>,
}

impl SlotStep<'_> {
    fn state(&self) -> &SlotState {
        self.slots.state(self.slot)
    }

    fn is_running(&self) -> bool {
        self.observed.booted == Some(self.slot)
    }

    /// The record without a change.
    fn unchanged(&self) -> Slots {
        self.slots.clone()
    }

    fn with_state(&self, state: SlotState) -> Slots {
        let mut slots = self.unchanged();
        slots.set_state(self.slot, state);
        slots
    }

    /// Records that the image of the slot failed, and remembers it as bad.
    fn with_bad(&self, image: &SlotImage, reason: &str, log: &str) -> Slots {
        let Failure { reason, log, .. } = Failure::with_log(FailureKind::Verify, reason, log);
        let mut slots =
            self.with_state(SlotState::Bad { image: image.clone(), reason: reason.clone(), log });
        slots.remember_bad(image, &reason, self.now);
        slots
    }

    fn invalid_state(&self) -> SlotError {
        SlotError::InvalidState {
            slot: self.slot,
            state: self.state().description(),
            event: describe_event(self.event),
        }
    }

    fn check_not_running(&self) -> Result<(), SlotError> {
        if self.is_running() {
            return Err(SlotError::IsRunning {
                slot: self.slot,
                event: describe_event(self.event),
            });
        }
        Ok(())
    }

    fn check_running(&self) -> Result<(), SlotError> {
        if self.is_running() {
            return Ok(());
        }
        Err(SlotError::IsNotRunning { slot: self.slot, event: describe_event(self.event) })
    }

    /// Protects the last good slot, and refuses an image that is known to be bad.
    fn check_may_replace(&self, image: &SlotImage, allow_retry: bool) -> Result<(), SlotError> {
        self.check_not_running()?;
        find_fallback(self.slots, self.observed)?;
        match self.slots.find_bad(&image.file) {
            Some(bad) if !allow_retry => Err(SlotError::KnownBad {
                image_id: bad.image_id.clone(),
                reason: bad.reason.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn begin(&self, image: &SlotImage, allow_retry: bool) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Empty
            | SlotState::Writing(_)
            | SlotState::Written(_)
            | SlotState::Good(_)
            | SlotState::Bad { .. } => {
                self.check_may_replace(image, allow_retry)?;
                Ok(self.with_state(SlotState::Writing(SlotImage { raw: None, ..image.clone() })))
            }
            // It may boot at the next reset: first its entry must be removed, then the record must
            // change.
            SlotState::Armed { .. } | SlotState::Trial { .. } => Err(self.invalid_state()),
        }
    }

    fn wrote(&self, raw: RawImage) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Writing(image) | SlotState::Written(image) => {
                self.check_not_running()?;
                Ok(self
                    .with_state(SlotState::Written(SlotImage { raw: Some(raw), ..image.clone() })))
            }
            _ => Err(self.invalid_state()),
        }
    }

    fn corrupted(&self) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) => {
                Ok(self.with_state(SlotState::Empty))
            }
            SlotState::Bad { .. } => Ok(self.unchanged()),
            SlotState::Armed { .. } | SlotState::Trial { .. } | SlotState::Good(_) => {
                Err(self.invalid_state())
            }
        }
    }

    fn arm(&self, allow_retry: bool) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Written(image) | SlotState::Armed { image, .. } => {
                self.check_may_replace(image, allow_retry)?;
                let mut slots = self.with_state(SlotState::Armed {
                    image: image.clone(),
                    boot_id: self.observed.boot_id.clone(),
                });
                let next = slots.sequence.checked_add(1);
                slots.sequence = next.ok_or(SlotError::SequenceExhausted)?;
                Ok(slots)
            }
            _ => Err(self.invalid_state()),
        }
    }

    fn booted(&self) -> Result<Slots, SlotError> {
        self.check_running()?;
        match self.state() {
            SlotState::Empty | SlotState::Writing(_) => self.booted_unknown(),
            SlotState::Armed { image, .. } => Ok(self.on_trial(image, &[], false, None)),
            SlotState::Trial { image, boots, passed: is_healthy, undecided_end } => {
                Ok(self.on_trial(image, boots, *is_healthy, undecided_end.as_ref()))
            }
            // A person chose this slot, so from now on a trial falls back to it.
            SlotState::Good(_) => {
                let mut slots = self.unchanged();
                slots.last_good = Some(self.slot);
                Ok(slots)
            }
            // The agent creates no boot entry in these states. A bad slot may keep its entry if a
            // power cut came before the entry was removed; then `reconcile` ends the boot.
            SlotState::Written(_) | SlotState::Bad { .. } => Err(self.invalid_state()),
        }
    }

    /// The slot runs, but the record does not know its image. An entry of the agent proves that the
    /// image is complete, because no entry refers to an incomplete one.
    fn booted_unknown(&self) -> Result<Slots, SlotError> {
        let (profile_name, image_id) = self.observed.image.clone().unwrap_or_default();
        let image = SlotImage { file: Sha256::from([0; 32]), profile_name, image_id, raw: None };
        let nothing_known =
            self.slots.last_good.is_none() && matches!(self.state(), SlotState::Empty);
        match self.observed.entry(self.slot) {
            BootEntry::Plain if nothing_known => {
                let mut slots = self.with_state(SlotState::Good(image));
                slots.last_good = Some(self.slot);
                Ok(slots)
            }
            BootEntry::Plain | BootEntry::Counted { .. } | BootEntry::OneShot => {
                Ok(self.on_trial(&image, &[], false, None))
            }
            BootEntry::Absent | BootEntry::Invalid(_) => Err(self.invalid_state()),
        }
    }

    /// An undecided end applies only to its own boot: each boot has to prove itself again.
    fn on_trial(
        &self,
        image: &SlotImage,
        boots: &[String],
        is_healthy: bool,
        undecided_end: Option<&TrialEnd>,
    ) -> Slots {
        let undecided_end = undecided_end.filter(|_| boots.contains(&self.observed.boot_id));
        let mut boots = boots.to_vec();
        if !boots.contains(&self.observed.boot_id) {
            let excess = (boots.len() + 1).saturating_sub(MAX_TRIAL_BOOTS);
            boots.drain(..excess);
            boots.push(self.observed.boot_id.clone());
        }
        self.with_state(SlotState::Trial {
            image: image.clone(),
            boots,
            passed: is_healthy,
            undecided_end: undecided_end.cloned(),
        })
    }

    fn passed(&self) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Trial { image, boots, .. } => {
                self.check_running()?;
                Ok(self.with_state(SlotState::Trial {
                    image: image.clone(),
                    boots: boots.clone(),
                    passed: true,
                    undecided_end: None,
                }))
            }
            SlotState::Good(_) => Ok(self.unchanged()),
            _ => Err(self.invalid_state()),
        }
    }

    /// The slot stays on trial: its entry still boots it, and in state `Written` that boot would
    /// not be recognised as a trial.
    fn undecided(&self, reason: &str, log: &str) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Trial { image, boots, passed: false, .. } => {
                self.check_running()?;
                let before = self.slots.find_undecided(&image.file);
                if before.is_some_and(|before| before.times >= MAX_UNDECIDED_TRIALS) {
                    let reason = format!(
                        "{reason}; {MAX_UNDECIDED_TRIALS} earlier trials ended the same way"
                    );
                    return Ok(self.with_bad(image, &reason, log));
                }
                let Failure { reason, log, .. } =
                    Failure::with_log(FailureKind::Verify, reason, log);
                Ok(self.with_state(SlotState::Trial {
                    image: image.clone(),
                    boots: boots.clone(),
                    passed: false,
                    undecided_end: Some(TrialEnd { reason, log }),
                }))
            }
            _ => Err(self.invalid_state()),
        }
    }

    fn committed(&self) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Trial { image, passed: is_healthy, .. } => {
                self.check_running()?;
                let slot = self.slot;
                if !is_healthy {
                    return Err(SlotError::NotPassed { slot });
                }
                if !matches!(self.observed.entry(slot), BootEntry::Plain) {
                    return Err(SlotError::NotBlessed { slot });
                }
                let mut slots = self.with_state(SlotState::Good(image.clone()));
                slots.last_good = Some(slot);
                slots.raise_version_floor(image);
                // A successful trial outweighs an earlier failure.
                slots.forget_bad(&image.file);
                Ok(slots)
            }
            SlotState::Good(_) => Ok(self.unchanged()),
            _ => Err(self.invalid_state()),
        }
    }

    fn failed(&self, reason: &str, log: &str) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Trial { image, .. } => Ok(self.with_bad(image, reason, log)),
            // A later report may add more: the slot that runs instead finds the crash log of a
            // kernel.
            SlotState::Bad { image, reason: known_reason, log: known_log } => {
                let reason = if reason.is_empty() { known_reason.as_str() } else { reason };
                // The newer lines are kept completely; the older ones get the remaining space.
                let older = tail(known_log, Failure::MAX_LOG.saturating_sub(log.len() + 1));
                if known_log.ends_with(log) {
                    Ok(self.with_bad(image, reason, known_log))
                } else if older.is_empty() {
                    Ok(self.with_bad(image, reason, log))
                } else {
                    Ok(self.with_bad(image, reason, &format!("{older}\n{log}")))
                }
            }
            _ => Err(self.invalid_state()),
        }
    }

    fn fell_back(&self, reason: &str) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Armed { image, .. } => {
                self.check_not_running()?;
                Ok(self.with_bad(image, reason, ""))
            }
            // The image may be fine, so it is not bad. The undecided trial is counted.
            SlotState::Trial { image, undecided_end: Some(end), .. } => {
                self.check_not_running()?;
                let mut slots = self.with_state(SlotState::Written(image.clone()));
                slots.count_undecided(&image.file, end);
                Ok(slots)
            }
            SlotState::Trial { image, passed: false, .. } => {
                self.check_not_running()?;
                Ok(self.with_bad(image, reason, ""))
            }
            // It was healthy; a power cut prevented the blessing.
            SlotState::Trial { image, .. } => {
                self.check_not_running()?;
                Ok(self.with_state(SlotState::Written(image.clone())))
            }
            SlotState::Good(_) | SlotState::Bad { .. } => Ok(self.unchanged()),
            SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) => {
                Err(self.invalid_state())
            }
        }
    }

    /// The slot was not tried, or must not be.
    fn not_tried(&self) -> Result<Slots, SlotError> {
        match self.state() {
            SlotState::Empty | SlotState::Writing(_) => Ok(self.with_state(SlotState::Empty)),
            SlotState::Armed { image, .. } => {
                self.check_not_running()?;
                Ok(self.with_state(SlotState::Written(image.clone())))
            }
            SlotState::Written(_) | SlotState::Good(_) | SlotState::Bad { .. } => {
                Ok(self.unchanged())
            }
            SlotState::Trial { .. } => Err(self.invalid_state()),
        }
    }
}

/// Describes an event; "is not possible" follows in the sentence.
fn describe_event(event: &SlotEvent) -> &'static str {
    match event {
        SlotEvent::Begin { .. } => "to write an image",
        SlotEvent::Wrote(_) => "to have written an image",
        SlotEvent::Corrupted => "to discard the content of a slot",
        SlotEvent::Arm { .. } => "to arm a slot",
        SlotEvent::Booted => "to continue with a booted slot",
        SlotEvent::Passed => "to pass a trial",
        SlotEvent::Committed => "to commit a slot",
        SlotEvent::Failed { .. } => "to fail a trial",
        SlotEvent::FellBack { .. } => "to fall back",
        SlotEvent::NotTried => "to disarm a slot",
        SlotEvent::Undecided { .. } => "to end a trial undecided",
    }
}
