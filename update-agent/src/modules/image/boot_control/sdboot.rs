//! systemd-boot: an entry on trial has a boot counter in its name, which the loader decrements.
//! Blessing the entry means renaming it.

mod esp;
mod read_only;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use super::files::file_failure;
use super::{BootControl, SystemInterfaces, checks, mounts, reread_slot, run_blocking};
use crate::config::ImageConfig;
use crate::durable;
use crate::model::{Failure, FailureKind};
use crate::modules::image::device::{SlotDevice, read_back, storage_failure};
use crate::modules::image::slots::{BootObservation, RawImage, Slot, SlotImage};
use crate::modules::image::spool::SpooledImage;
use crate::modules::image::unpack;
use crate::runner::{Command, Runner};

pub use self::esp::{Esp, IMAGE_KERNELS_FOLDER, read_entries};
pub use self::read_only::slot_mount_options;

/// Time limit for mounting and unmounting a slot.
const MOUNT_TIMEOUT: Duration = Duration::from_mins(1);

/// Whether a device accepts writes.
#[derive(Clone, Copy, Debug)]
enum DeviceMode {
    ReadOnly,
    Writable,
}

/// Boot control with the loader entries on an ESP.
pub struct SystemdBoot {
    esp: Arc<Esp>,
    runner: Arc<dyn Runner>,
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
        Self { esp: Arc::new(Esp::new(system, at, config)), runner, work: Arc::default() }
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

    fn system(&self) -> &SystemInterfaces {
        &self.esp.system
    }

    /// Mount point for a slot whose kernel is read.
    fn mount_point(&self) -> PathBuf {
        self.system().paths.state().join("slot")
    }

    /// Unmounts a slot that a killed agent left mounted. A mounted slot can be neither written nor
    /// mounted again.
    async fn unmount_leftover(&self) -> Result<(), Failure> {
        let point = self.system().relative_to_root(&self.mount_point());
        let is_point = |mount: &mounts::MountEntry| mount.mount_point == point;
        if self.system().mounts()?.iter().any(is_point) {
            self.unmount().await?;
        }
        Ok(())
    }

    async fn mount(&self, device: &Path) -> Result<PathBuf, Failure> {
        let point = self.mount_point();
        durable::create_folder(&point, 0o700).map_err(file_failure)?;
        let path = device.to_owned();
        let options = run_blocking(move || slot_mount_options(&path)).await?;
        self.set_device_mode(device, DeviceMode::ReadOnly).await;
        let command = Command::new("mount", MOUNT_TIMEOUT).with_arguments([
            "-o".to_owned(),
            options,
            self.system().relative_to_root(device).display().to_string(),
            self.system().relative_to_root(&point).display().to_string(),
        ]);
        let mounted = self.run(&command).await;
        if mounted.is_err() {
            self.set_device_mode(device, DeviceMode::Writable).await;
        }
        mounted.map(|()| point)
    }

    /// Lets the kernel refuse or accept writes to a slot. The mount options prevent the usual write of a read-only mount,
    /// the replay of the journal; this prevents the others, such as the removal of orphans. A system without the program
    /// relies on the options.
    async fn set_device_mode(&self, device: &Path, mode: DeviceMode) {
        let option = match mode {
            DeviceMode::ReadOnly => "--setro",
            DeviceMode::Writable => "--setrw",
        };
        let path = self.system().relative_to_root(device).display().to_string();
        let command =
            Command::new("blockdev", MOUNT_TIMEOUT).with_arguments([option.to_owned(), path]);
        if let Err(failure) = self.run(&command).await {
            tracing::debug!(%failure, "cannot change whether the slot accepts writes");
        }
    }

    async fn unmount(&self) -> Result<(), Failure> {
        let point = self.mount_point();
        let point_in_root = self.system().relative_to_root(&point).display().to_string();
        self.run(&Command::new("umount", MOUNT_TIMEOUT).with_arguments([point_in_root])).await?;
        // The empty folder may remain.
        fs::remove_dir(&point).ok();
        Ok(())
    }

    async fn run(&self, command: &Command) -> Result<(), Failure> {
        let answer = self.runner.run(command).await;
        let output = answer.map_err(|error| storage_failure(chain(&error).to_string()))?;
        if output.succeeded() {
            return Ok(());
        }
        Err(Failure::with_log(
            FailureKind::Storage,
            format!("{command} {}", output.describe_status()),
            &output.combined_output(),
        ))
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
        self.unmount_leftover().await?;
        let device = self.esp.find_device(slot)?;
        // An agent that was killed while it read the kernel of the slot has left it read-only.
        self.set_device_mode(&device, DeviceMode::Writable).await;
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
        self.unmount_leftover().await?;
        let device = self.esp.find_device(slot)?;
        let point = self.mount(&device).await?;
        let (esp, image_id) = (Arc::clone(&self.esp), image.image_id.clone());
        let done = run_blocking(move || {
            let copied = esp.copy_kernel(&point, slot, &image_id);
            Ok((copied, guard))
        })
        .await;
        // Also after a failed copy, because a mounted slot cannot be written. No other work starts
        // before that.
        let unmounted = self.unmount().await;
        self.set_device_mode(&device, DeviceMode::Writable).await;
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
