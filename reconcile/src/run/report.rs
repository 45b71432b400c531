//! The result of a run.

use std::collections::BTreeSet;

use evenkeel_configuration::Component;
use serde::{Deserialize, Serialize};

use super::Run;
use super::plan::{RunPlan, UnitAction};
use super::planner::{plan, unit_action};
use super::progress::{RunFailure, RunProgress};
use super::state::NodeState;
use crate::check::{MachineCheck, must_run};
use crate::finding::EntryKey;
use crate::report::{Report, Verdict};

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    pub outcome: RunOutcome,
    /// The check of the machine after the run.
    pub report: Report,
    /// What a next run would do now, with the actions that run always. For an audit: what a run
    /// would do.
    pub remaining: RunPlan,
    /// What the run has changed, also objects that the document does not have.
    pub changed: BTreeSet<EntryKey>,
    pub failures: Vec<RunFailure>,
    /// What the caller must store for the next run.
    pub state: NodeState,
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOutcome {
    /// The document only audits: nothing has changed.
    Audited,
    /// All entries are good, and nothing has failed.
    Succeeded,
    /// An entry is bad, or something has failed.
    Failed,
    /// The run failed or was reverted: the files, kernel values and units are as before.
    Reverted,
    /// The run failed or was reverted, and the failures name what is not as before. If files or
    /// kernel values are missing, [`Run::execute`] attempts the reversal again.
    ReversalFailed,
}

/// Marks the entries that a run has changed, and adds why bad entries could not be corrected.
fn complete_report(report: &mut Report, changed: &BTreeSet<EntryKey>, failures: &[RunFailure]) {
    for entry in &mut report.entries {
        let key = EntryKey::new(entry.component, &entry.name);
        entry.modified = changed.contains(&key);
        if entry.verdict != Verdict::Bad {
            continue;
        }
        for failure in failures.iter().filter(|failure| failure.entry.as_ref() == Some(&key)) {
            if !entry.reason.contains(&failure.reason) {
                entry.reason.push_str("; ");
                entry.reason.push_str(&failure.reason);
            }
        }
    }
}

impl Run<'_> {
    /// How the run ends, if nothing is left to do.
    pub(super) fn outcome(&self, check: &MachineCheck) -> RunOutcome {
        let is_bad = self.has_failed(check) || !check.failed.is_empty();
        if is_bad { RunOutcome::Failed } else { RunOutcome::Succeeded }
    }

    /// Whether the run could not do its work. It is not its fault that an entry was not bound.
    pub(super) fn has_failed(&self, check: &MachineCheck) -> bool {
        !bad_entries(check).is_empty() || !self.failures(check).is_empty()
    }

    /// The failures, without those of entries that are good nevertheless.
    pub(super) fn failures(&self, check: &MachineCheck) -> Vec<RunFailure> {
        let good: BTreeSet<EntryKey> = check
            .entries
            .iter()
            .filter(|entry| entry.report.verdict == Verdict::Good)
            .map(|entry| EntryKey::new(entry.report.component, &entry.report.name))
            .collect();
        let is_left = |failure: &&RunFailure| {
            is_final(failure, &self.progress)
                || failure.entry.as_ref().is_none_or(|key| !good.contains(key))
        };
        let mut failures: Vec<RunFailure> =
            self.progress.failures.iter().filter(is_left).cloned().collect();
        failures.extend(self.old_interruptions(&good));
        failures
    }

    /// Failures of entries that are not attempted, because they have interrupted an earlier run.
    fn old_interruptions(&self, good: &BTreeSet<EntryKey>) -> Vec<RunFailure> {
        let state = &self.progress.state;
        let is_left = |key: &&EntryKey| {
            let Some((bundle, _)) = self.index.find(key) else { return false };
            let is_covered = self.context.scope.covers_bundle(&bundle.name)
                && !self.progress.interrupted.contains(*key);
            let mut entries = bundle.entries.iter().map(EntryKey::from_entry);
            let is_due = if key.component == Component::Action {
                // An action before the change keeps its bundle as it is.
                self.progress.excluded.contains(&bundle.name)
                    && entries.any(|e| e.component != Component::Action && !good.contains(&e))
            } else {
                !good.contains(*key) || state.pending_restarts.contains_key(&key.name)
            };
            is_covered && is_due
        };
        let reason = "it has interrupted an earlier run; it is attempted again with another revision \
                      of the document";
        let keys = state.interruptions.entries.iter().filter(is_left);
        keys.map(|key| RunFailure::of_entry(key.clone(), reason)).collect()
    }

    /// Ends the run.
    pub(super) fn finish(&mut self, check: MachineCheck, outcome: RunOutcome) -> RunReport {
        let failures = self.failures(&check);
        if outcome != RunOutcome::Audited {
            self.update_state(&bad_entries(&check));
            self.store_pending();
        }
        let state = self.progress.state.clone();
        let remaining = plan(&check, self.context.document, self.context.scope, &state);
        let mut report = Report::from(check);
        complete_report(&mut report, &self.progress.changed, &failures);
        let changed = self.progress.changed.clone();
        RunReport { outcome, report, remaining, changed, failures, state }
    }

    /// Records what the next run must know: the actions that are due, and interruptions.
    pub(super) fn store_pending(&mut self) {
        self.progress.state.pending_actions = self.progress.pending_actions(&self.index);
        let interruptions = &mut self.progress.state.interruptions;
        if !interruptions.entries.is_empty() {
            interruptions.revision.clone_from(&self.revision);
        }
    }

    /// Records which units use owned files, and removes reasons that no restart will remove, and
    /// owned objects that are gone because their entry demands it.
    fn update_state(&mut self, bad: &BTreeSet<EntryKey>) {
        let state = &mut self.progress.state;
        state.owned.entries.retain(|key| {
            let is_gone = self.index.find(key).is_some() && !self.index.has_present(key);
            !is_gone || bad.contains(key)
        });
        state.pending_restarts.retain(|unit, _| {
            let entry = self.index.find_unit(unit);
            entry.is_none_or(|(_, unit)| must_run(unit) && unit_action(unit) == UnitAction::Restart)
        });
        if self.progress.is_reverting || !self.context.scope.is_whole() {
            return;
        }
        let owned = &mut state.owned;
        for key in owned.entries.iter().filter(|key| key.component == Component::File) {
            if self.index.find(key).is_some() {
                let units = self.index.units_of_file(&key.name);
                let units: BTreeSet<String> = units.iter().map(|unit| (*unit).to_owned()).collect();
                if units.is_empty() {
                    owned.file_units.remove(&key.name);
                } else {
                    owned.file_units.insert(key.name.clone(), units);
                }
            }
        }
    }
}

pub(super) fn bad_entries(check: &MachineCheck) -> BTreeSet<EntryKey> {
    let bad = check.entries.iter().filter(|entry| entry.report.verdict == Verdict::Bad);
    bad.map(|entry| EntryKey::new(entry.report.component, &entry.report.name)).collect()
}

/// Whether a failure stays although its entry is good: an action, a restart, the removal of a unit
/// or an interrupted step is not attempted again in the run.
pub(super) fn is_final(failure: &RunFailure, progress: &RunProgress) -> bool {
    failure.entry.as_ref().is_none_or(|key| match key.component {
        Component::Action => true,
        Component::Unit if progress.failed_units.contains(&key.name) => true,
        _ => progress.failed_retirements.contains(key) || progress.interrupted.contains(key),
    })
}
