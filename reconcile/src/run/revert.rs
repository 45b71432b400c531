//! Plans the reversal of a run.

use evenkeel_configuration::Component;

use super::document_index::DocumentIndex;
use super::plan::{RunPlan, Stage, Step, UnitAction};
use super::progress::RunProgress;
use super::state::RestartReason;
use crate::finding::EntryKey;
use crate::names::AGENT_UNIT;

/// Plans what restores the files and units that a run has changed.
///
/// Units with a new unit file are disabled and stopped while they still have it. Units that the run
/// has started or stopped get their old activity, and the other ones that use restored files
/// restart.
pub(super) fn plan_reversal(progress: &RunProgress, has_systemd: bool) -> RunPlan {
    let mut steps = Vec::new();
    for (unit, change) in &progress.units {
        let unit = unit.clone();
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
            Some(true) => UnitAction::Stop,
            Some(false) => UnitAction::Start,
            None if change.has_failed_restart => UnitAction::Restart,
            None if change.has_new_files => UnitAction::TryRestart,
            None => continue,
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
    RunPlan { steps, has_systemd }
}

/// The stage of a reversal.
pub(super) const REVERSAL_STAGE: Stage = Stage::Entries;

impl RunProgress {
    /// Returns to the state before the run, except for packages and accounts, which stay.
    pub(super) fn begin_reversal(&mut self) {
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
        let has_sources = self.changed.iter().any(|key| key.component == Component::PackageSource);
        self.state.has_old_package_lists |= has_sources;
        self.changed.retain(|key| !is_restored(&key));
        self.failed_units.clear();
        self.is_reverting = true;
    }

    /// A unit that does not restart after a reversal must restart in the next run.
    pub(super) fn complete_reversal(&mut self, index: &DocumentIndex<'_>) {
        let units = self.failed_units.iter();
        for unit in units.filter(|unit| index.find_unit(unit).is_some()) {
            let reasons = self.state.pending_restarts.entry(unit.clone()).or_default();
            reasons.insert(RestartReason::Reverted);
        }
    }

    pub(super) fn has_changes(&self) -> bool {
        !self.changed.is_empty() || !self.units.is_empty()
    }
}
