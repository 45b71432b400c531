//! Writes an image into its slot, and checks later that the slot still holds it.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plan::ImageStep;
use super::slots::{BootObservation, RawImage, Slot, SlotEvent, SlotImage};
use super::spool::SpooledImage;
use super::{ImageModule, ImageParts};
use crate::model::{Failure, FailureKind};

/// A slot that was read back successfully is not read back again within this time, however often
/// readiness is checked.
const SLOT_CHECK_INTERVAL: Duration = Duration::from_mins(10);

/// A slot that was read back successfully.
pub struct VerifiedSlot {
    slot: Slot,
    raw: RawImage,
    verified_at: Instant,
}

impl ImageModule {
    /// Writes a downloaded file into the slot. If that fails the file is retained, so that the next
    /// attempt need not download it again.
    pub(super) async fn write_slot(
        &self,
        step: &ImageStep,
        from: &SpooledImage,
    ) -> Result<(), Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        let ImageStep { slot, spec, .. } = step;
        let observation = boot.observe().await?;
        let image = SlotImage {
            file: spec.sha256,
            profile_name: spec.profile_name.clone(),
            image_id: spec.image_id.clone(),
            raw: None,
        };
        // Record the intent first: after a power cut the half-written slot must not count as
        // complete.
        let begin = SlotEvent::Begin { image, allow_retry: spec.allow_retry };
        slots.step(*slot, &begin, &observation)?;
        // Remove the boot entry before the first byte is written: nothing may start a torn slot.
        boot.withdraw(*slot).await?;
        // If this future is dropped because the agent stops, the guard stops the writing as well.
        let halt = CancellationToken::new();
        let _halts = halt.clone().drop_guard();
        let raw = match boot.write(*slot, from, &halt).await {
            Ok(raw) => raw,
            Err(failure) => {
                slots.step(*slot, &SlotEvent::Corrupted, &observation)?;
                return Err(failure);
            }
        };
        // The slot was read back: only now remove the file. From here on no network is needed.
        slots.step(*slot, &SlotEvent::Wrote(raw), &observation)?;
        self.try_to_discard_downloads(None).await;
        Ok(())
    }

    /// Whether a slot still holds the written bytes. If not, the next attempt writes it again.
    pub(super) async fn verify_slot_contents(
        &self,
        slot: Slot,
        raw: &RawImage,
        observation: &BootObservation,
    ) -> Result<(), Failure> {
        let lock = || self.verified_slot.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = lock().as_ref().is_some_and(|verified| {
            verified.slot == slot
                && verified.raw == *raw
                && verified.verified_at.elapsed() < SLOT_CHECK_INTERVAL
        });
        if is_known {
            return Ok(());
        }
        let read = self.parts.boot.verify_slot(slot, raw).await;
        if read.as_ref().is_err_and(|failure| failure.kind == FailureKind::Verify) {
            self.parts.slots.step(slot, &SlotEvent::Corrupted, observation)?;
        }
        read?;
        *lock() = Some(VerifiedSlot { slot, raw: *raw, verified_at: Instant::now() });
        Ok(())
    }
}
