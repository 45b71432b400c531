//! Arms a slot that holds an image, and finds out whether the image was booted and committed.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::{Instant, sleep};

use super::plan::{ImageStep, is_written};
use super::slots::{
    BootEntry, BootObservation, Slot, SlotEvent, SlotImage, SlotState, Slots, TrialEnd,
};
use super::{ImageBaseline, ImageModule, ImageParts, ImageReport};
use crate::gate::{check_before_reboot, find_power_supplies};
use crate::hooks::HookPoint;
use crate::model::{Failure, FailureKind};
use crate::modules::{RebootNeed, UndoOutcome, Verdict};
use crate::reboot::{self, RebootTiming};
use crate::trial;

/// Interval between two checks of what delays the reset.
const RESET_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// How far the image of a step has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageStage {
    /// The slot holds the complete image, and no boot entry starts it.
    Ready(SlotImage),
    /// The record says that the slot was armed in this boot, but no boot entry starts it.
    HalfArmed(SlotImage),
    /// The next boot tries it.
    Armed,
    /// It runs, but its trial has not ended.
    OnTrial,
    /// It runs and was committed.
    Running,
    /// Its trial ended without a result: nothing but the server was missing.
    Undecided(TrialEnd),
    /// Its trial failed.
    Failed {
        /// The reason, for people.
        reason: String,
        /// The end of its log.
        log: String,
    },
    /// Any other state, as a text for people.
    Unexpected(String),
}

impl ImageStage {
    /// Determines the stage from the slot record and the current boot.
    pub fn determine(step: &ImageStep, slots: &Slots, observation: &BootObservation) -> Self {
        let now = slots.state(step.slot);
        let is_own = |image: &SlotImage| image.file == step.spec.sha256;
        let label = step.slot.label();
        let Some(booted) = observation.booted else {
            return Self::Unexpected("it is not known from which slot the system runs".to_owned());
        };
        if booted == step.slot {
            return match now {
                SlotState::Good(image) if is_own(image) => Self::Running,
                SlotState::Armed { image, .. } | SlotState::Trial { image, .. }
                    if is_own(image) =>
                {
                    Self::OnTrial
                }
                SlotState::Bad { image, reason, log } if is_own(image) => Self::failed(reason, log),
                other => Self::Unexpected(format!(
                    "the system runs from {label}, which {}",
                    other.description()
                )),
            };
        }
        match now {
            SlotState::Written(image) if is_written(&step.spec, now) => Self::Ready(image.clone()),
            SlotState::Armed { image, boot_id }
                if is_own(image) && *boot_id == observation.boot_id =>
            {
                match observation.entry(step.slot) {
                    BootEntry::Counted { .. } | BootEntry::OneShot => Self::Armed,
                    BootEntry::Absent | BootEntry::Plain | BootEntry::Invalid(_) => {
                        Self::HalfArmed(image.clone())
                    }
                }
            }
            SlotState::Bad { image, reason, log } if is_own(image) => Self::failed(reason, log),
            // The slot becomes written again once its boot entry is removed, which has not
            // succeeded yet.
            SlotState::Trial { image, undecided_end: Some(end), .. } if is_own(image) => {
                Self::Undecided(end.clone())
            }
            // The list of bad images retains an image until it is committed, even if a retry was
            // ordered: the entry describes the earlier failure. If the retry fails as well, the
            // slot is `Bad`.
            other => match slots.find_bad(&step.spec.sha256) {
                Some(bad) if !step.spec.allow_retry => Self::failed(&bad.reason, ""),
                _ => Self::Unexpected(format!(
                    "the system runs from {booted}, and {label} {}",
                    other.description()
                )),
            },
        }
    }

    /// Replaces `Ready` by `Undecided` if the image has more undecided trials than the `before`
    /// that it had when the attempt began: the slot of such an image looks as if it had not been
    /// tried.
    fn with_undecided_since(self, before: u8, step: &ImageStep, slots: &Slots) -> Self {
        match slots.find_undecided(&step.spec.sha256) {
            Some(undecided) if undecided.times > before && matches!(self, Self::Ready(_)) => {
                Self::Undecided(undecided.latest_end.clone())
            }
            _ => self,
        }
    }

    fn failed(reason: &str, log: &str) -> Self {
        Self::Failed { reason: reason.to_owned(), log: log.to_owned() }
    }

    /// The problem with this stage and whether it is final; `None` if there is none.
    fn problem(&self, step: &ImageStep) -> Option<(Failure, bool)> {
        let id = &step.spec.image_id;
        let verify = |reason: String| Failure::new(FailureKind::Verify, reason);
        match self {
            // An armed slot waits for the reboot. The reboot is requested at once; without it the
            // engine undoes the step.
            Self::Running | Self::Armed => None,
            Self::Ready(_) | Self::HalfArmed(_) => {
                let reason = format!("the image {id} is in its slot but has not been tried");
                Some((verify(reason), true))
            }
            Self::OnTrial => {
                let reason = format!("the image {id} runs, but its trial has not ended");
                Some((verify(reason), false))
            }
            Self::Undecided(TrialEnd { reason, log }) => {
                let reason = format!(
                    "the trial of the image {id} had no result because only the server was \
                     unreachable; it may be tried again: {reason}"
                );
                let failure = Failure::with_log(FailureKind::Verify, reason, log);
                Some((failure, true))
            }
            Self::Failed { reason, log } => {
                let reason = format!("the image {id} failed its trial: {reason}");
                let failure = Failure::with_log(FailureKind::Verify, reason, log);
                Some((failure, true))
            }
            Self::Unexpected(reason) => {
                let reason = format!("the image {id} does not run: {reason}");
                Some((verify(reason), true))
            }
        }
    }
}

/// Fails unless the other slot runs, so that the slot of the step may be written.
pub(super) fn check_slot_writable(
    step: &ImageStep,
    observation: &BootObservation,
) -> Result<(), Failure> {
    if observation.booted == Some(step.slot.other()) {
        return Ok(());
    }
    let reason = format!(
        "the plan was made for a system that runs from {}, but it no longer does",
        step.slot.other().label()
    );
    Err(Failure::new(FailureKind::Plan, reason))
}

impl ImageModule {
    /// Installs the kernel and arms the slot, if the reset may happen before the deadline. Skips
    /// what an interrupted try has done already.
    pub(super) async fn arm(
        &self,
        step: &ImageStep,
        start_deadline: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        let ImageStep { slot, spec, .. } = step;
        let stage = ImageStage::determine(step, &slots.get(), &boot.observe().await?);
        let image = match stage {
            // An earlier try wrote the boot entry before the power was cut or the agent died.
            ImageStage::Running | ImageStage::Armed => return Ok(()),
            ImageStage::Ready(image) | ImageStage::HalfArmed(image) => image,
            other => {
                let problem = other.problem(step);
                return problem.map_or(Ok(()), |(failure, _)| Err(failure));
            }
        };
        // Check again as late as possible: a key may have been withdrawn since the download.
        self.check_trust(spec)?;
        #[cfg(feature = "halt-points")]
        if crate::halt::arms_early() {
            // Fault injection for tests: writes the boot entry too early.
            boot.arm(*slot, &image, slots.get().sequence + 1).await?;
        }
        // Install the kernel before the boot entry: no entry may name an incomplete kernel.
        boot.install_kernel(*slot, &image).await?;
        // Wait before the slot is armed: an armed slot boots at any reset, so nothing may delay it
        // from here on.
        self.wait_for_reset_permission(start_deadline).await?;
        // Write the record before the boot entry: the booted image must know that it is on trial.
        // Observe again, because the wait took its time.
        let observation = boot.observe().await?;
        let allow_retry = spec.allow_retry;
        let armed = slots.step(*slot, &SlotEvent::Arm { allow_retry }, &observation)?;
        // The boot entry with a counter. From here on a reset boots the new image.
        boot.arm(*slot, &image, armed.sequence).await
    }

    /// Waits until the power supply, inhibit files, locks of other programs and hooks do not delay
    /// the reset, at most for [`RebootTiming::max_delay`], and until logged-in users had time after a warning.
    /// Fails as well if the deadline of the start permit passes: the reset must not happen outside
    /// of the window.
    async fn wait_for_reset_permission(
        &self,
        start_deadline: Option<DateTime<Utc>>,
    ) -> Result<(), Failure> {
        let RebootTiming { max_delay: timeout, warning_time } = self.parts.reboot_timing;
        let started = Instant::now();
        let mut is_warned = false;
        loop {
            let ImageParts { paths, runner, gate, .. } = &self.parts;
            let supplies = find_power_supplies(paths);
            let checked = check_before_reboot(paths, runner.as_ref(), gate, supplies).await;
            if start_deadline.is_some_and(|start_deadline| start_deadline <= self.parts.clock.now())
            {
                let reason = checked.err().unwrap_or_default();
                let colon = if reason.is_empty() { "" } else { ": " };
                let reason =
                    format!("the window closed while the machine delayed the reset{colon}{reason}");
                return Err(Failure::new(FailureKind::Reboot, reason));
            }
            let Err(reason) = checked else {
                if is_warned || !self.warn_users(warning_time).await {
                    return Ok(());
                }
                // Everything is checked again after that time.
                is_warned = true;
                sleep(warning_time).await;
                continue;
            };
            is_warned = false;
            let left = timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                let minutes = timeout.as_secs() / 60;
                let reason = format!(
                    "the machine delayed the reset for {minutes} min, which is the limit: {reason}"
                );
                return Err(Failure::new(FailureKind::Reboot, reason));
            }
            tracing::info!(reason, "the machine delays the reset");
            sleep(RESET_CHECK_INTERVAL.min(left)).await;
        }
    }

    /// Warns logged-in users of the reset. Returns whether there are any.
    async fn warn_users(&self, warning_time: Duration) -> bool {
        let ImageParts { owner, runner, .. } = &self.parts;
        if warning_time.is_zero() || !owner.is_user_logged_in() {
            return false;
        }
        let message = reboot::warning_message(warning_time, "it starts another image");
        reboot::warn_users(runner.as_ref(), &message).await;
        true
    }

    /// Verifies the step: whether the image runs, and why not.
    pub(super) async fn verify_image(
        &self,
        steps: &[ImageStep],
        baseline: &ImageBaseline,
        report: &mut ImageReport,
    ) -> Result<Verdict, Failure> {
        report.booted = None;
        let observation = self.parts.boot.observe().await?;
        report.booted = observation.image.as_ref().map(|(_, image_id)| image_id.clone());
        let Some(step) = steps.first() else {
            return Ok(Verdict::default());
        };
        let slots = self.parts.slots.get();
        let mut stage = ImageStage::determine(step, &slots, &observation).with_undecided_since(
            baseline.undecided,
            step,
            &slots,
        );
        if let (ImageStage::Failed { log, .. }, Some(since)) = (&mut stage, baseline.at)
            && log.is_empty()
        {
            // The trial ended without a log; the firmware may have stored messages of the kernel.
            *log = trial::collect_kernel_records(&self.parts.paths, since);
        }
        let (problem, is_final) = stage.problem(step).unzip();
        Ok(Verdict { problem, is_final: is_final.unwrap_or_default() })
    }

    /// The reboot that an armed slot needs.
    pub(super) async fn find_image_reboot_need(
        &self,
        steps: &[ImageStep],
    ) -> Result<RebootNeed, Failure> {
        let Some(step) = steps.first() else {
            return Ok(RebootNeed::default());
        };
        if self.is_running(step).await? {
            return Ok(RebootNeed::default());
        }
        let id = &step.spec.image_id;
        let reason = format!("the image {id} in {} will be tried", step.slot.label());
        Ok(RebootNeed { reasons: Some(vec![reason]), is_the_change: true })
    }

    /// Runs the hooks for a committed image. Returns remarks.
    pub(super) async fn post_apply_image(
        &self,
        steps: &[ImageStep],
    ) -> Result<Vec<String>, Failure> {
        match steps.first() {
            Some(step) if self.is_running(step).await? => {
                let hook_result = self.run_hooks(HookPoint::AfterCommit).await;
                Ok(hook_result.err().into_iter().collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Whether the image of a step runs and was committed.
    async fn is_running(&self, step: &ImageStep) -> Result<bool, Failure> {
        let observation = self.parts.boot.observe().await?;
        let stage = ImageStage::determine(step, &self.parts.slots.get(), &observation);
        Ok(stage == ImageStage::Running)
    }

    /// Makes sure that nothing boots the slot, unless the slot runs.
    pub(super) async fn disarm(&self, slot: Slot) -> Result<UndoOutcome, Failure> {
        let ImageParts { boot, slots, .. } = &self.parts;
        let observation = boot.observe().await?;
        if observation.booted != Some(slot.other()) {
            return Ok(UndoOutcome::Impossible);
        }
        match slots.get().state(slot) {
            // Another attempt committed or tried this image: this attempt must not remove it.
            SlotState::Good(_) | SlotState::Trial { .. } => Ok(UndoOutcome::Impossible),
            SlotState::Armed { .. } => {
                // Remove the boot entry before the record changes. In the other order a power cut
                // between the two would leave a bootable image whose trial is not recorded.
                boot.withdraw(slot).await?;
                let observation = boot.observe().await?;
                slots.step(slot, &SlotEvent::NotTried, &observation)?;
                Ok(UndoOutcome::Complete)
            }
            SlotState::Empty
            | SlotState::Writing(_)
            | SlotState::Written(_)
            | SlotState::Bad { .. } => {
                boot.withdraw(slot).await?;
                Ok(UndoOutcome::Complete)
            }
        }
    }
}

#[cfg(test)]
mod tests;
