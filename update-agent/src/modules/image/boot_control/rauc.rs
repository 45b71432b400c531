//! RAUC, an update tool that writes bundles into slots and controls GRUB, U-Boot, Barebox, EFI or
//! another boot loader.
//!
//! The agent drives an installed RAUC by its command line. RAUC's service runs one command at a
//! time and refuses every other one meanwhile, also `rauc status`. It continues a command whose
//! client was killed.
//!
//! | Step | Command | If the agent is killed |
//! | --- | --- | --- |
//! | `observe` | `rauc status` | nothing changed |
//! | `withdraw` | `mark-active` for the other slot, then `mark-bad` for this one, then the mark is removed | the next boot starts the other slot after the first command; the steps are repeated |
//! | `write` | `rauc install`, then the slot is read | RAUC completes the installation without activating the slot, and refuses other commands meanwhile; the slot is written again |
//! | `install_kernel` | none: the image contains its kernel | the slot is unmounted before it is used again |
//! | `arm` | the mark is stored, then `mark-active` | before the command nothing starts the slot, after it the slot is armed; `observe` distinguishes both by the primary slot |
//! | `bless` | `mark-good`, then the mark is removed | the mark makes the slot look as on trial; blessing is repeated |
//!
//! RAUC does not report how many boots a slot has left, so a slot on trial cannot be distinguished
//! from a good one by its status. The [mark](ArmedMark) does that. So after a power cut
//! between the mark and `mark-active`, an image that was never started looks as if it had failed.

mod armed_mark;
mod settings;
mod status;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use evenkeel_kit::chain;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use self::armed_mark::{ArmedMark, boot_entry};
use self::status::{RaucBundle, RaucStatus};
use super::hard_link::SpoolLink;
use super::slot_mount::SlotMount;
use super::units::{self, UnitState};
use super::{
    BootControl, SystemInterfaces, apply_failure, checks, files, reread_slot, run_blocking,
};
use crate::config::ImageConfig;
use crate::model::{Failure, FailureKind};
use crate::modules::image::device::read_back;
use crate::modules::image::slots::{BootObservation, RawImage, Slot, SlotImage};
use crate::modules::image::spool::SpooledImage;
use crate::runner::{Command, Output, Runner};

/// Name of this boot control.
pub const NAME: &str = "rauc";

const PROGRAM: &str = "rauc";

/// Name of the bundle for RAUC.
const BUNDLE_NAME: &str = "image.raucb";

/// Unit of RAUC's service, which runs the commands.
const SERVICE_UNIT: &str = "rauc.service";

/// What RAUC prints while it runs another command.
const BUSY_MESSAGE: &str = "already processing a different method";

/// Why a machine needs a watchdog.
const WATCHDOG_REASON: &str = "the guard of an image for RAUC is a process, so only a watchdog can end a boot that hangs before \
                               the guard starts";

/// Time limit of a command that reads the state. It may start the service.
const QUERY_TIMEOUT: Duration = Duration::from_secs(40);

/// Time limit of a command that checks the signature of a bundle, which may read the whole file.
const INFO_TIMEOUT: Duration = Duration::from_mins(10);

/// Time limit of a command that changes which slot starts.
const CHANGE_TIMEOUT: Duration = Duration::from_mins(1);

/// Time limit of an installation.
const INSTALL_TIMEOUT: Duration = Duration::from_hours(1);

/// Time limit for `observe`, `bless` and `withdraw`, which run up to five commands.
const CALL_TIMEOUT: Duration = Duration::from_mins(4);

/// The boot state during an installation of this process, when RAUC reports none.
type StateDuringInstallation = Arc<StdMutex<Option<BootObservation>>>;

/// Boot control with RAUC.
pub struct RaucControl {
    system: SystemInterfaces,
    runner: Arc<dyn Runner>,
    slot_mount: SlotMount,
    /// How long the guard waits for an agent of an image on trial.
    guard_timeout: Duration,
    /// Held by work on a slot, which continues if the caller is dropped. It must not run
    /// concurrently.
    work: Arc<Mutex<()>>,
    during_installation: StateDuringInstallation,
}

impl fmt::Debug for RaucControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaucControl").field("system", &self.system).finish_non_exhaustive()
    }
}

/// Ends [`RaucControl::during_installation`] when it is dropped.
struct InstallationGuard(StateDuringInstallation);

impl Drop for InstallationGuard {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl RaucControl {
    pub fn new(system: SystemInterfaces, runner: Arc<dyn Runner>, config: &ImageConfig) -> Self {
        Self {
            slot_mount: SlotMount::new(system.clone(), Arc::clone(&runner)),
            system,
            runner,
            guard_timeout: config.health.guard_timeout(),
            work: Arc::default(),
            during_installation: Arc::default(),
        }
    }

    async fn lock_work(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.work).lock_owned().await
    }

    fn mark_path(&self) -> PathBuf {
        self.system.paths.state().join("rauc-armed.json")
    }

    /// Runs RAUC, which must succeed.
    async fn run(&self, command: &Command) -> Result<Output, Failure> {
        let answer = self.runner.run(command).await;
        let output =
            answer.map_err(|error| apply_failure(format!("{command}: {}", chain(&error))))?;
        if output.succeeded() {
            return Ok(output);
        }
        let log = output.combined_output();
        if log.to_ascii_lowercase().contains(BUSY_MESSAGE) {
            let reason = format!(
                "{command} was refused, because RAUC runs another command, such as an installation: wait until it ends"
            );
            return Err(Failure::with_log(FailureKind::Apply, reason, &log).into_temporary());
        }
        let reason = format!("{command} {}", output.describe_status());
        Err(Failure::with_log(FailureKind::Apply, reason, &log))
    }

    async fn query(&self, timeout: Duration, arguments: &[&str]) -> Result<String, Failure> {
        let command = Command::new(PROGRAM, timeout).with_arguments(arguments.iter().copied());
        Ok(self.run(&command).await?.stdout)
    }

    /// Runs a command that must not be killed.
    async fn change(&self, timeout: Duration, arguments: &[&str]) -> Result<(), Failure> {
        let command = Command::new(PROGRAM, timeout).with_arguments(arguments.iter().copied());
        self.run(&command.for_uninterruptible_change()).await.map(drop)
    }

    async fn read_status(&self) -> Result<RaucStatus, Failure> {
        let arguments = ["status", "--detailed", "--output-format=json"];
        let output = self.query(QUERY_TIMEOUT, &arguments).await?;
        RaucStatus::parse(&output).map_err(apply_failure)
    }

    /// Makes a slot the next one to boot.
    async fn activate(&self, name: &str) -> Result<(), Failure> {
        self.change(CHANGE_TIMEOUT, &["status", "mark-active", name]).await
    }

    /// Fails unless the next boot starts a slot.
    async fn check_primary(&self, slot: Slot, name: &str) -> Result<(), Failure> {
        if self.read_status().await?.primary == Some(slot) {
            return Ok(());
        }
        Err(apply_failure(format!(
            "RAUC activated {name}, but reports that the next boot would not start it"
        )))
    }

    async fn mark_good(&self, name: &str) -> Result<(), Failure> {
        self.change(CHANGE_TIMEOUT, &["status", "mark-good", name]).await
    }

    /// The boot state during an installation that this process runs.
    fn state_during_installation(&self) -> Option<BootObservation> {
        let state = self.during_installation.lock();
        state.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails unless the bundle is for this kind of machine and signed for it. RAUC checks both again
    /// when it installs the bundle.
    async fn check_bundle(&self, path: &str, status: &RaucStatus) -> Result<(), Failure> {
        let output = self.query(INFO_TIMEOUT, &["info", "--output-format=json", path]).await;
        let output = output.map_err(|failure| {
            // RAUC did not answer at all.
            if failure.is_temporary || failure.log.is_empty() {
                return failure;
            }
            let reason = format!(
                "RAUC does not accept the image as a bundle: {}; publish a bundle (.raucb) that is signed with a key in RAUC's \
                 keyring",
                failure.reason
            );
            Failure::with_log(FailureKind::Signature, reason, &failure.log)
        })?;
        let bundle = RaucBundle::parse(&output).map_err(apply_failure)?;
        if bundle.compatible == status.compatible {
            return Ok(());
        }
        let reason = format!(
            "the bundle is made for {:?}, but this machine is {:?}; give the node a policy with another profile",
            bundle.compatible, status.compatible
        );
        Err(Failure::new(FailureKind::Unsupported, reason))
    }

    /// Installs a bundle into the slot that does not run. Nothing starts the slot afterwards.
    async fn install(&self, slot: Slot, path: &str) -> Result<RaucStatus, Failure> {
        let observed = self.observe().await?;
        *self.during_installation.lock().unwrap_or_else(PoisonError::into_inner) = Some(observed);
        let guard = InstallationGuard(Arc::clone(&self.during_installation));
        let installed = self.change(INSTALL_TIMEOUT, &["install", path]).await;
        drop(guard);
        installed?;
        let status = self.read_status().await?;
        if status.primary == Some(slot) {
            self.withdraw(slot).await?;
            return Err(apply_failure(
                "RAUC activated the image that it installed: set activate-installed=false in its system.conf, and restart \
                 rauc.service",
            ));
        }
        Ok(status)
    }
}

/// Fails unless a slot is the one that does not run.
fn check_does_not_run(slot: Slot, status: &RaucStatus) -> Result<(), Failure> {
    if status.booted == Some(slot.other()) {
        return Ok(());
    }
    Err(apply_failure(format!(
        "RAUC does not report that the system runs from {}, so {} is neither written nor armed",
        status.slot(slot.other()).name,
        status.slot(slot).name
    )))
}

/// Digest and size of what RAUC wrote, read from the device.
fn measure_slot(
    device: &Path,
    (installed, is_raw): (Option<RawImage>, bool),
    stop: &CancellationToken,
) -> Result<RawImage, Failure> {
    if let Some(image) = installed {
        match read_back(device, &image, stop) {
            Ok(()) => return Ok(image),
            // RAUC unpacked an archive, or resized the file system.
            Err(failure) if failure.kind == FailureKind::Verify && !is_raw => {}
            Err(failure) => return Err(failure),
        }
    }
    files::file_digest(device)
}

#[async_trait::async_trait]
impl BootControl for RaucControl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn call_timeout(&self) -> Duration {
        CALL_TIMEOUT
    }

    async fn observe(&self) -> Result<BootObservation, Failure> {
        if let Some(observed) = self.state_during_installation() {
            return Ok(observed);
        }
        let status = self.read_status().await?;
        let mark = ArmedMark::read(&self.mark_path())?;
        let boot_id = self.system.boot_id()?;
        let entry = |slot| boot_entry(slot, &status, mark.as_ref(), &boot_id);
        let (a, b) = (entry(Slot::A), entry(Slot::B));
        Ok(BootObservation {
            booted: status.booted,
            boot_id,
            image: self.system.running_image(),
            a,
            b,
            foreign: Vec::new(),
        })
    }

    async fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        match self.read_status().await {
            Ok(RaucStatus { booted: None, .. }) => faults.push(
                "RAUC does not report which slot runs: start the machine from a slot that system.conf lists".to_owned(),
            ),
            Ok(status) => {
                let running = status.booted.map(|slot| status.slot(slot));
                faults.extend(running.filter(|slot| !slot.is_good).map(|slot| {
                    format!(
                        "RAUC reports the running slot {} as bad, so a failed trial could not fall back to it: run `rauc \
                         status mark-good`",
                        slot.name
                    )
                }));
            }
            Err(failure) => faults.push(failure.reason),
        }
        let root = self.system.paths.root();
        if units::unit_state(root, SERVICE_UNIT) != UnitState::Available {
            faults.push(format!(
                "{SERVICE_UNIT} is missing or masked, and without it two commands of RAUC could change a slot at the same time: \
                 install it (rauc-service in Debian)"
            ));
        }
        if units::unit_state(root, units::RAUC_MARK_GOOD_UNIT) == UnitState::Available {
            let unit = units::RAUC_MARK_GOOD_UNIT;
            faults.push(format!(
                "{unit} would keep an image before it is known to be healthy: mask it with `systemctl mask {unit}`"
            ));
        }
        faults.extend(settings::find_faults(&self.system));
        faults.extend(checks::check_watchdog(&self.system.sys, WATCHDOG_REASON));
        if let Err(why) = checks::check_panic_option(&self.system.cmdline()) {
            faults.push(format!("the running kernel: {why}"));
        }
        faults
    }

    /// RAUC compares each image of a bundle with the size of its slot.
    async fn max_image_bytes(&self, _slot: Slot) -> Result<u64, Failure> {
        Ok(u64::MAX)
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        let (status, other) = (self.read_status().await?, slot.other());
        let Some(running) = status.booted else {
            return Err(apply_failure(
                "RAUC does not report which slot runs, so no slot can be withdrawn",
            ));
        };
        if running == slot && !status.slot(other).is_good {
            return Err(apply_failure(format!(
                "{} cannot be withdrawn: without it, the boot loader could not start anything, because RAUC reports {} as bad",
                status.slot(slot).name,
                status.slot(other).name
            )));
        }
        // The other slot comes first: with both bad, nothing would start.
        if status.primary != Some(other) {
            self.activate(&status.slot(other).name).await?;
        }
        self.change(CHANGE_TIMEOUT, &["status", "mark-bad", &status.slot(slot).name]).await?;
        let left = self.read_status().await?;
        if left.primary != Some(other) || left.slot(slot).is_good {
            return Err(apply_failure(format!(
                "RAUC marked {} as bad, but still reports that the boot loader would start it",
                status.slot(slot).name
            )));
        }
        // The mark of a running slot may be the only evidence of its trial.
        if running != slot {
            ArmedMark::remove(&self.mark_path(), slot)?;
        }
        Ok(())
    }

    async fn write(
        &self,
        slot: Slot,
        from: &SpooledImage,
        stop: &CancellationToken,
    ) -> Result<RawImage, Failure> {
        let guard = self.lock_work().await;
        let status = self.read_status().await?;
        check_does_not_run(slot, &status)?;
        let device = self.system.resolve_in_root(&status.slot(slot).device);
        self.slot_mount.prepare(&device).await?;
        let link = SpoolLink::create(from, BUNDLE_NAME)?;
        let path = self.system.relative_to_root(link.path()).display().to_string();
        self.check_bundle(&path, &status).await?;
        if stop.is_cancelled() {
            return Err(Failure::new(
                FailureKind::Interrupted,
                "the agent was stopped before the image was written",
            ));
        }
        let status = self.install(slot, &path).await?;
        let written = status.slot(slot);
        let device = self.system.resolve_in_root(&written.device);
        let (content, stop) = ((written.installed, written.is_raw), stop.clone());
        run_blocking(move || {
            let _guard = guard;
            measure_slot(&device, content, &stop)
        })
        .await
    }

    async fn verify_slot(&self, slot: Slot, raw: &RawImage) -> Result<(), Failure> {
        let guard = self.lock_work().await;
        let status = self.read_status().await?;
        let device = self.system.resolve_in_root(&status.slot(slot).device);
        reread_slot(guard, device, *raw).await
    }

    /// The boot loader finds the kernel in the slot, or RAUC installed it. Only the units of the
    /// image are checked.
    async fn install_kernel(&self, slot: Slot, image: &SlotImage) -> Result<(), Failure> {
        let _guard = self.lock_work().await;
        let status = self.read_status().await?;
        check_does_not_run(slot, &status)?;
        let device = self.system.resolve_in_root(&status.slot(slot).device);
        self.slot_mount.prepare(&device).await?;
        let point = self.slot_mount.mount(&device).await?;
        let state = self.system.relative_to_root(self.system.paths.state());
        let checked = run_blocking(move || Ok(units::check_rauc_image_units(&point, &state))).await;
        // Also after a failed check, because a mounted slot cannot be written.
        let unmounted = self.slot_mount.unmount(&device).await;
        checked?.map_err(|why| {
            apply_failure(format!("the image {} cannot be tried: {why}", image.image_id))
        })?;
        unmounted
    }

    async fn arm(&self, slot: Slot, _image: &SlotImage, _sequence: u32) -> Result<(), Failure> {
        let status = self.read_status().await?;
        check_does_not_run(slot, &status)?;
        // The mark must be on disk before the slot is activated. Without it, an image on trial
        // would look like a good one.
        let mark = ArmedMark {
            slot,
            boot_id: self.system.boot_id()?,
            bootname: status.slot(slot).bootname.clone(),
            guard_seconds: self.guard_timeout.as_secs(),
        };
        mark.write(&self.mark_path())?;
        let name = &status.slot(slot).name;
        let armed = match self.activate(name).await {
            Ok(()) => self.check_primary(slot, name).await,
            error => error,
        };
        // If this fails as well, the mark remains, and the primary slot shows whether it is armed.
        if armed.is_err()
            && let Err(failure) = self.withdraw(slot).await
        {
            tracing::warn!(%failure, "cannot disarm the slot");
        }
        armed
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        let status = self.read_status().await?;
        let name = &status.slot(slot).name;
        if status.booted != Some(slot) {
            return Err(apply_failure(format!(
                "only the running slot can be kept, and {name} does not run"
            )));
        }
        self.mark_good(name).await?;
        // Some boot loaders start an activated slot only once.
        let mut blessed = self.read_status().await?;
        if blessed.primary != Some(slot) {
            self.activate(name).await?;
            blessed = self.read_status().await?;
        }
        if blessed.primary != Some(slot) || !blessed.slot(slot).is_good {
            return Err(apply_failure(format!(
                "RAUC marked {name} as good, but reports that the boot loader would not start it"
            )));
        }
        ArmedMark::remove(&self.mark_path(), slot)
    }

    /// Most boot loaders of RAUC count the boots of a good slot as well.
    async fn confirm_boot(&self, slot: Slot) -> Result<(), Failure> {
        let status = self.read_status().await?;
        if status.booted != Some(slot) {
            return Ok(());
        }
        self.mark_good(&status.slot(slot).name).await?;
        ArmedMark::remove(&self.mark_path(), slot)
    }
}

#[cfg(test)]
mod tests;
