//! Boot control: which slot starts next, who says so, and how a slot that was not blessed is left again.
//!
//! Two ways are known: systemd-boot, which counts the boots of an entry on trial, and the image tool of an earlier
//! system, which starts a slot once. The order of writes within each method is part of its contract; the order of the
//! methods is kept by the module that calls them.

mod checks;
mod efi;
mod entries;
#[cfg(test)]
mod fake;
mod files;
mod mounts;
mod sdboot;
mod tool;
mod units;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use self::efi::Efi;
use self::mounts::Mount;
use self::sdboot::SystemdBoot;
use self::tool::Tool;
use super::device::{Device, read_back};
use super::slots::{Raw, Seen, Slot, What};
use super::spool::Spooled;
use crate::config::ImageConfig;
use crate::model::{Failure, FailureKind, ImageWish};
use crate::os::{self, OsRelease};
use crate::place::Place;
use crate::runner::Runner;

/// Where an ESP is mounted, unless it is configured; the first that has systemd-boot is taken.
const ESPS: [&str; 3] = ["/efi", "/boot/efi", "/boot"];

/// How often is looked for an ESP that is not there.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A way to start one slot or the other.
#[async_trait::async_trait]
pub trait BootControl: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// How long it may take to look, to bless or to withdraw. After that something hangs.
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// What runs, and what the loader would start.
    async fn look(&self) -> Result<Seen, Failure>;

    /// What stands against a trial, each as a sentence that says what to do. Empty: a slot may be armed.
    async fn faults(&self) -> Vec<String>;

    /// Why an image cannot be written here, as far as its wish tells.
    fn refuses(&self, _wish: &ImageWish) -> Option<Failure> {
        None
    }

    /// How many bytes an image may have, unpacked. Fails if there is no room for its kernel.
    async fn room(&self, slot: Slot) -> Result<u64, Failure>;

    /// Removes what would start a slot, and returns when that is on the disk. Never removes the last that can start
    /// anything.
    async fn withdraw(&self, slot: Slot) -> Result<(), Failure>;

    /// Unpacks an image into a slot, and returns when it is on the disk and was read back. Never called for a slot that
    /// something starts.
    async fn write(
        &self,
        slot: Slot,
        from: &Spooled,
        stop: &CancellationToken,
    ) -> Result<Raw, Failure>;

    /// Reads a slot from the disk and compares it with what was written.
    async fn reread(&self, slot: Slot, raw: &Raw) -> Result<(), Failure>;

    /// Puts the kernel of a slot where the loader finds it, and returns when it is on the disk. Fails, and leaves the
    /// kernel that was there, if the new one would not reset the machine when it cannot start, or if the image would
    /// keep itself.
    async fn kernel(&self, slot: Slot, what: &What) -> Result<(), Failure>;

    /// Lets the next boot try a slot, and returns when that is on the disk. `sequence` is never given twice; a second
    /// call with the same changes nothing.
    async fn arm(&self, slot: Slot, what: &What, sequence: u32) -> Result<(), Failure>;

    /// Makes a slot the one that starts from now on, and returns when that is on the disk.
    async fn bless(&self, slot: Slot) -> Result<(), Failure>;
}

/// The boot control of this system. The tool, if one is configured; else systemd-boot, if there are its ESP and a
/// partition for each slot; else none.
pub fn find(
    place: &Place,
    runner: Arc<dyn Runner>,
    config: &ImageConfig,
) -> Option<Arc<dyn BootControl>> {
    let system = System::of(place);
    if let Some(tool) = &config.tool {
        return Some(Arc::new(Tool::new(system, runner, tool, config)));
    }
    let Some(esp) = usable_esp(&system, config.esp.as_deref()) else {
        if let Some(esp) = &config.esp {
            tracing::warn!(esp = %esp.display(), "the configured ESP has no systemd-boot");
        }
        return None;
    };
    for slot in [Slot::A, Slot::B] {
        if let Err(failure) = Device::find(slot.label(), &system.sys) {
            tracing::info!(%failure, "there is no second slot: this system is not updated by images");
            return None;
        }
    }
    Some(Arc::new(SystemdBoot::new(system, runner, esp, config)))
}

/// Whether the disk has a partition for each slot. Where no boot control is found all the same, the ESP may only not be
/// mounted yet.
pub fn has_slots(place: &Place) -> bool {
    let sys = place.inside("/sys");
    let mut slots = Slot::ALL.into_iter();
    slots.all(|slot| Device::find(slot.label(), &sys).is_ok())
}

/// Whether the ESP may only be late: there are slots, no tool starts them, and systemd-boot may have started this boot.
/// Where the firmware's variables tell of another loader or of none there is nothing to wait for.
pub fn may_be_late(place: &Place, config: &ImageConfig) -> bool {
    if config.tool.is_some() || !has_slots(place) {
        return false;
    }
    let system = System::of(place);
    match system.efi.text("LoaderInfo") {
        Ok(Some(loader)) => loader.starts_with("systemd-boot"),
        // Not set; or the variables are not mounted yet, on a machine with such firmware.
        Ok(None) => system.efi.is_hidden(),
        Err(_) => true,
    }
}

/// Waits until there is an ESP with systemd-boot where one is looked for, for ever if none comes. Where its disk hangs,
/// nothing else does.
pub fn has_come(place: &Place, config: &ImageConfig) -> impl Future<Output = ()> + Send + use<> {
    let (system, configured) = (System::of(place), config.esp.clone());
    async move {
        loop {
            let (system, configured) = (system.clone(), configured.clone());
            let look = move || usable_esp(&system, configured.as_deref()).is_some();
            if tokio::task::spawn_blocking(look).await.unwrap_or_default() {
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

/// The ESP to use: the configured one, else the first that is found. None if it has no systemd-boot.
fn usable_esp(system: &System, configured: Option<&Path>) -> Option<PathBuf> {
    let esp = match configured {
        Some(esp) => esp.to_owned(),
        None => esp(system)?,
    };
    has_systemd_boot(&system.inside(&esp)).then_some(esp)
}

/// The first mount with systemd-boot.
fn esp(system: &System) -> Option<PathBuf> {
    let mounts = system.mounts().ok()?;
    let mut esps = ESPS.iter().map(Path::new);
    let found = esps.find(|esp| {
        // Where systemd mounts it on demand it is VFAT only after it was looked at.
        let mount = mounts.iter().rfind(|mount| mount.at == **esp);
        mount.is_some_and(|mount| mount.kind == "vfat" || mount.kind == "autofs")
            && has_systemd_boot(&system.inside(esp))
    });
    found.map(Path::to_owned)
}

/// Whether a folder is an ESP to which systemd-boot was installed.
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

/// Where the kernel and the system tell what they know.
#[derive(Clone, Debug)]
struct System {
    place: Place,
    /// sysfs.
    sys: PathBuf,
    /// The firmware's variables.
    efi: Efi,
    /// The mounts of this process.
    mountinfo: PathBuf,
    /// The kernel's command line.
    cmdline: PathBuf,
    /// The id of this boot.
    boot_id: PathBuf,
}

impl System {
    /// That of the managed root.
    fn of(place: &Place) -> Self {
        Self {
            sys: place.inside("/sys"),
            efi: Efi::new(place.inside("/sys/firmware/efi/efivars")),
            mountinfo: place.inside("/proc/self/mountinfo"),
            cmdline: place.inside("/proc/cmdline"),
            boot_id: place.inside("/proc/sys/kernel/random/boot_id"),
            place: place.clone(),
        }
    }

    /// A file that is given as seen from inside the managed root.
    fn inside(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix("/").unwrap_or(path);
        self.place.root().join(relative)
    }

    /// A file as programs see it that run inside the managed root.
    fn as_seen(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(self.place.root()) {
            Ok(relative) => Path::new("/").join(relative),
            Err(_) => path.to_owned(),
        }
    }

    fn mounts(&self) -> Result<Vec<Mount>, Failure> {
        mounts::read(&self.mountinfo)
            .map_err(|error| failed(format!("cannot read the mounts of the system: {error}")))
    }

    fn boot_id(&self) -> Result<String, Failure> {
        os::first_line(&self.boot_id)
            .ok_or_else(|| failed("the kernel does not tell the id of this boot"))
    }

    /// The kernel's command line; empty if it cannot be read.
    fn cmdline(&self) -> String {
        os::first_line(&self.cmdline).unwrap_or_default()
    }

    /// The profile and id of the image that runs.
    fn image(&self) -> Option<(String, String)> {
        let image = OsRelease::of(&self.place).booted_image()?;
        Some((image.profile_name, image.image_id))
    }
}

/// Boot control could not do what it should.
fn failed(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Apply, reason)
}

/// Reads a slot from its device, beside no other work, and compares it with what was written. Who does not wait for the
/// answer does not need it.
async fn read_again(alone: OwnedMutexGuard<()>, device: PathBuf, raw: Raw) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let inner = stop.clone();
    let _stops = stop.drop_guard();
    blocking(move || {
        let _alone = alone;
        read_back(&device, &raw, &inner)
    })
    .await
}

/// Does work that blocks where it may. The work goes on if nobody waits for it any longer.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(failed(format!(
            "the work on a slot came to no end: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests;
