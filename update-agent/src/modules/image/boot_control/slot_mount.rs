//! Mounts a slot read-only, to read files of an image that does not run.

mod read_only;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;

use super::files::file_failure;
use super::mounts;
use super::{SystemInterfaces, run_blocking};
use crate::durable;
use crate::model::{Failure, FailureKind};
use crate::modules::image::device::storage_failure;
use crate::runner::{Command, Runner};

pub use self::read_only::slot_mount_options;

/// Time limit for mounting and unmounting a slot.
const MOUNT_TIMEOUT: Duration = Duration::from_mins(1);

/// The mount point for a slot. One slot at a time is mounted there.
pub struct SlotMount {
    system: SystemInterfaces,
    runner: Arc<dyn Runner>,
}

impl SlotMount {
    pub fn new(system: SystemInterfaces, runner: Arc<dyn Runner>) -> Self {
        Self { system, runner }
    }

    fn mount_point(&self) -> PathBuf {
        self.system.paths.state().join("slot")
    }

    /// Prepares a device to be written or mounted: a killed agent may have left a slot mounted and read-only.
    pub async fn prepare(&self, device: &Path) -> Result<(), Failure> {
        let point = self.system.relative_to_root(&self.mount_point());
        let is_point = |mount: &mounts::MountEntry| mount.mount_point == point;
        if self.system.mounts()?.iter().any(is_point) {
            return self.unmount(device).await;
        }
        self.accept_writes(device).await;
        Ok(())
    }

    /// Mounts a device. Returns the mount point.
    pub async fn mount(&self, device: &Path) -> Result<PathBuf, Failure> {
        let point = self.mount_point();
        durable::create_folder(&point, 0o700).map_err(file_failure)?;
        let path = device.to_owned();
        let superblock = run_blocking(move || {
            Ok((slot_mount_options(&path)?, read_only::is_known_file_system(&path)?))
        });
        let (options, is_known) = superblock.await?;
        match self.refuse_writes(device).await {
            Err(failure) if !is_known => {
                return Err(storage_failure(format!(
                    "the slot has a file system whose mount may write to it, and the device cannot be made read-only: {failure}; \
                     install blockdev (util-linux), or publish an image with EROFS, SquashFS, ext4, XFS, F2FS or btrfs"
                )));
            }
            Err(failure) => {
                tracing::debug!(%failure, "only the mount options prevent writes to the slot");
            }
            Ok(()) => {}
        }
        let command = Command::new("mount", MOUNT_TIMEOUT).with_arguments([
            "-o".to_owned(),
            options,
            self.system.relative_to_root(device).display().to_string(),
            self.system.relative_to_root(&point).display().to_string(),
        ]);
        let mounted = self.run(&command).await;
        if mounted.is_err() {
            self.accept_writes(device).await;
        }
        mounted.map(|()| point)
    }

    pub async fn unmount(&self, device: &Path) -> Result<(), Failure> {
        let point = self.mount_point();
        let point_in_root = self.system.relative_to_root(&point).display().to_string();
        let unmounted =
            self.run(&Command::new("umount", MOUNT_TIMEOUT).with_arguments([point_in_root])).await;
        self.accept_writes(device).await;
        unmounted?;
        // The empty folder may remain.
        fs::remove_dir(&point).ok();
        Ok(())
    }

    /// Lets the kernel refuse writes to a slot. The mount options prevent the usual write of a read-only mount, the replay
    /// of the journal; this prevents the others, such as the removal of orphans, and those of an unknown file system. A
    /// system without the program relies on the options.
    async fn refuse_writes(&self, device: &Path) -> Result<(), Failure> {
        self.run(&self.blockdev_command("--setro", device)).await
    }

    /// Lets the kernel accept writes to a slot again.
    async fn accept_writes(&self, device: &Path) {
        if let Err(failure) = self.run(&self.blockdev_command("--setrw", device)).await {
            tracing::debug!(%failure, "cannot let the slot accept writes");
        }
    }

    fn blockdev_command(&self, option: &str, device: &Path) -> Command {
        let path = self.system.relative_to_root(device).display().to_string();
        Command::new("blockdev", MOUNT_TIMEOUT).with_arguments([option.to_owned(), path])
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
}
