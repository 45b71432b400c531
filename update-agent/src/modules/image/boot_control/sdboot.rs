//! systemd-boot: an entry on trial has a counter in its name, which the loader counts down; to bless it is to rename
//! it.

mod esp;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use super::files::broken;
use super::{BootControl, System, blocking, checks, mounts, read_again};
use crate::config::ImageConfig;
use crate::durable;
use crate::model::{Failure, FailureKind};
use crate::modules::image::device::{Device, read_back, storage};
use crate::modules::image::slots::{Raw, Seen, Slot, What};
use crate::modules::image::spool::Spooled;
use crate::modules::image::unpack;
use crate::runner::{Command, Runner};

pub use self::esp::{Esp, IN_IMAGE, listed};

/// Mounting and unmounting a slot takes no longer on a disk that works.
const PATIENCE: Duration = Duration::from_mins(1);

/// The entries of an ESP, and the slots that they start.
pub struct SystemdBoot {
    esp: Arc<Esp>,
    runner: Arc<dyn Runner>,
    /// Held by the work on a slot or on the ESP itself, which goes on when nobody waits for it any longer: never two of
    /// it.
    work: Arc<Mutex<()>>,
}

impl fmt::Debug for SystemdBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemdBoot")
            .field("esp", &self.esp)
            .finish_non_exhaustive()
    }
}

impl SystemdBoot {
    /// Boot control with the ESP that is mounted at `at`, as seen from inside the managed root.
    pub fn new(system: System, runner: Arc<dyn Runner>, at: PathBuf, config: &ImageConfig) -> Self {
        Self {
            esp: Arc::new(Esp::new(system, at, config)),
            runner,
            work: Arc::default(),
        }
    }

    /// Looks at the ESP. Where its disk hangs, this work does and nothing else of the agent.
    async fn look_at<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Esp) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let esp = Arc::clone(&self.esp);
        blocking(move || work(&esp)).await
    }

    /// Changes the ESP, beside no other work.
    async fn change(
        &self,
        work: impl FnOnce(&Esp) -> Result<(), Failure> + Send + 'static,
    ) -> Result<(), Failure> {
        let alone = self.alone().await;
        let esp = Arc::clone(&self.esp);
        blocking(move || {
            let _alone = alone;
            work(&esp)
        })
        .await
    }

    fn system(&self) -> &System {
        &self.esp.system
    }

    /// Where a slot is mounted to take its kernel.
    fn point(&self) -> PathBuf {
        self.system().place.state().join("slot")
    }

    /// Unmounts what an agent that was killed left mounted: while it is, the slot can be neither written nor mounted.
    async fn release(&self) -> Result<(), Failure> {
        let point = self.system().as_seen(&self.point());
        let is_point = |mount: &mounts::Mount| mount.at == point;
        if self.system().mounts()?.iter().any(is_point) {
            self.unmount().await?;
        }
        Ok(())
    }

    async fn mount(&self, device: &Path) -> Result<PathBuf, Failure> {
        let point = self.point();
        durable::make_folder(&point, 0o700).map_err(broken)?;
        // Whatever the image holds, it is no more than files here.
        let command = Command::new("mount", PATIENCE).with([
            "-o".to_owned(),
            "ro,nodev,nosuid,noexec".to_owned(),
            self.system().as_seen(device).display().to_string(),
            self.system().as_seen(&point).display().to_string(),
        ]);
        self.run(&command).await?;
        Ok(point)
    }

    async fn unmount(&self) -> Result<(), Failure> {
        let point = self.point();
        let seen = self.system().as_seen(&point).display().to_string();
        self.run(&Command::new("umount", PATIENCE).with([seen]))
            .await?;
        // Nothing depends on the empty folder.
        fs::remove_dir(&point).ok();
        Ok(())
    }

    async fn run(&self, command: &Command) -> Result<(), Failure> {
        let answer = self.runner.run(command).await;
        let output = answer.map_err(|error| storage(chain(&error).to_string()))?;
        if output.succeeded() {
            return Ok(());
        }
        Err(Failure::with_log(
            FailureKind::Storage,
            format!("{command} {}", output.ending()),
            &output.words(),
        ))
    }

    async fn alone(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.work).lock_owned().await
    }
}

#[async_trait::async_trait]
impl BootControl for SystemdBoot {
    fn name(&self) -> &'static str {
        "systemd-boot"
    }

    async fn look(&self) -> Result<Seen, Failure> {
        self.look_at(Esp::look).await
    }

    async fn faults(&self) -> Vec<String> {
        let found = self.look_at(|esp| Ok(checks::all(esp))).await;
        found.unwrap_or_else(|failure| vec![failure.reason])
    }

    async fn room(&self, slot: Slot) -> Result<u64, Failure> {
        self.look_at(move |esp| esp.room(slot)).await
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        self.change(move |esp| esp.withdraw(slot)).await
    }

    async fn write(
        &self,
        slot: Slot,
        from: &Spooled,
        stop: &CancellationToken,
    ) -> Result<Raw, Failure> {
        let alone = self.alone().await;
        self.release().await?;
        let device = self.esp.device(slot)?;
        let (from, stop) = (from.clone(), stop.clone());
        blocking(move || {
            let _alone = alone;
            let raw = unpack::unpack(&from, Device::open(&device)?, &stop)?;
            read_back(&device, &raw, &stop)?;
            Ok(raw)
        })
        .await
    }

    async fn reread(&self, slot: Slot, raw: &Raw) -> Result<(), Failure> {
        let alone = self.alone().await;
        let device = self.esp.device(slot)?;
        read_again(alone, device, *raw).await
    }

    async fn kernel(&self, slot: Slot, what: &What) -> Result<(), Failure> {
        let alone = self.alone().await;
        self.release().await?;
        let point = self.mount(&self.esp.device(slot)?).await?;
        let (esp, image) = (Arc::clone(&self.esp), what.image_id.clone());
        let done = blocking(move || {
            let copied = esp.copy_kernel(&point, slot, &image);
            Ok((copied, alone))
        })
        .await;
        // Also if nothing was copied: a slot that stays mounted cannot be written. Until then no other work begins.
        let unmounted = self.unmount().await;
        let (copied, _alone) = done?;
        copied.and(unmounted)
    }

    async fn arm(&self, slot: Slot, what: &What, sequence: u32) -> Result<(), Failure> {
        let what = what.clone();
        let arm = move |esp: &Esp| esp.arm(slot, &what, sequence);
        self.change(arm).await
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        self.change(move |esp| esp.bless(slot)).await
    }
}

#[cfg(test)]
mod tests;
