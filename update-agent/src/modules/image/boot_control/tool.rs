//! The image tool of an earlier system, `os-update-tool.sh`, which writes whole-disk images and
//! starts a slot once.
//!
//! This module works around the faults of the tool:
//!
//! | Fault | Workaround |
//! | --- | --- |
//! | `-c` blesses whatever runs | called only if the slot to bless is the running one |
//! | `-a` accepts a half-prepared slot | the backup kernel is removed before `-w`, recorded after it, compared before `-a` |
//! | kernels are copied with dd | compared after `-a`; if they differ, the one-shot order is cleared |
//! | a call continues after its timeout | the tool holds a lock ([`calls`]); no other call starts meanwhile |
//! | a slot is started once, and nothing counts boots | `panic=` and a watchdog are required |
//! | there is no trace of a one-shot order that was followed | a mark is stored before `-a`, and removed when the order is cleared or the slot is blessed |
//! | characters in paths, `.zst`, free space | checked before the call, and at planning as far as possible |
//! | `--dev`, `-r` | never used |
mod calls;
mod loader_variables;
mod names;
mod slot_state;
mod spool_link;
mod tool_record;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use self::loader_variables::LoaderVariables;
use self::names::{is_kernel, slot_of_partition, started_and_other_kernel};
use self::spool_link::is_accepted_path;
use self::tool_record::{ToolRecord, TrialMark};
use super::files::{self, file_failure};
use super::mounts::{self, Partition};
use super::{BootControl, SystemInterfaces, apply_failure, checks, reread_slot, run_blocking};
use crate::config::ImageConfig;
use crate::durable;
use crate::model::{Failure, FailureKind, ImageSpec};
use crate::modules::image::device::storage_failure;
use crate::modules::image::slots::{BootEntry, BootObservation, RawImage, Slot, SlotImage};
use crate::modules::image::spool::SpooledImage;
use crate::modules::image::uki;
use crate::os::OsRelease;
use crate::runner::Runner;

const DEFAULT_ESP_MOUNT_POINT: &str = "/boot/efi";

/// Folder of the two kernels, relative to the ESP.
const KERNELS_FOLDER: &str = "EFI/Linux";

/// Kernel of the slot that was written last, relative to the ESP. The tool removes it when the slot
/// is blessed.
const BACKUP_KERNEL: &str = "EFI/Linux/os-update-tool-data/linux.bak";

/// Folder in which the tool unpacks images.
const UNPACK_FOLDER: &str = "/opt/OS/abupdate";

/// Free space that the tool needs there, in bytes.
const MIN_UNPACK_BYTES: u64 = 2500 << 20;

/// File with the build date of the image, for images without a version in os-release(5).
const IMAGE_ID_FILE: &str = "/etc/image-id";

/// Why a machine needs a watchdog.
const NO_BOOT_COUNTING: &str = "the image tool starts a slot without counting its boots, so only a watchdog can end a boot that hangs";

/// Time limit of a call that reads the state.
const QUERY_TIMEOUT: Duration = Duration::from_mins(2);

/// Time limit of a call that changes which slot starts.
const CHANGE_TIMEOUT: Duration = Duration::from_mins(5);

/// Time limit of a call that writes an image.
const WRITE_TIMEOUT: Duration = Duration::from_hours(1);

/// Time limit for `observe`, `bless` and `withdraw`, each of which reads the state first. Blessing
/// copies kernels.
const CALL_TIMEOUT: Duration = Duration::from_mins(6);

/// Boot control with the tool.
pub struct ImageTool {
    system: SystemInterfaces,
    runner: Arc<dyn Runner>,
    program: String,
    esp: PathBuf,
    /// Held by work on a slot, which continues if the caller is dropped. It must not run
    /// concurrently.
    work: Arc<Mutex<()>>,
}

impl fmt::Debug for ImageTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageTool")
            .field("program", &self.program)
            .field("esp", &self.esp)
            .finish_non_exhaustive()
    }
}

impl ImageTool {
    /// Boot control with the program at `tool`, a path inside the managed root.
    pub fn new(
        system: SystemInterfaces,
        runner: Arc<dyn Runner>,
        tool: &Path,
        config: &ImageConfig,
    ) -> Self {
        let esp = config.esp.as_deref().unwrap_or(Path::new(DEFAULT_ESP_MOUNT_POINT));
        Self {
            esp: system.resolve_in_root(esp),
            system,
            runner,
            program: tool.display().to_string(),
            work: Arc::default(),
        }
    }

    async fn lock_work(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.work).lock_owned().await
    }

    /// Runs work on the ESP, whose disk may hang.
    async fn run_on_esp<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let esp = self.esp.clone();
        run_blocking(move || work(&esp)).await
    }

    fn read_loader_variables(&self) -> Result<LoaderVariables, Failure> {
        LoaderVariables::read(&self.system.efi)
    }

    /// Path of the device of a slot, in the `/dev` of the managed root.
    fn find_device(&self, slot: Slot) -> Result<PathBuf, Failure> {
        let dev = self.system.paths.inside("/dev");
        // The mapped device exists if the disk is encrypted.
        let mapped = dev.join(format!("mapper/rootfs_{}", super::entries::slot_letter(slot)));
        if mapped.exists() {
            return Ok(mapped);
        }
        let disk = self.system.system_disk(Some(&self.system.relative_to_root(&self.esp)));
        let candidates: Vec<Partition> = mounts::read_partitions(&self.system.sys)
            .into_iter()
            .filter(|partition| slot_of_partition(partition) == Some(slot))
            .filter(|partition| disk.is_none() || partition.disk == disk)
            .collect();
        match candidates.as_slice() {
            [one] => Ok(dev.join(&one.node)),
            _ => Err(storage_failure(format!(
                "slot {} has {} partitions with the label rootfs on the disk of the running system, and must have \
                 exactly one: give its partitions 2 and 6 names that begin with rootfs, and disconnect the disks of \
                 other machines",
                super::entries::slot_letter(slot),
                candidates.len()
            ))),
        }
    }

    fn running_image(&self) -> Option<(String, String)> {
        self.system.running_image().or_else(|| {
            let profile = OsRelease::read(&self.system.paths).image_id;
            let text = fs::read_to_string(self.system.paths.inside(IMAGE_ID_FILE)).ok()?;
            let mut lines = text.lines().map(str::trim);
            let built = lines.find_map(|line| line.strip_prefix("IMAGE_BUILD_DATE="))?;
            let built = built.trim_matches('"').to_owned();
            (!profile.is_empty() && !built.is_empty()).then_some((profile, built))
        })
    }

    fn record_path(&self) -> PathBuf {
        self.system.paths.state().join("image-tool.json")
    }

    /// Fails unless the backup kernel is the complete kernel of this image. Returns the record.
    async fn check_backup_kernel(&self, image: &SlotImage) -> Result<ToolRecord, Failure> {
        let note = ToolRecord::read(&self.record_path())?;
        let note = note.filter(|note| note.file == image.file).ok_or_else(|| {
            apply_failure(format!(
                "the image {} was not written completely by {}: write it again",
                image.image_id, self.program
            ))
        })?;
        let backup_sha256 =
            self.run_on_esp(|esp| files::file_sha256(&esp.join(BACKUP_KERNEL))).await?;
        if backup_sha256 == note.kernel {
            return Ok(note);
        }
        Err(apply_failure(format!(
            "{BACKUP_KERNEL} is not the kernel that {} stored there: write the image again",
            self.program
        )))
    }
}

/// Fails if the tool needs more free space than there is.
fn check_unpack_space(free: u64) -> Result<(), Failure> {
    if free >= MIN_UNPACK_BYTES {
        return Ok(());
    }
    Err(storage_failure(format!(
        "the image tool needs {} MiB free below {UNPACK_FOLDER}, and {} MiB are free: remove files that are not needed",
        MIN_UNPACK_BYTES >> 20,
        free >> 20
    )))
}

#[async_trait::async_trait]
impl BootControl for ImageTool {
    fn name(&self) -> &'static str {
        "os-update-tool"
    }

    fn call_timeout(&self) -> Duration {
        CALL_TIMEOUT
    }

    async fn observe(&self) -> Result<BootObservation, Failure> {
        let booted = self.find_booted_slot().await?;
        let boot_id = self.system.boot_id()?;
        let variables = self.read_loader_variables()?;
        let (_, other) = started_and_other_kernel(&variables.selected);
        // Without a default there was no update yet: the running slot is the default.
        let runs = if is_kernel(variables.default.as_deref(), other) {
            BootEntry::OneShot
        } else {
            BootEntry::Plain
        };
        let (a, b) = match booted {
            Some(Slot::A) => (runs, self.inactive_slot_entry(Slot::B, &boot_id, &variables).await?),
            Some(Slot::B) => (self.inactive_slot_entry(Slot::A, &boot_id, &variables).await?, runs),
            None => (BootEntry::Absent, BootEntry::Absent),
        };
        Ok(BootObservation {
            booted,
            boot_id,
            image: self.running_image(),
            a,
            b,
            foreign: Vec::new(),
        })
    }

    async fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let Err(failure) = self.find_booted_slot().await {
            faults.push(failure.reason);
        }
        if let Err(failure) = self.read_loader_variables() {
            faults.push(failure.reason);
        }
        // Nothing counts boots here, so only a watchdog and `panic=` end a boot that hangs.
        faults.extend(checks::check_watchdog(&self.system.sys, NO_BOOT_COUNTING));
        if let Err(why) = checks::check_panic_option(&self.system.cmdline()) {
            faults.push(format!("the running kernel: {why}"));
        }
        if !is_accepted_path(self.system.paths.state()) {
            faults.push(format!(
                "the image tool does not accept a path such as {}: use a state directory whose path has only letters, digits \
                 and ._/-",
                self.system.paths.state().display()
            ));
        }
        faults
    }

    /// The file's content is known only after the download. A file name with a known extension
    /// saves the download.
    fn refuse_spec(&self, spec: &ImageSpec) -> Option<Failure> {
        let path = spec.url.split(['?', '#']).next().unwrap_or_default();
        let ending = Path::new(path).extension()?;
        ending.eq_ignore_ascii_case("zst").then(spool_link::zstd_unsupported)
    }

    async fn max_image_bytes(&self, _slot: Slot) -> Result<u64, Failure> {
        let folder = self.system.paths.inside(UNPACK_FOLDER);
        let there = folder.ancestors().find(|folder| folder.is_dir());
        let there = there.unwrap_or(Path::new("/"));
        let stats = rustix::fs::statvfs(there).map_err(|error| {
            storage_failure(format!("cannot look at {}: {error}", there.display()))
        })?;
        let free = stats.f_bavail.saturating_mul(stats.f_frsize);
        check_unpack_space(free)?;
        Ok(free)
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        // A running call could give its order after the order was cleared.
        self.check_no_call_running()?;
        let observed = self.observe().await?;
        // The running slot has no order, and its mark is kept: it may be the only evidence of the
        // trial.
        if observed.booted == Some(slot.other()) {
            match observed.entry(slot) {
                BootEntry::OneShot | BootEntry::Invalid(_) => self.clear_one_shot().await?,
                BootEntry::Plain => {
                    return Err(apply_failure(
                        "the slot is the default: without it, the boot loader could not start anything",
                    ));
                }
                BootEntry::Absent | BootEntry::Counted { .. } => {}
            }
            // The order is cleared first: the mark must exist as long as the order may.
            ToolRecord::remove_mark(&self.record_path(), slot)?;
        }
        self.run_on_esp(files::flush).await
    }

    async fn write(
        &self,
        slot: Slot,
        from: &SpooledImage,
        stop: &CancellationToken,
    ) -> Result<RawImage, Failure> {
        let guard = self.lock_work().await;
        self.check_no_call_running()?;
        if self.find_booted_slot().await? != Some(slot.other()) {
            return Err(apply_failure(format!(
                "{} writes the slot that does not run, and slot {} is not that slot",
                self.program,
                super::entries::slot_letter(slot)
            )));
        }
        let link = spool_link::create_link(from)?;
        // The backup kernel of an earlier image must not be mistaken for that of this one.
        self.withdraw(slot).await?;
        durable::remove_file(&self.record_path()).map_err(file_failure)?;
        self.run_on_esp(|esp| {
            durable::remove_file(&esp.join(BACKUP_KERNEL)).map_err(file_failure)?;
            files::flush(esp)
        })
        .await?;
        if stop.is_cancelled() {
            return Err(Failure::new(
                FailureKind::Interrupted,
                "the agent was stopped before the image was written",
            ));
        }
        let path = self.system.relative_to_root(link.path()).display().to_string();
        // The tool compares the data that it writes with this digest, which is the signed one.
        let digest = from.sha256.to_string();
        self.run_change(WRITE_TIMEOUT, &["-w", "-u", &path, "-s", &digest]).await?;
        let backup_kernel = self.esp.join(BACKUP_KERNEL);
        let device = self.find_device(slot)?;
        let (kernel, raw) = run_blocking(move || {
            let _guard = guard;
            Ok((files::file_sha256(&backup_kernel)?, files::file_digest(&device)?))
        })
        .await?;
        // The tool finished, so the slot may be armed from here on.
        let note = ToolRecord { file: from.sha256, kernel, mark: None };
        note.write(&self.record_path())?;
        Ok(raw)
    }

    async fn verify_slot(&self, slot: Slot, raw: &RawImage) -> Result<(), Failure> {
        let guard = self.lock_work().await;
        let device = self.find_device(slot)?;
        reread_slot(guard, device, *raw).await
    }

    async fn install_kernel(&self, slot: Slot, image: &SlotImage) -> Result<(), Failure> {
        // The tool stored the backup kernel when it wrote the slot; `-a` installs it.
        self.check_backup_kernel(image).await?;
        let result = self.run_on_esp(|esp| Ok(uki::read_cmdline(&esp.join(BACKUP_KERNEL)))).await?;
        result.and_then(|cmdline| checks::check_kernel_cmdline(&cmdline, slot)).map_err(|why| {
            apply_failure(format!(
                "the kernel of the image {} cannot be tried: {why}",
                image.image_id
            ))
        })
    }

    async fn arm(&self, slot: Slot, image: &SlotImage, _sequence: u32) -> Result<(), Failure> {
        self.check_no_call_running()?;
        let mut note = self.check_backup_kernel(image).await?;
        if self.find_booted_slot().await? != Some(slot.other()) {
            return Err(apply_failure(format!(
                "{} arms the slot that does not run, and slot {} is not that slot",
                self.program,
                super::entries::slot_letter(slot)
            )));
        }
        // An agent that was killed before its check left this order. Nothing may start a kernel
        // while it is copied.
        if self.read_loader_variables()?.once.is_some() {
            self.clear_one_shot().await?;
        }
        // The mark must be on disk before the order. Without it, an image that panics before it
        // records its boot would look as if it had never been started, and would be armed again
        // without end. So after a power cut between mark and order, an image that was never
        // started looks as if it had failed, and only a person can permit a retry. An agent that is
        // killed there does no harm: the mark is ignored in the boot that set it.
        note.mark = Some(TrialMark { slot, boot_id: self.system.boot_id()? });
        note.write(&self.record_path())?;
        let result = match self.run_change(CHANGE_TIMEOUT, &["-a"]).await {
            Ok(()) => self.check_one_shot(&note).await,
            error => error,
        };
        // A call that is still running could give its order after the order was cleared. Then the
        // mark is kept, and the order is checked at each observation.
        if result.is_err() && self.check_no_call_running().is_ok() {
            // A partly armed slot counts as untried. The order is cleared first: the mark must
            // exist as long as the order may.
            self.clear_one_shot().await?;
            ToolRecord::remove_mark(&self.record_path(), slot)?;
        }
        result
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        let observed = self.observe().await?;
        if observed.booted != Some(slot) {
            return Err(apply_failure(format!(
                "{} would bless the running slot, and slot {} is not that slot",
                self.program,
                super::entries::slot_letter(slot)
            )));
        }
        // An earlier call may have made the slot the default already.
        if *observed.entry(slot) != BootEntry::Plain {
            self.run_change(CHANGE_TIMEOUT, &["-c"]).await?;
            let variables = self.read_loader_variables()?;
            if !is_kernel(
                variables.default.as_deref(),
                started_and_other_kernel(&variables.selected).0,
            ) {
                return Err(apply_failure(format!(
                    "{} -c succeeded, but the running kernel is not the default",
                    self.program
                )));
            }
        }
        // This removes the mark too: the default slot is not on trial.
        durable::remove_file(&self.record_path()).map_err(file_failure)?;
        self.run_on_esp(files::flush).await
    }
}

#[cfg(test)]
mod tests;
