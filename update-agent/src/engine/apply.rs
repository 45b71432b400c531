//! Takes the steps of an attempt and verifies their result.

use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Engine, all_steps, last_event};
use crate::journal::{JournalEntry, JournalError, JournalPoint, Phase};
use crate::model::{EventKind, Failure, FailureKind};
use crate::modules::{AnyStep, TryKind, UndoOutcome, Verdict};

/// How often a node is verified again while its services are still starting.
const VERIFY_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Why an attempt is kept open while another program works on the same things.
const CONCURRENT_CHANGE: &str = "another program is changing what the update has begun to change";

/// Baseline of a module that recorded none.
pub(super) static EMPTY_BASELINE: Value = Value::Null;

impl Engine {
    /// Takes the remaining steps, verifies their result, reboots the node if needed, and ends the attempt. Also resumes an
    /// attempt after a kill, then with [`TryKind::Again`]. An attempt that this version of the agent cannot read completely
    /// fails; a change that it has prepared is cancelled, and the modules make the node consistent.
    ///
    /// The attempt is returned open, to be resumed later, in five cases. [`Engine::open_reason`] describes four of them:
    /// another program is changing the same things, so the state proves neither success nor failure; the module of a step
    /// is not loaded; it is unknown whether a prepared change is still prepared; or the machine delays the reboot. The
    /// fifth case is [`Phase::Rebooting`] without a reason: the next call requests the reboot. In between, the caller can
    /// report to the server and release its own inhibitor lock. [`Engine::take_reboot_check_delay`] returns when to
    /// resume it.
    pub async fn run_attempt(
        &self,
        mut entry: JournalEntry,
        trying: TryKind,
    ) -> Result<JournalEntry, JournalError> {
        self.lock_open_reason().clear();
        self.take_reboot_check_delay();
        if entry.phase == Phase::Ended {
            return Ok(entry);
        }
        let unreadable = entry.unreadable.clone();
        let unreadable = unreadable.map(|why| Failure::new(FailureKind::Interrupted, why));
        if let Some(failure) = unreadable.clone().filter(|_| !entry.has_begun()) {
            return self.fail(entry, failure);
        }
        if trying == TryKind::Again && unreadable.is_none() {
            self.record_interruption(&mut entry)?;
        }
        // Without the module the state of the node is unknown.
        if let Some(missing) = self.missing_module(&entry) {
            return Ok(self.keep_open(entry, missing.reason));
        }
        if let Some(unreadable) = unreadable.or_else(|| self.unreadable_step(&entry)) {
            return self.end_unreadable(entry, unreadable).await;
        }
        if entry.phase == Phase::Rebooting {
            return self.continue_reboot(entry).await;
        }
        if trying == TryKind::Again {
            if self.find_concurrent_change(&entry, trying).await.is_some() {
                return Ok(self.keep_open(entry, CONCURRENT_CHANGE.to_owned()));
            }
            if self.missed_start_deadline(&entry).await {
                return self.revert_before_start(entry);
            }
        }
        let entry = match self.apply_steps(entry, trying).await? {
            ControlFlow::Continue(entry) => entry,
            ControlFlow::Break(entry) => return Ok(entry),
        };
        if entry.phase == Phase::Verifying {
            return self.verify(entry).await;
        }
        self.post_apply(entry).await
    }

    /// Ends an attempt that this version of the agent cannot read. It may have stopped in the middle of a step.
    async fn end_unreadable(
        &self,
        mut entry: JournalEntry,
        unreadable: Failure,
    ) -> Result<JournalEntry, JournalError> {
        if self.find_concurrent_change(&entry, TryKind::Again).await.is_some() {
            return Ok(self.keep_open(entry, CONCURRENT_CHANGE.to_owned()));
        }
        // The steps may be missing in the entry, so they do not show which modules took them.
        for module in &self.parts.modules {
            if let Err(failure) = module.repair_unknown_change().await {
                tracing::warn!(module = module.kind().name, error = %failure, "cannot repair the node");
                add_missing(&mut entry.remarks, [failure.remark("repair")]);
            }
        }
        // Writes the state of the node into the reports.
        self.verify_modules_once(&mut entry).await;
        self.revert_or_fail(entry, unreadable, Verdict::default()).await
    }

    /// Takes the remaining steps. Breaks with the attempt if a step fails.
    async fn apply_steps(
        &self,
        mut entry: JournalEntry,
        mut trying: TryKind,
    ) -> Result<ControlFlow<JournalEntry, JournalEntry>, JournalError> {
        while let Some(next) = entry.steps.iter().position(|step| !step.done) {
            let Some(step) = entry.steps.get(next).map(|step| step.step.clone()) else {
                break;
            };
            tracing::info!(attempt = %entry.attempt, module = step.module, step = step.name, ?trying, "taking a step");
            if let Err(failure) = self.apply_step(&entry, &step, trying).await {
                tracing::warn!(attempt = %entry.attempt, step = step.name, error = %failure, "a step failed");
                let verdict = self.verify_modules(&mut entry).await;
                if verdict.problem.is_some() {
                    return Ok(ControlFlow::Break(
                        self.revert_or_fail(entry, failure, verdict).await?,
                    ));
                }
                tracing::info!(step = step.name, "the node is as planned although the step failed");
                entry.remarks.push(failure.remark(&step.name));
            }
            if let Some(finished) = entry.steps.get_mut(next) {
                finished.done = true;
            }
            let point = JournalPoint::step_done(&step.module, &step.name);
            self.parts.journal.write(&point, &entry)?;
            trying = TryKind::First;
        }
        Ok(ControlFlow::Continue(entry))
    }

    async fn apply_step(
        &self,
        entry: &JournalEntry,
        step: &AnyStep,
        trying: TryKind,
    ) -> Result<(), Failure> {
        let module = self.module(step)?;
        // Also on the first try: time has passed since the start was permitted.
        if module.kind().applies_on_reboot
            && self.is_past_deadline(entry)
            && module.is_untouched(&all_steps(entry)).await?
        {
            let reason = "nothing was changed yet, and the start deadline has passed";
            return Err(Failure::new(FailureKind::Interrupted, reason));
        }
        module.apply(step, trying, entry.start_deadline).await
    }

    /// Returns an attempt that the next call resumes.
    pub(super) fn keep_open(&self, entry: JournalEntry, why: String) -> JournalEntry {
        tracing::warn!(attempt = %entry.attempt, why, "the attempt stays open");
        *self.lock_open_reason() = why;
        entry
    }

    fn revert_before_start(&self, entry: JournalEntry) -> Result<JournalEntry, JournalError> {
        let reason = "interrupted before anything was changed, and the start deadline has passed";
        let failure = Failure::new(FailureKind::Interrupted, reason);
        self.end(entry, EventKind::Reverted { failure })
    }

    /// Which other program is changing the same things. If this is unknown, the answer is none.
    pub(super) async fn find_concurrent_change(
        &self,
        entry: &JournalEntry,
        trying: TryKind,
    ) -> Option<String> {
        for module in self.involved_modules(entry) {
            match module.find_concurrent_change(trying).await {
                Ok(None) => {}
                Ok(Some(who)) => {
                    tracing::warn!(who, "the attempt is resumed later");
                    return Some(who);
                }
                Err(failure) => {
                    tracing::warn!(error = %failure, "cannot find out whether another program is changing the same things");
                }
            }
        }
        None
    }

    /// Whether the start deadline has passed and nothing was changed: the change would begin outside its window.
    async fn missed_start_deadline(&self, entry: &JournalEntry) -> bool {
        if !self.is_past_deadline(entry) || entry.steps.iter().any(|step| step.done) {
            return false;
        }
        if self.missing_module(entry).is_some() {
            return false;
        }
        let steps = all_steps(entry);
        for module in self.involved_modules(entry) {
            // A module whose change is applied by a reboot is checked before each step, and cancels a prepared change.
            if module.kind().applies_on_reboot
                || !matches!(module.is_untouched(&steps).await, Ok(true))
            {
                return false;
            }
        }
        true
    }

    /// Verifies the node. After a reboot in the middle of the change, a problem may disappear while services start, unless
    /// a module says that it is final.
    pub(super) async fn verify_modules(&self, entry: &mut JournalEntry) -> Verdict {
        let booted = self.has_booted_since_begin(entry);
        let until = booted.then(|| Instant::now() + self.settling_time);
        loop {
            let verdict = self.verify_modules_once(entry).await;
            let may_retry = until.is_some_and(|until| Instant::now() < until);
            match &verdict.problem {
                Some(problem) if may_retry && !verdict.is_final => {
                    tracing::debug!(%problem, "the system has booted; verifying again");
                    tokio::time::sleep(VERIFY_RETRY_INTERVAL).await;
                }
                _ => return verdict,
            }
        }
    }

    pub(super) fn has_booted_since_begin(&self, entry: &JournalEntry) -> bool {
        let began = last_event(entry, &EventKind::Began);
        began.is_some_and(|began| began.boot_id != self.parts.boot_id)
    }

    async fn verify_modules_once(&self, entry: &mut JournalEntry) -> Verdict {
        let steps = all_steps(entry);
        // Without the module of a step the result is a failure, and waiting does not change that.
        let missing = self.missing_module(entry);
        let mut combined = Verdict { is_final: missing.is_some(), problem: missing };
        for module in self.involved_modules(entry) {
            let (baseline, report) = baseline_and_report(entry, module.kind().name);
            match module.verify(&steps, baseline, report).await {
                Ok(verdict) => {
                    combined.problem = combined.problem.or(verdict.problem);
                    combined.is_final |= verdict.is_final;
                }
                Err(failure) => combined.problem = combined.problem.or(Some(failure)),
            }
        }
        combined
    }

    /// Reverts the change if the modules can; otherwise records a failure with the state of the node. Waits while another
    /// program is changing the same things, and until no prepared change is left that a reset would apply.
    pub(super) async fn revert_or_fail(
        &self,
        mut entry: JournalEntry,
        mut failure: Failure,
        verdict: Verdict,
    ) -> Result<JournalEntry, JournalError> {
        if self.find_concurrent_change(&entry, TryKind::First).await.is_some() {
            return Ok(self.keep_open(entry, CONCURRENT_CHANGE.to_owned()));
        }
        // Use the log of the verification if the failure has none of its own.
        if failure.log.is_empty()
            && let Some(problem) = &verdict.problem
        {
            failure.log.clone_from(&problem.log);
        }
        match self.undo_steps(&entry).await {
            Ok(UndoOutcome::Complete) => return self.end(entry, EventKind::Reverted { failure }),
            Ok(UndoOutcome::Impossible) => {}
            Err(undo_failure) => {
                let reason = failure.reason;
                let why = format!("{reason}; reverting failed and is tried again: {undo_failure}");
                self.resume_soon();
                return Ok(self.keep_open(entry, why));
            }
        }
        self.run_module_post_failure(&mut entry).await;
        // The tool's output says why, the verdict says what the result is.
        let failure = match verdict.problem {
            Some(problem) => Failure::with_log(
                failure.kind,
                format!("{}; {}", failure.reason, problem.reason),
                &failure.log,
            ),
            None => failure,
        };
        self.end(entry, EventKind::Failed { failure })
    }

    /// Undoes the steps of every module that took some. `Complete` only if each module verified that the node is as before.
    /// Fails if it must be tried again: a change that is still prepared would be applied by any reset.
    async fn undo_steps(&self, entry: &JournalEntry) -> Result<UndoOutcome, Failure> {
        let steps = all_steps(entry);
        let involved = self.involved_modules(entry);
        let mut is_complete = !involved.is_empty();
        let mut failure_to_retry = None;
        for module in involved {
            match module.undo(&steps).await {
                Ok(outcome) => is_complete &= outcome == UndoOutcome::Complete,
                Err(failure) => {
                    tracing::warn!(module = module.kind().name, error = %failure, "cannot revert the change");
                    is_complete = false;
                    if module.kind().applies_on_reboot {
                        failure_to_retry = failure_to_retry.or(Some(failure));
                    }
                }
            }
        }
        match failure_to_retry {
            Some(failure) => Err(failure),
            None if is_complete => Ok(UndoOutcome::Complete),
            None => Ok(UndoOutcome::Impossible),
        }
    }
}

/// The baseline that a module recorded before the change, and its report.
pub(super) fn baseline_and_report<'a>(
    entry: &'a mut JournalEntry,
    module: &str,
) -> (&'a Value, &'a mut Value) {
    (entry.baselines.get(module).unwrap_or(&EMPTY_BASELINE), entry.reports.entry(module))
}

/// Adds the texts that are not in the list yet. After a kill the same texts may be found again.
pub(super) fn add_missing(list: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for text in more {
        if !list.contains(&text) {
            list.push(text);
        }
    }
}
