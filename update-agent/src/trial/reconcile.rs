//! Brings the record of the slots in line with the boot state, before anything else uses the slots.

use std::time::Duration;

use tokio::time::sleep;

use super::Reset;
use crate::model::Failure;
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{BootObservation, BootRepair, Slot, SlotFile, SlotState};

/// Number of rounds for the repairs that reconciliation requests. Two rounds are enough.
const RECONCILE_ROUNDS: usize = 3;

/// Number of tries to read the boot state and to repair the slots, with a pause in between. The
/// boot partition may be mounted late, and a repair that fails waits until the next start.
const RECONCILE_ATTEMPTS: usize = 3;
const RECONCILE_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Brings the record of the slots in line with the boot state, and repairs the slots if necessary.
/// Must run before anything else uses the slots.
///
/// A repair that still fails after some tries is logged and repeated at the next start: no boot
/// depends on it, and a bad image that runs is rolled back by
/// [`run_trial`](super::run_trial). Returns the last boot state; `None` if the
/// running image is bad and the requested reset did not happen: then the caller must change
/// nothing. Fails if the boot state cannot be read or the record cannot be written.
pub async fn reconcile_slots(
    boot: &dyn BootControl,
    slots: &SlotFile,
    reset: &dyn Reset,
) -> Result<Option<BootObservation>, Failure> {
    for _ in 1..RECONCILE_ATTEMPTS {
        match reconcile_once(boot, slots, reset).await {
            Ok(seen) => return Ok(seen),
            Err(ReconcileError { failure, .. }) => {
                tracing::warn!(%failure, "cannot repair the slots, trying again");
                sleep(RECONCILE_RETRY_DELAY).await;
            }
        }
    }
    match reconcile_once(boot, slots, reset).await {
        Ok(seen) => Ok(seen),
        Err(ReconcileError { failure, seen: Some(seen) }) => {
            tracing::error!(%failure, "cannot repair the slots now");
            Ok(Some(seen))
        }
        Err(ReconcileError { failure, seen: None }) => Err(failure),
    }
}

/// Why the slots could not be reconciled.
struct ReconcileError {
    failure: Failure,
    /// The boot state before the failure; `None` if it could not be read or the record not be
    /// written.
    seen: Option<BootObservation>,
}

impl From<Failure> for ReconcileError {
    fn from(failure: Failure) -> Self {
        Self { failure, seen: None }
    }
}

/// Confirms this boot if the running image is good. If that fails, the next start tries again: the
/// boot loader counts several boots, or falls back to an image that is good as well.
pub(super) async fn confirm_good_boot(
    boot: &dyn BootControl,
    slots: &SlotFile,
    seen: &BootObservation,
) {
    let is_good = |slot: &Slot| matches!(slots.get().state(*slot), SlotState::Good(_));
    let Some(slot) = seen.booted.filter(is_good) else {
        return;
    };
    if let Err(failure) = boot.confirm_boot(slot).await {
        tracing::warn!(%failure, "cannot confirm the boot of a good image");
    }
}

/// One try of [`reconcile_slots`].
async fn reconcile_once(
    boot: &dyn BootControl,
    slots: &SlotFile,
    reset: &dyn Reset,
) -> Result<Option<BootObservation>, ReconcileError> {
    let mut seen = boot.observe().await?;
    for round in 0..RECONCILE_ROUNDS {
        let repairs = slots.reconcile(&seen)?;
        if round == 0 {
            // Before the repairs, which may fail.
            confirm_good_boot(boot, slots, &seen).await;
        }
        if repairs.is_empty() {
            break;
        }
        for repair in repairs {
            tracing::warn!(?repair, "the slots do not match their record");
            let done = match repair {
                BootRepair::Withdraw(slot) => boot.withdraw(slot).await,
                BootRepair::Bless(slot) => boot.bless(slot).await,
                BootRepair::Reset => {
                    reset.reset_machine().await;
                    // The reset did not happen. The running image is bad: nothing may be based on
                    // it.
                    tracing::error!("the running image is bad, and the machine does not reset");
                    return Ok(None);
                }
            };
            if let Err(failure) = done {
                // The remaining repairs are skipped as well: a reset among them could lead here
                // again and again.
                let seen = Some(seen);
                return Err(ReconcileError { failure, seen });
            }
        }
        seen = boot.observe().await?;
    }
    Ok(Some(seen))
}
