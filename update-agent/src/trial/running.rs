//! What runs: something that is settled, something on trial, or something that must be left.

use tokio::time::sleep;

use super::changes::{Change, Changes, look};
use super::{BEAT, Over, Timer, TrialParts, guard, watchdog};
use crate::model::{Failure, FailureKind};
use crate::modules::image::slots::{Entry, Seen, Slot, SlotState, Slots};

/// What is running.
pub(super) enum Running {
    /// Something that is not on trial.
    Settled,
    /// The image in this slot, on trial.
    Trial(Slot, Seen),
    /// The image in this slot, which is known to be bad, and there is another one to go back to.
    Bad(Slot, Seen),
    /// Something that the loader counted, and nothing else could be learnt until the deadline.
    Unknown(String),
}

/// Looks at what is running; again and again until the deadline, since an answer that fails once says nothing.
///
/// Who cannot look is not reset unless the loader counted this boot, and no trial has ended in it: only then does it
/// come to the old image in the end. Else it may be a good image that runs, with a boot partition that is broken, and
/// resets would never end.
pub(super) async fn running(parts: &TrialParts, timer: &Timer) -> Result<Running, Failure> {
    loop {
        let looked = look(parts.boot.as_ref()).await;
        let unknown = match looked.and_then(|seen| judge(parts, seen)) {
            Ok(running) => return Ok(running),
            Err(failure) => failure,
        };
        if timer.left().is_zero() {
            if guard::is_watched(&parts.place) {
                return Ok(Running::Unknown(unknown.reason));
            }
            return Err(unknown);
        }
        tracing::warn!(%unknown, "it cannot be learnt what runs");
        sleep(BEAT).await;
    }
}

/// What that is which was seen; fails if the loader counted this boot, and nobody knows what for.
fn judge(parts: &TrialParts, seen: Seen) -> Result<Running, Failure> {
    let is_watched = guard::is_watched(&parts.place);
    let unknown = |reason: String| Failure::new(FailureKind::Verify, reason);
    let Some(slot) = seen.booted else {
        if is_watched {
            let reason = "it cannot be learnt from which slot the system was booted";
            return Err(unknown(reason.to_owned()));
        }
        return Ok(Running::Settled);
    };
    let slots = parts.slots.get();
    let state = slots.state(slot);
    match state {
        SlotState::Armed { .. } | SlotState::Trial { .. } => Ok(Running::Trial(slot, seen)),
        SlotState::Good(_) => Ok(Running::Settled),
        SlotState::Bad { .. } if is_to_be_left(&slots, slot, &seen, is_watched) => {
            Ok(Running::Bad(slot, seen))
        }
        // A sick system is better than none.
        SlotState::Bad { .. } => Ok(Running::Settled),
        SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) if is_watched => {
            let words = state.words();
            Err(unknown(format!(
                "the boot loader counted this boot, and the slot {slot}, which runs, {words}"
            )))
        }
        SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) => Ok(Running::Settled),
    }
}

/// Whether something else is there to boot in place of what is bad, and a reset would lead to it in the end.
fn is_to_be_left(slots: &Slots, slot: Slot, seen: &Seen, is_watched: bool) -> bool {
    let other = slot.other();
    let is_way_back = *seen.entry(other) == Entry::Plain
        && matches!(slots.state(other), SlotState::Good(_) | SlotState::Empty);
    // Without an entry of its own it is started by somebody else's, and would be again, unless that was before.
    let is_started_by_others = *seen.entry(slot) == Entry::Absent && !seen.foreign.is_empty();
    is_way_back && (is_watched || !is_started_by_others)
}

/// Leaves what runs and is known to be bad: U2 and U3, which were cut off or have failed before.
pub(super) async fn leave(parts: &TrialParts, slot: Slot, seen: &Seen) -> Result<Over, Failure> {
    let why = format!("the image in the slot {slot} is known to be bad");
    tracing::error!(why, "falling back");
    if *seen.entry(slot) != Entry::Absent
        && let Err(failure) = Changes::new(&parts.boot, slot).make(Change::Withdraw).await
    {
        if !guard::is_watched(&parts.place) {
            // Its entry counts nothing, so a reset would lead here again, over and over.
            watchdog::stop_left_open(&parts.place);
            let reason = format!("{why}, and it cannot be left: {failure}");
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        // The loader counts what is left: this ends on the old image after as many boots as an image has tries.
        tracing::error!(%failure, "its entry cannot be removed");
    }
    parts.reset.now().await;
    Ok(Over::FellBack { why })
}
