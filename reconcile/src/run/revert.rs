//! Plans the reversal of a run.

use std::collections::BTreeSet;

use evenkeel_configuration::Component;

use super::document_index::DocumentIndex;
use super::ownership::list_paths;
use super::pass::RunJournal;
use super::plan::{RunPlan, Stage, Step, UnitAction};
use super::progress::RunProgress;
use super::report::{RunOutcome, RunReport};
use super::state::RestartReason;
use super::{Run, RunError};
use crate::check::MachineCheck;
use crate::files::{RootFolder, split_parent};
use crate::finding::EntryKey;
use crate::names::{AGENT_UNIT, drop_in_path};

/// Plans what restores the files and units that a run has changed.
///
/// Units with a new unit file are disabled and stopped while they still have it. Units that the run
/// has started or stopped get their old activity, and the other ones that use restored files
/// restart.
pub(super) fn plan_reversal(progress: &RunProgress, has_systemd: bool) -> RunPlan {
    let mut steps = Vec::new();
    for (unit, change) in &progress.units {
        let unit = unit.clone();
        if unit == AGENT_UNIT {
            continue;
        }
        if change.is_new {
            steps.push(Step::retire(unit.clone()));
        }
        if change.enabled == Some(true) {
            steps.push(Step::DisableUnit { unit });
        }
    }
    steps.push(Step::RestoreFiles);
    if has_systemd {
        steps.push(Step::ReloadUnits);
    }
    let disabled = progress.units.iter().filter(|(_, change)| change.enabled == Some(false));
    steps.extend(disabled.map(|(unit, _)| Step::EnableUnit { unit: unit.clone() }));
    let mut commands = Vec::new();
    for (unit, change) in progress.units.iter().filter(|_| has_systemd) {
        let command = match change.started {
            _ if change.is_new => UnitAction::TryRestart,
            Some(true) if unit != AGENT_UNIT => UnitAction::Stop,
            Some(false) => UnitAction::Start,
            _ if change.has_failed_restart => UnitAction::Restart,
            _ if change.has_new_files => UnitAction::TryRestart,
            _ => continue,
        };
        // A new unit only restarts if a package has a unit file for it.
        let is_due = !change.is_new;
        commands.push(Step::RunUnit { unit: unit.clone(), command, is_due });
    }
    commands.sort_by_key(
        |step| matches!(step, Step::RunUnit { unit, .. } if unit.as_str() == AGENT_UNIT),
    );
    steps.extend(commands);
    let steps = steps.into_iter().map(|step| step.with(Vec::new())).collect();
    RunPlan { steps, has_systemd, has_pending_actions: false }
}

impl Run<'_> {
    /// Restores the files, kernel values and units that the run has changed, for example because the
    /// node does not reach its server any more. Packages and accounts stay.
    ///
    /// # Errors
    /// The reversal has stopped before its end.
    pub fn revert(&mut self, journal: &mut dyn RunJournal) -> Result<RunReport, RunError> {
        if !self.progress.is_reverting {
            self.begin_reversal(journal)?;
        }
        self.execute(journal)
    }

    /// Plans the reversal, or what an earlier attempt of it could not restore. Nothing has changed
    /// if the journal cannot store the plan.
    pub(super) fn begin_reversal(&mut self, journal: &mut dyn RunJournal) -> Result<(), RunError> {
        if !self.progress.is_reverting {
            self.assume_interrupted_step()?;
        }
        let root = RootFolder::open(&self.context.machine.root)?;
        let plan = plan_reversal(&self.progress, self.check()?.has_systemd);
        let mut progress = self.progress.clone();
        progress.begin_reversal();
        self.begin_pass(journal, &root, (Stage::Entries, plan, progress))?;
        self.has_ended_reversal = false;
        Ok(())
    }

    pub(super) fn finish_reversal(&mut self, root: &RootFolder, check: MachineCheck) -> RunReport {
        self.progress.complete_reversal(root, &self.index);
        let has_failed = self.progress.has_failed_reversal_step;
        self.has_ended_reversal = self.progress.has_failed_restoration;
        let outcome = if has_failed { RunOutcome::ReversalFailed } else { RunOutcome::Reverted };
        self.finish(check, outcome)
    }
}

fn has_path(root: &RootFolder, path: &str) -> bool {
    let found = split_parent(path)
        .and_then(|(parent, name)| root.open_folder(parent).ok()?.stat(name).ok());
    found.is_some()
}

impl RunProgress {
    /// Returns to the state before the run, except for packages and accounts, which stay.
    fn begin_reversal(&mut self) {
        if self.is_reverting {
            self.failures.truncate(self.failures_before_reversal);
        } else {
            self.owned_before_reversal = self.state.owned.clone();
            self.failures_before_reversal = self.failures.len();
        }
        let is_restored = |key: &&EntryKey| {
            !matches!(key.component, Component::Package | Component::User | Component::UserGroup)
        };
        let old = &self.old_state;
        let owned = &mut self.state.owned;
        owned.entries.retain(|key| !is_restored(&key));
        owned.entries.extend(old.owned.entries.iter().filter(is_restored).cloned());
        owned.drop_ins.clone_from(&old.owned.drop_ins);
        owned.file_units.clone_from(&old.owned.file_units);
        self.state.pending_restarts.clone_from(&old.pending_restarts);
        self.due_actions.clone_from(&old.pending_actions);
        self.failed_actions.clear();
        let has_sources = self.changed.iter().any(|key| key.component == Component::PackageSource);
        self.state.has_old_package_lists |= has_sources;
        self.changed.retain(|key| !is_restored(&key));
        self.failed_units.clear();
        self.has_failed_restoration = false;
        self.has_failed_reversal_step = false;
        self.is_reverting = true;
    }

    /// A unit that does not restart after a reversal must restart in the next run. What could not be
    /// removed still belongs to the node.
    pub(super) fn complete_reversal(&mut self, root: &RootFolder, index: &DocumentIndex<'_>) {
        let mut units: BTreeSet<String> = self.failed_units.clone();
        if self.state.has_unread_units {
            let changed = self.units.iter().filter(|(_, change)| change.has_new_files);
            units.extend(changed.map(|(unit, _)| unit.clone()));
        }
        for unit in units.iter().filter(|unit| index.find_unit(unit).is_some()) {
            self.state.add_restart(unit, RestartReason::Reverted);
        }
        if !self.has_failed_restoration {
            return;
        }
        let mut kept = self.owned_before_reversal.clone();
        kept.entries.retain(|key| list_paths(key).iter().any(|path| has_path(root, path)));
        for (unit, names) in &mut kept.drop_ins {
            names.retain(|name| has_path(root, &drop_in_path(unit, name)));
        }
        kept.drop_ins.retain(|_, names| !names.is_empty());
        self.state.owned.merge(kept);
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty() || !self.units.is_empty()
    }
}
