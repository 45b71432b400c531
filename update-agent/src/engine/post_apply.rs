//! After the steps: post-apply work of the modules, a reboot if the change needs one, and the final verification.

use chrono::TimeDelta;

use super::apply::{add_missing, baseline_and_report};
use super::{Engine, all_steps};
use crate::journal::{JournalEntry, JournalError, Phase};
use crate::model::{EventKind, Failure, FailureKind, RebootRule};

/// The agent requests a reboot of the node at most this often in one attempt.
const MAX_REBOOT_REQUESTS: u32 = 3;
/// Time between two reboot requests, and after the last one.
const REBOOT_RETRY_INTERVAL: TimeDelta = TimeDelta::minutes(5);

impl Engine {
    /// Verifies the result of the steps. If it is as planned, runs the post-apply work and reboots if needed.
    pub(super) async fn post_apply(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        let mut verdict = self.verify_modules(&mut entry).await;
        if let Some(failure) = verdict.problem.take() {
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        let reasons = match self.run_module_post_apply(&mut entry).await {
            Ok(reasons) => reasons,
            Err(failure) => return Ok(self.keep_open(entry, failure.reason)),
        };
        if let Some(reasons) = reasons {
            match self.reboot_obstacle(&entry) {
                None => return self.begin_reboot(entry, &reasons),
                Some(why) => return self.skip_reboot(entry, &why).await,
            }
        }
        self.verify(entry).await
    }

    /// Handles a change that needs a reboot which the node must not make. A change that only the reboot applies is
    /// reverted: otherwise any later reboot would apply it, outside its window and unattended.
    async fn skip_reboot(
        &self,
        mut entry: JournalEntry,
        why: &str,
    ) -> Result<JournalEntry, JournalError> {
        if entry.reboot_is_the_change {
            let reason = format!("the change needs a reboot, but the node does not reboot: {why}");
            let failure = Failure::new(FailureKind::Reboot, reason);
            let verdict = self.verify_modules(&mut entry).await;
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        record_skipped_reboot(&mut entry, why);
        self.verify(entry).await
    }

    /// Runs the post-apply work of the modules. Returns the reasons for a reboot, if the change needs one. Fails if a
    /// module whose change is applied by the reboot fails: the attempt would end as finished without its change.
    async fn run_module_post_apply(
        &self,
        entry: &mut JournalEntry,
    ) -> Result<Option<Vec<String>>, Failure> {
        let steps = all_steps(entry);
        let mut reasons: Option<Vec<String>> = None;
        let mut first_failure = None;
        for module in self.involved_modules(entry) {
            let (baseline, report) = baseline_and_report(entry, module.kind().name);
            match module.post_apply(&steps, baseline, report).await {
                Ok(after) => {
                    add_missing(&mut entry.remarks, after.remarks);
                    entry.reboot_is_the_change |= after.reboot_is_the_change;
                    if let Some(more) = after.reboot {
                        reasons.get_or_insert_default().extend(more);
                    }
                }
                Err(failure) => {
                    tracing::warn!(module = module.kind().name, error = %failure, "the work after the change failed");
                    add_missing(&mut entry.remarks, [failure.remark("after the change")]);
                    if module.kind().applies_on_reboot {
                        first_failure = first_failure.or(Some(failure));
                    }
                }
            }
        }
        first_failure.map_or(Ok(reasons), Err)
    }

    /// Why the node must not reboot now although the change needs it; `None` if it may.
    fn reboot_obstacle(&self, entry: &JournalEntry) -> Option<String> {
        if entry.plan.reboot == RebootRule::Never {
            return Some("the policy does not allow the agent to reboot the node".to_owned());
        }
        if let Err(why) = (self.parts.may_reboot)() {
            return Some(why);
        }
        let is_late = self.is_past_deadline(entry);
        let closed = || is_late.then(|| "the window has closed".to_owned());
        self.parts.reboot.obstacle().or_else(closed)
    }

    /// Records in the journal that the node reboots. The reboot is requested when the attempt is resumed.
    fn begin_reboot(
        &self,
        mut entry: JournalEntry,
        reasons: &[String],
    ) -> Result<JournalEntry, JournalError> {
        tracing::warn!(attempt = %entry.attempt, reasons = reasons.join(", "), "the change needs a reboot");
        entry.phase = Phase::Rebooting;
        entry.boot_id.clone_from(&self.parts.boot_id);
        self.record_event(&mut entry, EventKind::RebootBegun);
        self.write_journal("reboot-begun", &entry)?;
        Ok(entry)
    }

    /// Resumes an attempt that waits for a reboot. In another boot the reboot is done. In the same boot it is requested,
    /// again if an earlier request had no effect.
    pub(super) async fn continue_reboot(
        &self,
        entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        if entry.boot_id != self.parts.boot_id {
            return self.verify(entry).await;
        }
        if !self.is_reboot_due(&entry) {
            return Ok(entry);
        }
        match self.reboot_obstacle(&entry) {
            None if entry.reboot_requests < MAX_REBOOT_REQUESTS => self.request_reboot(entry).await,
            Some(why) if entry.reboot_requests == 0 => self.skip_reboot(entry, &why).await,
            _ => self.end_without_reboot(entry).await,
        }
    }

    /// Whether the last reboot request had enough time. A request in the future means that the clock was turned back.
    fn is_reboot_due(&self, entry: &JournalEntry) -> bool {
        let now = self.now();
        entry.last_reboot_request.is_none_or(|at| at > now || now - at >= REBOOT_RETRY_INTERVAL)
    }

    async fn request_reboot(&self, mut entry: JournalEntry) -> Result<JournalEntry, JournalError> {
        entry.reboot_requests += 1;
        entry.last_reboot_request = Some(self.now());
        self.write_journal("reboot-begun", &entry)?;
        tracing::warn!(attempt = %entry.attempt, time = entry.reboot_requests, "rebooting");
        if let Err(failure) = self.parts.reboot.request_reboot().await {
            tracing::error!(attempt = %entry.attempt, error = %failure, "the node cannot be rebooted");
            add_missing(&mut entry.remarks, [failure.remark("reboot")]);
            self.write_journal("reboot-begun", &entry)?;
        }
        Ok(entry)
    }

    async fn end_without_reboot(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        let verdict = self.verify_modules(&mut entry).await;
        let times = match entry.reboot_requests {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        if entry.reboot_is_the_change {
            let reason = format!("the node did not reboot although the agent requested it {times}");
            let failure = Failure::new(FailureKind::Reboot, reason);
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        entry.reboot_required = true;
        let mut reason = format!(
            "the change is applied, but the node did not reboot although the agent requested it {times}; reboot it by hand"
        );
        let log = verdict.problem.map_or_else(String::new, |problem| {
            reason = format!("{reason}; {}", problem.reason);
            problem.log
        });
        let failure = Failure::with_log(FailureKind::Reboot, reason, &log);
        self.end(entry, EventKind::Failed { failure })
    }

    /// The final verification, which decides the outcome.
    pub(super) async fn verify(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        if entry.phase != Phase::Verifying {
            entry.phase = Phase::Verifying;
            self.record_event(&mut entry, EventKind::VerifyBegun);
            self.write_journal("verify-begun", &entry)?;
        }
        let mut verdict = self.verify_modules(&mut entry).await;
        if let Some(failure) = verdict.problem.take() {
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        if entry.reboot_is_the_change {
            // Post-apply work has a result only now, after the reboot. Its failures are recorded in the remarks.
            self.run_module_post_apply(&mut entry).await.ok();
        }
        self.end(entry, EventKind::Finished)
    }
}

/// Records that the change needs a reboot that the node does not make.
fn record_skipped_reboot(entry: &mut JournalEntry, why: &str) {
    tracing::warn!(attempt = %entry.attempt, why, "the node does not reboot although the change needs it");
    entry.reboot_required = true;
    let remark = format!("the change needs a reboot, but the node does not reboot: {why}");
    add_missing(&mut entry.remarks, [remark]);
}
