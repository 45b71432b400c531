//! After the steps: post-apply work of the modules, and the final verification.

use super::apply::{add_missing, baseline_and_report};
use super::{Engine, all_steps};
use crate::journal::{JournalEntry, JournalError, Phase};
use crate::model::{EventKind, Failure};

impl Engine {
    /// Verifies the result of the steps. If it is as planned, reboots if the change needs that, and otherwise runs the
    /// post-apply work.
    pub(super) async fn post_apply(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        let mut verdict = self.verify_modules(&mut entry).await;
        if let Some(failure) = verdict.problem.take() {
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        match self.find_reboot_need(&mut entry).await {
            Ok(Some(reasons)) => {
                entry.reboot_reasons = reasons;
                self.begin_reboot(entry).await
            }
            Ok(None) => self.finish_without_reboot(entry).await,
            Err(failure) => Ok(self.keep_open(entry, failure.reason)),
        }
    }

    /// Runs the post-apply work, such as restarts of services, and verifies the node after it. Work that a reboot would
    /// make superfluous is done only here.
    pub(super) async fn finish_without_reboot(
        &self,
        mut entry: JournalEntry,
    ) -> Result<JournalEntry, JournalError> {
        self.run_module_post_apply(&mut entry).await;
        self.verify(entry).await
    }

    /// The reasons for a reboot, if the change needs one. Fails if a module whose change is applied by the reboot fails:
    /// the attempt would end as finished without its change.
    async fn find_reboot_need(
        &self,
        entry: &mut JournalEntry,
    ) -> Result<Option<Vec<String>>, Failure> {
        let steps = all_steps(entry);
        let mut reasons: Option<Vec<String>> = None;
        let mut first_failure = None;
        for module in self.involved_modules(entry) {
            let (baseline, _) = baseline_and_report(entry, module.kind().name);
            match module.find_reboot_need(&steps, baseline).await {
                Ok(need) => {
                    entry.reboot_is_the_change |= need.is_the_change;
                    if let Some(more) = need.reasons {
                        reasons.get_or_insert_default().extend(more);
                    }
                }
                Err(failure) => {
                    record_failed_work(entry, module.kind().name, &failure);
                    if module.kind().applies_on_reboot {
                        first_failure = first_failure.or(Some(failure));
                    }
                }
            }
        }
        first_failure.map_or(Ok(reasons), Err)
    }

    /// Runs the post-apply work of the modules. Its failures are recorded in the remarks.
    async fn run_module_post_apply(&self, entry: &mut JournalEntry) {
        let steps = all_steps(entry);
        for module in self.involved_modules(entry) {
            let (baseline, report) = baseline_and_report(entry, module.kind().name);
            match module.post_apply(&steps, baseline, report).await {
                Ok(remarks) => add_missing(&mut entry.remarks, remarks),
                Err(failure) => record_failed_work(entry, module.kind().name, &failure),
            }
        }
    }

    /// Runs the work of the modules after a failure that is not undone. Its own failures are recorded in the remarks.
    pub(super) async fn run_module_post_failure(&self, entry: &mut JournalEntry) {
        let steps = all_steps(entry);
        for module in self.involved_modules(entry) {
            let (baseline, report) = baseline_and_report(entry, module.kind().name);
            match module.post_failure(&steps, baseline, report).await {
                Ok(remarks) => add_missing(&mut entry.remarks, remarks),
                Err(failure) => record_failed_work(entry, module.kind().name, &failure),
            }
        }
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
        let has_booted = self.has_booted_since_begin(&entry);
        if let Some(failure) = self.find_health_problem(&mut entry, has_booted).await {
            return self.revert_or_fail(entry, failure, verdict).await;
        }
        if entry.reboot_is_the_change {
            // Post-apply work has a result only now, after the reboot.
            self.run_module_post_apply(&mut entry).await;
        }
        let hook_result = self.parts.machine_gate.run_after_update_hooks().await;
        add_missing(&mut entry.remarks, hook_result.err());
        self.end(entry, EventKind::Finished)
    }
}

fn record_failed_work(entry: &mut JournalEntry, module: &str, failure: &Failure) {
    tracing::warn!(module, error = %failure, "the work after the change failed");
    add_missing(&mut entry.remarks, [failure.remark("after the change")]);
}
