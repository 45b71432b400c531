//! Boot control: selects the slot that starts next, and returns to the old slot if the new one was
//! not blessed.
//!
//! There are three implementations: systemd-boot, which counts the boots of an entry on trial; RAUC,
//! which controls other boot loaders; and the image tool of an earlier system, which starts a slot
//! once. The order of the writes inside each method is part of its contract. The caller is
//! responsible for the order of the calls.

mod checks;
mod efi;
mod entries;
#[cfg(test)]
mod fake;
mod files;
#[cfg(test)]
mod fuzz;
mod hard_link;
mod mounts;
mod rauc;
mod sdboot;
mod slot_mount;
mod tool;
mod units;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

pub use self::rauc::NAME as RAUC;
pub use self::slot_mount::slot_mount_options;

use self::efi::EfiVariables;
use self::mounts::MountEntry;
use self::rauc::RaucControl;
use self::sdboot::SystemdBoot;
use self::tool::ImageTool;
use super::device::{SlotDevice, read_back, storage_failure};
use super::slots::{BootObservation, RawImage, Slot, SlotImage};
use super::spool::SpooledImage;
use crate::config::{BootControlChoice, ImageConfig};
use crate::model::{Failure, FailureKind, ImageSpec};
use crate::os::{self, OsRelease};
use crate::paths::AgentPaths;
use crate::runner::Runner;

/// Default mount points of the ESP. The first one with systemd-boot is used.
const ESP_MOUNT_POINTS: [&str; 3] = ["/efi", "/boot/efi", "/boot"];

/// File systems that a reboot removes.
const MEMORY_FILE_SYSTEMS: [&str; 2] = ["tmpfs", "ramfs"];

/// Time between two checks for an ESP that is not mounted yet.
const ESP_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A way to start one of the two slots.
#[async_trait::async_trait]
pub trait BootControl: Send + Sync {
    /// Name of the boot control, for display.
    fn name(&self) -> &'static str;

    /// Time limit for `observe`, `bless` and `withdraw`. A call that takes longer hangs.
    fn call_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Reads which slot runs and what the loader would start.
    async fn observe(&self) -> Result<BootObservation, Failure>;

    /// Reasons against a trial, each a sentence with its remedy. A slot may be armed only if there
    /// are none.
    async fn faults(&self) -> Vec<String>;

    /// Why an image cannot be written on this node, as far as its update spec tells.
    fn refuse_spec(&self, _spec: &ImageSpec) -> Option<Failure> {
        None
    }

    /// Maximum size of an unpacked image, in bytes. Fails if there is no space for the image's
    /// kernel.
    async fn max_image_bytes(&self, slot: Slot) -> Result<u64, Failure>;

    /// Removes everything that starts a slot, and returns when the removal is on disk. Never
    /// removes the last entry that can start anything.
    async fn withdraw(&self, slot: Slot) -> Result<(), Failure>;

    /// Unpacks an image into a slot, and returns when it is on disk and was read back. The caller
    /// guarantees that nothing starts the slot.
    async fn write(
        &self,
        slot: Slot,
        from: &SpooledImage,
        stop: &CancellationToken,
    ) -> Result<RawImage, Failure>;

    /// Reads a slot from disk and compares it with what was written.
    async fn verify_slot(&self, slot: Slot, raw: &RawImage) -> Result<(), Failure>;

    /// Installs the kernel of a slot where the loader finds it, and returns when it is on disk.
    /// Fails, and keeps the old kernel, if the new one would not reset the machine when it cannot
    /// start, or if the image would bless itself.
    async fn install_kernel(&self, slot: Slot, image: &SlotImage) -> Result<(), Failure>;

    /// Lets the next boot try a slot, and returns when that is on disk. Each arming has its own
    /// `sequence`; a second call with the same number changes nothing.
    async fn arm(&self, slot: Slot, image: &SlotImage, sequence: u32) -> Result<(), Failure>;

    /// Makes a slot the permanent default, and returns when that is on disk.
    async fn bless(&self, slot: Slot) -> Result<(), Failure>;

    /// Confirms this boot of a slot that is known to be good, for a boot loader that counts the
    /// boots of good slots as well.
    async fn confirm_boot(&self, _slot: Slot) -> Result<(), Failure> {
        Ok(())
    }
}

/// Finds the boot control of this system. Unless one is chosen: the tool if one is configured, else
/// systemd-boot if there are its ESP and a partition for each slot, else none. Fails with advice if
/// several partitions of the disk could be a slot of systemd-boot, or if systemd-boot is chosen and
/// missing.
pub fn find(
    paths: &AgentPaths,
    runner: Arc<dyn Runner>,
    config: &ImageConfig,
) -> Result<Option<Arc<dyn BootControl>>, Failure> {
    let system = SystemInterfaces::new(paths);
    if config.boot_control == BootControlChoice::Auto
        && let Some(tool) = &config.tool
    {
        return Ok(Some(Arc::new(ImageTool::new(system, runner, tool, config))));
    }
    if config.may_use_systemd_boot()
        && let Some(esp) = find_systemd_boot(&system, config)?
    {
        return Ok(Some(Arc::new(SystemdBoot::new(system, runner, esp, config))));
    }
    match config.boot_control {
        // Never without the owner's choice: another tool may install bundles, and this agent would
        // withdraw an image that it did not write.
        BootControlChoice::Rauc => Ok(Some(Arc::new(RaucControl::new(system, runner, config)))),
        // Without an error, a node that is to run images would be managed by packages.
        BootControlChoice::SystemdBoot => Err(missing_systemd_boot()),
        BootControlChoice::Auto | BootControlChoice::None => Ok(None),
    }
}

/// Why a chosen systemd-boot cannot be used. The failure is temporary, because the ESP may be
/// mounted later.
fn missing_systemd_boot() -> Failure {
    let reason = "image.boot_control is \"systemd-boot\", but no ESP with systemd-boot is mounted at /efi, /boot/efi, /boot or \
                  image.esp, or the disk of the system has no partition root-a or root-b: mount the ESP and prepare the disk, \
                  or set image.boot_control to \"none\" to manage this node by packages";
    Failure::new(FailureKind::Unsupported, reason).into_temporary()
}

/// The ESP with systemd-boot, if there is a partition for each slot.
fn find_systemd_boot(
    system: &SystemInterfaces,
    config: &ImageConfig,
) -> Result<Option<PathBuf>, Failure> {
    let Some(esp) = usable_esp(system, config.esp.as_deref()) else {
        if let Some(esp) = &config.esp {
            tracing::warn!(esp = %esp.display(), "the configured ESP has no systemd-boot");
        }
        return Ok(None);
    };
    for slot in [Slot::A, Slot::B] {
        if system.find_slot_device(slot, Some(&esp))?.is_none() {
            let label = slot.label();
            tracing::info!(label, "the disk has no partition of this name for systemd-boot");
            return Ok(None);
        }
    }
    Ok(Some(esp))
}

/// Whether the disk has partitions for both slots, of which some may be ambiguous. If it has and no
/// boot control is found, the ESP may not be mounted yet.
pub fn has_slots(paths: &AgentPaths) -> bool {
    has_slots_with_esp(&SystemInterfaces::new(paths), None)
}

fn has_slots_with_esp(system: &SystemInterfaces, esp: Option<&Path>) -> bool {
    let mut slots = Slot::ALL.into_iter();
    slots.all(|slot| !matches!(system.find_slot_device(slot, esp), Ok(None)))
}

/// Whether the ESP may be mounted later: there are slots, no other boot control is configured, and
/// systemd-boot may have started this boot. If the firmware's variables name another loader or none,
/// waiting is useless.
pub fn esp_may_be_late(paths: &AgentPaths, config: &ImageConfig) -> bool {
    if !config.may_use_systemd_boot() || !has_slots(paths) {
        return false;
    }
    let system = SystemInterfaces::new(paths);
    match system.efi.read_text("LoaderInfo") {
        Ok(Some(loader)) => loader.starts_with("systemd-boot"),
        // Not set; or efivarfs is not mounted yet, on a machine with UEFI firmware.
        Ok(None) => system.efi.may_be_unmounted(),
        Err(_) => true,
    }
}

/// Whether a path of this process is in a file system that a reboot removes.
pub fn is_in_memory(paths: &AgentPaths, path: &Path) -> bool {
    let system = SystemInterfaces::new(paths);
    let mounts = system.mounts().unwrap_or_default();
    let mount = mounts::find_mount(&mounts, &system.relative_to_root(path));
    mount.is_some_and(|mount| MEMORY_FILE_SYSTEMS.contains(&mount.fs_type.as_str()))
}

/// Checks that a unit confirms the boots of RAUC's boot loader while the node is not enrolled; else
/// says what to change.
pub fn check_rauc_confirm_unit(paths: &AgentPaths) -> Result<(), String> {
    let state = SystemInterfaces::new(paths).relative_to_root(paths.state());
    units::check_rauc_confirm_unit(paths.root(), &state)
}

/// Waits until an ESP with systemd-boot is mounted at one of the expected paths, on a system with a
/// partition for each slot; without an end if none ever is. If its disk hangs, only this task hangs.
pub fn wait_for_esp(
    paths: &AgentPaths,
    config: &ImageConfig,
) -> impl Future<Output = ()> + Send + use<> {
    let (system, configured) = (SystemInterfaces::new(paths), config.esp.clone());
    async move {
        loop {
            let (system, configured) = (system.clone(), configured.clone());
            // An ESP without slots is not enough: the agent restarts when the wait ends.
            let look = move || {
                let esp = usable_esp(&system, configured.as_deref());
                esp.is_some_and(|esp| has_slots_with_esp(&system, Some(&esp)))
            };
            if tokio::task::spawn_blocking(look).await.unwrap_or_default() {
                return;
            }
            tokio::time::sleep(ESP_CHECK_INTERVAL).await;
        }
    }
}

/// The ESP to use: the configured one, else the first one found. `None` if it has no systemd-boot.
fn usable_esp(system: &SystemInterfaces, configured: Option<&Path>) -> Option<PathBuf> {
    let esp = match configured {
        Some(esp) => esp.to_owned(),
        None => find_esp(system)?,
    };
    has_systemd_boot(&system.resolve_in_root(&esp)).then_some(esp)
}

/// The first default mount point with systemd-boot.
fn find_esp(system: &SystemInterfaces) -> Option<PathBuf> {
    let mounts = system.mounts().ok()?;
    let mut esps = ESP_MOUNT_POINTS.iter().map(Path::new);
    let mounted_esp = esps.find(|esp| {
        // If systemd mounts it on demand, its type is `autofs` until the first access.
        let mount = mounts.iter().rfind(|mount| mount.mount_point == **esp);
        mount.is_some_and(|mount| mount.fs_type == "vfat" || mount.fs_type == "autofs")
            && has_systemd_boot(&system.resolve_in_root(esp))
    });
    mounted_esp.map(Path::to_owned)
}

/// Whether a folder is an ESP on which systemd-boot is installed.
fn has_systemd_boot(esp: &Path) -> bool {
    let has_binary = ["systemd", "BOOT"].iter().any(|folder| {
        let folder = fs::read_dir(esp.join("EFI").join(folder));
        let mut files = folder.into_iter().flatten().flatten();
        files.any(|file| {
            let name = file.file_name().to_string_lossy().to_ascii_lowercase();
            let stem = name.strip_suffix(".efi").unwrap_or_default();
            stem.starts_with("systemd-boot") || stem.starts_with("boot")
        })
    });
    has_binary && esp.join("loader").is_dir()
}

/// The interfaces of the kernel, the firmware and the system that boot control reads.
#[derive(Clone, Debug)]
struct SystemInterfaces {
    paths: AgentPaths,
    /// Path of sysfs.
    sys: PathBuf,
    /// EFI variables of the firmware.
    efi: EfiVariables,
    /// Path of the mount table of this process.
    mountinfo: PathBuf,
    /// Path of the kernel's command line.
    cmdline: PathBuf,
    boot_id: PathBuf,
}

impl SystemInterfaces {
    /// The interfaces of the system in the managed root.
    fn new(paths: &AgentPaths) -> Self {
        Self {
            sys: paths.inside("/sys"),
            efi: EfiVariables::new(paths.inside("/sys/firmware/efi/efivars")),
            mountinfo: paths.inside("/proc/self/mountinfo"),
            cmdline: paths.inside("/proc/cmdline"),
            boot_id: paths.inside("/proc/sys/kernel/random/boot_id"),
            paths: paths.clone(),
        }
    }

    /// Converts a path inside the managed root to a path of this process.
    fn resolve_in_root(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix("/").unwrap_or(path);
        self.paths.root().join(relative)
    }

    /// Converts a path of this process to a path inside the managed root.
    fn relative_to_root(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(self.paths.root()) {
            Ok(relative) => Path::new("/").join(relative),
            Err(_) => path.to_owned(),
        }
    }

    fn mounts(&self) -> Result<Vec<MountEntry>, Failure> {
        mounts::read_mounts(&self.mountinfo).map_err(|error| {
            apply_failure(format!("cannot read the mounts of the system: {error}"))
        })
    }

    /// The disk of the running system, as its folder in sysfs, if it can be determined. `esp` is
    /// the mount point of the ESP, if it is mounted.
    fn system_disk(&self, esp: Option<&Path>) -> Option<PathBuf> {
        mounts::find_system_disk(&self.mounts().ok()?, esp, &self.sys, self.may_run_slot())
    }

    /// Whether the command line or the loader shows that the system runs from a slot, or the
    /// loader's variables cannot be read.
    fn may_run_slot(&self) -> bool {
        if mounts::slot_of_cmdline(&self.cmdline()).is_some() {
            return true;
        }
        match self.efi.read_text("LoaderEntrySelected") {
            Ok(Some(id)) => id.to_ascii_lowercase().starts_with(entries::SORT_KEY),
            Ok(None) => self.efi.may_be_unmounted(),
            Err(_) => true,
        }
    }

    /// The device of a slot, which is on the disk of the running system. `None` if there is none,
    /// or if the disk is unknown and the system does not seem to run from a slot. Fails if several
    /// partitions have its name, or if the slots are on several disks of which none is known.
    fn find_slot_device(&self, slot: Slot, esp: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
        let disk = self.system_disk(esp);
        if disk.is_none() && !self.may_run_slot() {
            return Ok(None);
        }
        let found = SlotDevice::find(slot.label(), &self.sys, disk.as_deref())?;
        if disk.is_none() && mounts::disks_with_slots(&self.sys).len() > 1 {
            return Err(storage_failure(
                "the partitions root-a and root-b are on different disks, and nothing shows which disk the system runs from, \
                 so no image can be written: disconnect the disk of another machine, then restart the agent"
                    .to_owned(),
            ));
        }
        Ok(found)
    }

    fn boot_id(&self) -> Result<String, Failure> {
        os::first_line(&self.boot_id)
            .ok_or_else(|| apply_failure("cannot read the ID of this boot from the kernel"))
    }

    /// The kernel's command line; empty if it cannot be read.
    fn cmdline(&self) -> String {
        os::first_line(&self.cmdline).unwrap_or_default()
    }

    /// Profile and ID of the running image.
    fn running_image(&self) -> Option<(String, String)> {
        let image = OsRelease::read(&self.paths).booted_image()?;
        Some((image.profile_name, image.image_id))
    }
}

fn apply_failure(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Apply, reason)
}

/// Reads a slot from its device and compares it with what was written. No other work on the slot
/// runs meanwhile. Stops if the caller is dropped.
async fn reread_slot(
    guard: OwnedMutexGuard<()>,
    device: PathBuf,
    raw: RawImage,
) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let inner = stop.clone();
    let _stops = stop.drop_guard();
    run_blocking(move || {
        let _guard = guard;
        read_back(&device, &raw, &inner)
    })
    .await
}

/// Runs blocking work on a thread where it may block. The work continues if the caller is dropped.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(apply_failure(format!("the work on a slot was aborted: {error}"))),
    }
}

#[cfg(test)]
mod tests;
