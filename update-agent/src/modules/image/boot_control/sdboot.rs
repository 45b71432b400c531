//! systemd-boot: an entry on trial has a boot counter in its name, which the loader decrements.
//! Blessing the entry means renaming it.

mod esp;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use super::slot_mount::SlotMount;
use super::{BootControl, SystemInterfaces, checks, reread_slot, run_blocking};
use crate::config::ImageConfig;
use crate::model::Failure;
use crate::modules::image::device::{SlotDevice, read_back};
use crate::modules::image::slots::{BootObservation, RawImage, Slot, SlotImage};
use crate::modules::image::spool::SpooledImage;
use crate::modules::image::unpack;
use crate::runner::Runner;

pub use self::esp::{Esp, IMAGE_KERNELS_FOLDER, read_entries};

/// Boot control with the loader entries on an ESP.
pub struct SystemdBoot {
    esp: Arc<Esp>,
    /// Where the kernel of a slot is read.
    slot_mount: SlotMount,
    /// Held by work on a slot or on the ESP, which continues if the caller is dropped. It must not
    /// run concurrently.
    work: Arc<Mutex<()>>,
}

impl fmt::Debug for SystemdBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemdBoot").field("esp", &self.esp).finish_non_exhaustive()
    }
}

impl SystemdBoot {
    /// Boot control with the ESP mounted at `at`, a path inside the managed root.
    pub fn new(
        system: SystemInterfaces,
        runner: Arc<dyn Runner>,
        at: PathBuf,
        config: &ImageConfig,
    ) -> Self {
        Self {
            slot_mount: SlotMount::new(system.clone(), runner),
            esp: Arc::new(Esp::new(system, at, config)),
            work: Arc::default(),
        }
    }

    /// Runs work that reads the ESP. If the disk hangs, only this work hangs.
    async fn read_esp<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Esp) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let esp = Arc::clone(&self.esp);
        run_blocking(move || work(&esp)).await
    }

    /// Runs work that changes the ESP, one at a time.
    async fn change_esp(
        &self,
        work: impl FnOnce(&Esp) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        let guard = self.lock_work().await;
        let esp = Arc::clone(&self.esp);
        run_blocking(move || {
            let _guard = guard;
            work(&esp)
        })
        .await
    }

    async fn lock_work(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.work).lock_owned().await
    }
}

#[async_trait::async_trait]
impl BootControl for SystemdBoot {
    fn name(&self) -> &'static str {
        "systemd-boot"
    }

    async fn observe(&self) -> Result<BootObservation, Failure> {
        self.read_esp(Esp::observe).await
    }

    async fn faults(&self) -> Vec<String> {
        let faults = self.read_esp(|esp| Ok(checks::find_faults(esp))).await;
        faults.unwrap_or_else(|failure| vec![failure.reason])
    }

    async fn max_image_bytes(&self, slot: Slot) -> Result<u64, Failure> {
        self.read_esp(move |esp| esp.max_image_bytes(slot)).await
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        self.change_esp(move |esp| esp.withdraw(slot)).await
    }

    async fn write(
        &self,
        slot: Slot,
        from: &SpooledImage,
        stop: &CancellationToken,
    ) -> Result<RawImage, Failure> {
        let guard = self.lock_work().await;
        let device = self.esp.find_device(slot)?;
        self.slot_mount.prepare(&device).await?;
        let (from, stop) = (from.clone(), stop.clone());
        run_blocking(move || {
            let _guard = guard;
            let raw = unpack::unpack(&from, SlotDevice::open(&device)?, &stop)?;
            read_back(&device, &raw, &stop)?;
            Ok(raw)
        })
        .await
    }

    async fn verify_slot(&self, slot: Slot, raw: &RawImage) -> Result<(), Failure> {
        let guard = self.lock_work().await;
        let device = self.esp.find_device(slot)?;
        reread_slot(guard, device, *raw).await
    }

    async fn install_kernel(&self, slot: Slot, image: &SlotImage) -> Result<(), Failure> {
        let guard = self.lock_work().await;
        let device = self.esp.find_device(slot)?;
        self.slot_mount.prepare(&device).await?;
        let point = self.slot_mount.mount(&device).await?;
        let (esp, image_id) = (Arc::clone(&self.esp), image.image_id.clone());
        let done = run_blocking(move || {
            let copied = esp.copy_kernel(&point, slot, &image_id);
            Ok((copied, guard))
        })
        .await;
        // Also after a failed copy, because a mounted slot cannot be written. No other work starts
        // before that.
        let unmounted = self.slot_mount.unmount(&device).await;
        let (copied, _guard) = done?;
        copied.and(unmounted)
    }

    async fn arm(&self, slot: Slot, image: &SlotImage, sequence: u32) -> Result<(), Failure> {
        let image = image.clone();
        let arm = move |esp: &Esp| esp.arm(slot, &image, sequence);
        self.change_esp(arm).await
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        self.change_esp(move |esp| esp.bless(slot)).await
    }
}

#[cfg(test)]
mod tests;
