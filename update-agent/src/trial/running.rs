//! Determines what is running: a stable system, an image on trial, or a bad image.

use tokio::time::sleep;

use super::changes::{SlotChange, SlotChanger, read_slots};
use super::{CHECK_INTERVAL, TrialOutcome, TrialParts, TrialTimer, guard, watchdog};
use crate::model::{Failure, FailureKind};
use crate::modules::image::slots::{BootEntry, BootObservation, Slot, SlotState, Slots};

/// What is running.
pub(super) enum RunningState {
    /// A system that is not on trial.
    Stable(BootObservation),
    /// The image in this slot, on trial.
    Trial(Slot, BootObservation),
    /// A bad image in this slot, while there is another image to fall back to.
    Bad(Slot, BootObservation),
    /// A counted boot whose state could not be determined by the deadline.
    Unknown(String),
}

/// Determines what is running, with retries until the deadline, because a single failure proves
/// nothing.
///
/// If the state cannot be read, the machine is reset only if the loader counted this boot and no
/// trial has ended in it: only then do resets lead to the old image. Otherwise a good image may be
/// running with a broken boot partition, and the resets would never end.
///
/// Without a record there is nothing to wait for, unless the loader counted this boot.
pub(super) async fn determine_running(
    parts: &TrialParts,
    timer: &TrialTimer,
) -> Result<RunningState, Failure> {
    loop {
        let looked = read_slots(parts.boot.as_ref()).await;
        let unknown = match looked.and_then(|seen| classify(parts, seen)) {
            Ok(running) => return Ok(running),
            Err(failure) => failure,
        };
        let is_watched = guard::is_watched(&parts.paths);
        if timer.remaining().is_zero() {
            if is_watched {
                return Ok(RunningState::Unknown(unknown.reason));
            }
            return Err(unknown);
        }
        // No image was ever written here, so none is on trial. The node may have a RAUC that is not
        // supported, and be updated by packages: its agent must not be silent until the deadline.
        if !is_watched && parts.slots.get() == Slots::default() {
            return Err(unknown);
        }
        tracing::warn!(%unknown, "cannot determine what is running");
        sleep(CHECK_INTERVAL).await;
    }
}

/// Classifies a boot state. Fails if the loader counted this boot but the record does not explain
/// why.
fn classify(parts: &TrialParts, seen: BootObservation) -> Result<RunningState, Failure> {
    let is_watched = guard::is_watched(&parts.paths);
    let unknown = |reason: String| Failure::new(FailureKind::Verify, reason);
    let Some(slot) = seen.booted else {
        if is_watched {
            let reason = "cannot determine from which slot the system was booted";
            return Err(unknown(reason.to_owned()));
        }
        return Ok(RunningState::Stable(seen));
    };
    let slots = parts.slots.get();
    let state = slots.state(slot);
    match state {
        SlotState::Armed { .. } | SlotState::Trial { .. } => Ok(RunningState::Trial(slot, seen)),
        SlotState::Good(_) => Ok(RunningState::Stable(seen)),
        SlotState::Bad { .. } if should_fall_back(&slots, slot, &seen, is_watched) => {
            Ok(RunningState::Bad(slot, seen))
        }
        // An unhealthy system is better than none.
        SlotState::Bad { .. } => Ok(RunningState::Stable(seen)),
        SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) if is_watched => {
            let description = state.description();
            Err(unknown(format!(
                "the boot loader counted this boot, but the running slot {slot} {description}"
            )))
        }
        SlotState::Empty | SlotState::Writing(_) | SlotState::Written(_) => {
            Ok(RunningState::Stable(seen))
        }
    }
}

/// Whether there is another image to boot instead of the bad one, and a reset would lead to it in
/// the end.
fn should_fall_back(slots: &Slots, slot: Slot, seen: &BootObservation, is_watched: bool) -> bool {
    let other = slot.other();
    let can_fall_back = *seen.entry(other) == BootEntry::Plain
        && matches!(slots.state(other), SlotState::Good(_) | SlotState::Empty);
    // A slot without an entry was started by the entry of another program, and would be started
    // again, unless that was before the trial.
    let is_started_by_others = *seen.entry(slot) == BootEntry::Absent && !seen.foreign.is_empty();
    can_fall_back && (is_watched || !is_started_by_others)
}

/// Falls back from a running image that is known to be bad: withdraws it and resets, which was
/// interrupted or failed before.
pub(super) async fn fall_back_from_bad(
    parts: &TrialParts,
    slot: Slot,
    seen: &BootObservation,
) -> Result<TrialOutcome, Failure> {
    let reason = format!("the image in the slot {slot} is known to be bad");
    tracing::error!(reason, "falling back");
    if *seen.entry(slot) != BootEntry::Absent
        && let Err(failure) = SlotChanger::new(&parts.boot, slot).apply(SlotChange::Withdraw).await
    {
        if !guard::is_watched(&parts.paths) {
            // The entry has no counter, so a reset would lead here again and again.
            watchdog::stop_left_open(&parts.paths);
            let reason = format!("{reason}, and it cannot be withdrawn: {failure}");
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        // The loader counts the remaining tries, so the old image boots after at most that many
        // resets.
        tracing::error!(%failure, "cannot withdraw the image");
    }
    parts.reset.reset_machine().await;
    Ok(TrialOutcome::FellBack { reason })
}
