//! After the steps: post-apply work of the modules, and the final verification.

use super::apply::{add_missing, baseline_and_report};
use super::{Engine, all_steps};
use crate::journal::{JournalEntry, JournalError, Phase};
use crate::model::{EventKind, Failure};

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
        match reasons {
            Some(reasons) => {
                entry.reboot_reasons = reasons;
                self.begin_reboot(entry).await
            }
            None => self.verify(entry).await,
        }
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
