//! Images of the operating system. One of two slots runs and the other one receives the next image;
//! an image that fails its trial is abandoned.
//!
//! All slow work happens while the node is in use: the file is downloaded, verified, unpacked into
//! the slot that does not run, and read back ([`Module::prepare`]). The window is only needed to
//! arm the slot and to reset ([`arm`]). After the reset [`crate::trial`] decides before this module
//! runs; [`Module::verify`] only reads the result.
//!
//! The table in [`slots`] defines the order of the writes.

pub mod arm;
pub mod boot_control;
mod command;
pub mod device;
mod doctor;
mod file_download;
pub mod plan;
pub mod signature;
mod slot_contents;
pub mod slots;
pub mod spool;
mod system;
pub mod uki;
pub mod unpack;
pub mod web;
mod wire;

use std::fmt;
use std::future::ready;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::{Clock, Secret};
use evenkeel_proto::agent as pb;
use serde::{Deserialize, Serialize};

use self::arm::ImageStage;
use self::boot_control::BootControl;
use self::plan::{ImageObservation, ImageStep};
use self::signature::ImageKeys;
use self::slot_contents::VerifiedSlot;
use self::slots::{Slot, SlotFile, SlotState};
use self::spool::{Spool, SpoolProgress};
use self::web::WebClient;
use crate::cli::AgentCommand;
use crate::commands::doctor::DoctorFinding;
use crate::gate::GateSettings;
use crate::hooks::{self, HookPoint};
use crate::model::{Failure, FailureKind, ImageChange, ImageSpec, Sha256};
use crate::module_registry::ModuleRegistry;
use crate::modules::{
    DownloadRetention, Draft, FetchProgress, Module, Readiness, RebootNeed, ReportText, RetryRule,
    SpecIdentity, TryKind, UndoOutcome, Verdict,
};
use crate::owner::Owner;
use crate::paths::AgentPaths;
use crate::reboot::RebootTiming;
use crate::runner::Runner;

pub use self::file_download::FileDownloader;
pub use self::system::ImageSystem;

/// Time after which a partial download is reported.
const DOWNLOAD_SLICE: Duration = Duration::from_secs(30);

/// Downloads the file of an image and stores it until it is unpacked.
#[async_trait::async_trait]
pub trait ImageFiles: Send + Sync {
    /// Size of a file; `None` if it is unknown before the download.
    async fn size(&self, spec: &ImageSpec) -> Result<Option<u64>, Failure>;
    /// Works on a download for at most about `slice`.
    async fn fetch(&self, spec: &ImageSpec, slice: Duration) -> Result<SpoolProgress, Failure>;
    /// Removes all downloads except one.
    fn discard_except(&self, keep: Option<&Sha256>) -> Result<(), Failure>;
}

#[async_trait::async_trait]
impl ImageFiles for Spool {
    async fn size(&self, spec: &ImageSpec) -> Result<Option<u64>, Failure> {
        Spool::size(self, spec).await
    }

    async fn fetch(&self, spec: &ImageSpec, slice: Duration) -> Result<SpoolProgress, Failure> {
        Spool::fetch(self, spec, slice).await
    }

    fn discard_except(&self, keep: Option<&Sha256>) -> Result<(), Failure> {
        Spool::discard_except(self, keep)
    }
}

/// Everything that the module uses.
pub struct ImageParts {
    /// Observes the boot and arms slots.
    pub boot: Arc<dyn BootControl>,
    /// Record of the slots.
    pub slots: Arc<SlotFile>,
    /// Downloads files.
    pub files: Arc<dyn ImageFiles>,
    /// Limits that the owner of the machine has set.
    pub owner: Arc<Owner>,
    /// Runs hooks.
    pub runner: Arc<dyn Runner>,
    pub paths: AgentPaths,
    /// Current time.
    pub clock: Arc<dyn Clock>,
    /// Architecture of the machine, as the kernel names it.
    pub architecture: String,
    /// Conditions of the machine for a reset.
    pub gate: GateSettings,
    pub reboot_timing: RebootTiming,
    /// Gets the node's credential; `None` if the files come from elsewhere.
    pub web: Option<WebClient>,
}

impl fmt::Debug for ImageParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageParts").field("boot", &self.boot.name()).finish_non_exhaustive()
    }
}

pub struct ImageModule {
    parts: ImageParts,
    /// The slot that was last read back successfully.
    verified_slot: Mutex<Option<VerifiedSlot>>,
}

impl fmt::Debug for ImageModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageModule").field("boot", &self.parts.boot.name()).finish_non_exhaustive()
    }
}

/// Recorded before the change. The agent of another image, older or newer, may read it: every field
/// is optional and unknown fields are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageBaseline {
    /// Time of the record, by the node's clock.
    pub at: Option<DateTime<Utc>>,
    /// Number of undecided trials of the image.
    pub undecided: u8,
}

/// What is reported about an image update.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageReport {
    /// The image before and after, if one is to be booted.
    pub change: Option<ImageChange>,
    /// Version of the running image, if it is known: first before the change, later after it.
    pub booted: Option<String>,
}

impl ImageModule {
    pub fn new(parts: ImageParts) -> Self {
        Self { parts, verified_slot: Mutex::new(None) }
    }

    /// Fails unless a trusted key signed the image, and it is not older than an image that proved
    /// itself here, or the owner allows the exception. Reads the limits and the keys each time, so
    /// that a removed key is no longer accepted.
    fn check_trust(&self, spec: &ImageSpec) -> Result<(), Failure> {
        let limits = self.parts.owner.limits();
        let limits =
            limits.map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))?;
        if !limits.image.downgrades {
            plan::check_version(spec, &self.parts.slots.get())?;
        }
        if limits.image.unsigned_images {
            return Ok(());
        }
        ImageKeys::load(&self.parts.paths.image_keys())?.check(spec)
    }

    async fn run_hooks(&self, point: HookPoint) -> Result<(), String> {
        let ImageParts { paths, runner, gate, .. } = &self.parts;
        hooks::run_hooks(point, paths, runner.as_ref(), gate.hook_timeout).await
    }

    /// Removes downloads. A file that cannot be removed now is removed at the end of the attempt.
    async fn try_to_discard_downloads(&self, keep: Option<Sha256>) {
        if let Err(failure) = self.discard_downloads(keep).await {
            tracing::warn!(error = %failure, "cannot remove the downloaded image yet");
        }
    }

    /// Removing a file of some GB takes time, so it runs on a blocking thread.
    async fn discard_downloads(&self, keep: Option<Sha256>) -> Result<(), Failure> {
        let files = Arc::clone(&self.parts.files);
        let discarded = tokio::task::spawn_blocking(move || files.discard_except(keep.as_ref()));
        discarded.await.unwrap_or_else(|error| {
            let reason = format!("cannot remove the downloaded image: {error}");
            Err(Failure::new(FailureKind::Storage, reason))
        })
    }
}

impl Module for ImageModule {
    const NAME: &'static str = "image";
    const STEP_NAMES: &'static [&'static str] = &[ImageStep::NAME];
    const APPLIES_ON_REBOOT: bool = true;
    type Spec = ImageSpec;
    type Observation = ImageObservation;
    type Step = ImageStep;
    type Baseline = ImageBaseline;
    type Report = ImageReport;

    fn build(registry: &ModuleRegistry<'_>) -> Result<Option<Self>, Failure> {
        Ok(registry.images()?.map(|images| images.build_module(registry)))
    }

    fn parse_spec(message: &pb::target::Spec) -> Option<ImageSpec> {
        match message {
            pb::target::Spec::Image(image) => wire::parse_image(image.clone()),
            _ => None,
        }
    }

    /// The digest of a target names the release, but not the image file, which may have been
    /// replaced. An ordered retry of a failed image does not wait for the retry interval.
    fn identify(spec: &ImageSpec) -> SpecIdentity {
        let again = if spec.allow_retry { " again" } else { "" };
        SpecIdentity { change: spec.image_identity(), attempt: format!("{}{again}", spec.sha256) }
    }

    async fn observe(&self, spec: &ImageSpec) -> Result<ImageObservation, Failure> {
        let ImageParts { boot, slots, files, .. } = &self.parts;
        let observation = boot.observe().await?;
        let slots = slots.get();
        let untrusted = self.check_trust(spec).err();
        // Do not contact a server about a file that is already there or that is not trusted.
        let is_missing = plan::is_file_needed(spec, &slots, &observation);
        let size = if is_missing && untrusted.is_none() { files.size(spec).await? } else { None };
        let slot_capacity = match observation.booted {
            Some(booted) if is_missing => Some(boot.max_image_bytes(booted.other()).await),
            _ => None,
        };
        Ok(ImageObservation {
            write_failure: boot.refuse_spec(spec),
            faults: boot.faults().await,
            architecture: self.parts.architecture.clone(),
            slots,
            boot: observation,
            trust_failure: untrusted,
            size,
            slot_capacity,
        })
    }

    fn plan(
        spec: &ImageSpec,
        observation: &ImageObservation,
    ) -> Result<Draft<ImageStep, ImageReport>, Failure> {
        plan::plan_image(spec, observation)
    }

    fn update_step(step: &ImageStep, spec: &ImageSpec) -> Option<ImageStep> {
        Some(ImageStep { spec: spec.clone(), ..step.clone() })
    }

    async fn prepare(&self, step: &ImageStep) -> Result<FetchProgress, Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        if matches!(slots.get().state(step.slot), SlotState::Armed { .. }) {
            // The journal of the attempt that armed it was lost. A slot without an attempt must not
            // boot.
            self.disarm(step.slot).await?;
        }
        if plan::is_written(&step.spec, slots.get().state(step.slot)) {
            return Ok(FetchProgress::Complete);
        }
        arm::check_slot_writable(step, &boot.observe().await?)?;
        // Before the first request and with each slice: a key may have been removed.
        self.check_trust(&step.spec)?;
        if let Err(why) = self.run_hooks(HookPoint::BeforeDownload).await {
            return Ok(FetchProgress::Deferred(why));
        }
        // There is space for one download only.
        self.try_to_discard_downloads(Some(step.spec.sha256)).await;
        match self.parts.files.fetch(&step.size_limited_spec(), DOWNLOAD_SLICE).await? {
            SpoolProgress::Partial { bytes } => {
                tracing::debug!(bytes, "a part of the image was downloaded");
                Ok(FetchProgress::Partial)
            }
            SpoolProgress::Deferred(why) => Ok(FetchProgress::Deferred(why)),
            SpoolProgress::Complete(spooled) => {
                self.write_slot(step, &spooled).await?;
                Ok(FetchProgress::Complete)
            }
        }
    }

    async fn check(&self, steps: &[ImageStep]) -> Result<Readiness, Failure> {
        let ImageParts { boot, slots, owner, .. } = &self.parts;
        let Some(step) = steps.first() else {
            return Ok(Readiness::Ready);
        };
        // Once the slot is armed nothing may delay the reset.
        if let Err(objection) = owner.may_reboot() {
            return Ok(Readiness::NotYet(objection.reason));
        }
        self.check_trust(&step.spec)?;
        let observation = boot.observe().await?;
        let ImageStage::Ready(image) = ImageStage::determine(step, &slots.get(), &observation)
        else {
            let reason = format!(
                "{} no longer holds the image or is not ready any more: another program changed it \
                 since the plan was made",
                step.slot.label()
            );
            return Err(Failure::new(FailureKind::Plan, reason));
        };
        let faults = boot.faults().await;
        if !faults.is_empty() {
            return Ok(Readiness::NotYet(faults.join("; ")));
        }
        if let Err(why) = self.run_hooks(HookPoint::BeforeArming).await {
            return Ok(Readiness::NotYet(why));
        }
        if let Some(raw) = &image.raw {
            self.verify_slot_contents(step.slot, raw, &observation).await?;
        }
        Ok(Readiness::Ready)
    }

    fn take_baseline(
        &self,
        steps: &[ImageStep],
    ) -> impl Future<Output = Result<ImageBaseline, Failure>> + Send {
        let slots = self.parts.slots.get();
        let before = |step: &ImageStep| Some(slots.find_undecided(&step.spec.sha256)?.times);
        ready(Ok(ImageBaseline {
            at: Some(self.parts.clock.now()),
            undecided: steps.first().and_then(before).unwrap_or_default(),
        }))
    }

    /// A trial that has not ended. The attempt must not interfere with its decision.
    fn find_concurrent_change(
        &self,
        _trying: TryKind,
    ) -> impl Future<Output = Result<Option<String>, Failure>> + Send {
        let slots = self.parts.slots.get();
        let mut states = [&slots.a, &slots.b].into_iter();
        let on_trial = states.any(|state| matches!(state, SlotState::Trial { .. }));
        ready(Ok(on_trial.then(|| "an image is on trial".to_owned())))
    }

    /// The first try and later ones look up what was done already.
    async fn apply(
        &self,
        step: &ImageStep,
        _trying: TryKind,
        start_deadline: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        self.arm(step, start_deadline).await
    }

    async fn verify(
        &self,
        steps: &[ImageStep],
        baseline: &ImageBaseline,
        report: &mut ImageReport,
    ) -> Result<Verdict, Failure> {
        self.verify_image(steps, baseline, report).await
    }

    async fn find_reboot_need(
        &self,
        steps: &[ImageStep],
        _baseline: &ImageBaseline,
    ) -> Result<RebootNeed, Failure> {
        self.find_image_reboot_need(steps).await
    }

    async fn post_apply(
        &self,
        steps: &[ImageStep],
        _baseline: &ImageBaseline,
        _report: &mut ImageReport,
    ) -> Result<Vec<String>, Failure> {
        self.post_apply_image(steps).await
    }

    async fn is_untouched(&self, steps: &[ImageStep]) -> Result<bool, Failure> {
        let Some(step) = steps.first() else {
            return Ok(true);
        };
        let observation = self.parts.boot.observe().await?;
        let stage = ImageStage::determine(step, &self.parts.slots.get(), &observation);
        // The slot is only recorded as armed; no boot entry starts it.
        Ok(matches!(stage, ImageStage::Ready(_) | ImageStage::HalfArmed(_)))
    }

    async fn undo(&self, steps: &[ImageStep]) -> Result<UndoOutcome, Failure> {
        match steps.first() {
            Some(step) => self.disarm(step.slot).await,
            None => Ok(UndoOutcome::Complete),
        }
    }

    async fn cancel_pending_change(&self) -> Result<(), Failure> {
        for slot in [Slot::A, Slot::B] {
            if matches!(self.parts.slots.get().state(slot), SlotState::Armed { .. }) {
                tracing::warn!(%slot, "the slot is armed without an attempt: disarming it");
                self.disarm(slot).await?;
            }
        }
        Ok(())
    }

    /// An image is a download that takes long.
    async fn clean_up(&self, keep: DownloadRetention<&ImageSpec>) -> Result<(), Failure> {
        match keep {
            DownloadRetention::LongRunning => Ok(()),
            DownloadRetention::NeededBy(spec) => {
                self.discard_downloads(spec.map(|image| image.sha256)).await
            }
        }
    }

    /// A missing signature or a wrong checksum is permanent. Downloading and writing an image again
    /// causes some GB of traffic at each try.
    fn retry_rule(kind: FailureKind) -> RetryRule {
        match kind {
            FailureKind::Signature | FailureKind::Verify => RetryRule::Never,
            FailureKind::Download | FailureKind::Storage => RetryRule::Later,
            _ => RetryRule::for_failure(kind),
        }
    }

    fn set_credential(&self, credential: &Secret) {
        if let Some(web) = &self.parts.web {
            web.set_credential(credential);
        }
    }

    fn write_event(report: &ImageReport, event: &mut pb::Event) {
        wire::write_event(report, event);
    }

    fn describe(report: &ImageReport) -> ReportText {
        let change = report.change.as_ref().map(ImageChange::to_string);
        let booted = report.booted.iter();
        ReportText {
            change: change.clone().unwrap_or_default(),
            planned: change.into_iter().collect(),
            results: booted.map(|id| format!("image after the update: {id}")).collect(),
        }
    }

    fn diagnose(registry: &ModuleRegistry<'_>) -> impl Future<Output = Vec<DoctorFinding>> {
        doctor::check_boot(registry)
    }

    fn run_command(
        command: &AgentCommand,
        mut out: &mut dyn Write,
    ) -> Option<anyhow::Result<ExitCode>> {
        match command {
            AgentCommand::Image(arguments) => Some(command::run_image_command(arguments, &mut out)),
            AgentCommand::Trial(arguments) => Some(command::run_trial_command(arguments)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attempt_differs_for_a_retry_and_for_another_file() {
        let attempt = |spec: &ImageSpec| ImageModule::identify(spec).attempt;
        let spec = ImageSpec::sample("1.1");
        let ordered = ImageSpec { allow_retry: true, ..spec.clone() };
        let rebuilt = ImageSpec { sha256: Sha256::hash(b"rebuilt"), ..spec.clone() };
        let signed = ImageSpec { signatures: vec!["k:s".into()], ..spec.clone() };
        assert_ne!(attempt(&ordered), attempt(&spec));
        assert_ne!(attempt(&rebuilt), attempt(&spec));
        assert_eq!(attempt(&signed), attempt(&spec));
    }

    #[test]
    fn an_image_that_could_not_be_fetched_is_not_retried_at_once() {
        for kind in [FailureKind::Download, FailureKind::Storage] {
            assert_eq!(ImageModule::retry_rule(kind), RetryRule::Later);
        }
        for kind in [FailureKind::Signature, FailureKind::Verify, FailureKind::Unsupported] {
            assert_eq!(ImageModule::retry_rule(kind), RetryRule::Never);
        }
        assert_eq!(ImageModule::retry_rule(FailureKind::Plan), RetryRule::Soon);
    }

    #[test]
    fn a_report_is_described_by_the_image_before_and_after() {
        let change =
            ImageChange { profile_name: "demo".into(), before: "1.0".into(), after: "1.1".into() };
        let booted = Some("1.0".to_owned());
        let text = ImageModule::describe(&ImageReport { change: Some(change), booted });
        assert_eq!(text.change, "demo 1.0 -> 1.1");
        assert_eq!(text.results, ["image after the update: 1.0"]);
        assert_eq!(ImageChange::default().to_string(), " - -> ");
    }
}
