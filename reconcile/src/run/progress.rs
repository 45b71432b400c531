//! What a run has done so far.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_configuration::Component;
use evenkeel_configuration::document::ActionTiming;
use serde::{Deserialize, Serialize};

use super::document_index::{DocumentIndex, actions_of, runs_always};
use super::plan::{EntryChange, PlannedStep, Step, UnitAction};
use super::state::{NodeState, RestartReason};
use crate::finding::{Difference, EntryKey};
use crate::names::is_in_unit_folder;

/// A part of a run that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunFailure {
    /// The entry that it concerns, if it is a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryKey>,
    /// Why, as a sentence without a full stop.
    pub reason: String,
}

impl RunFailure {
    pub(crate) fn of_entry(entry: EntryKey, reason: impl Into<String>) -> Self {
        Self { entry: Some(entry), reason: reason.into() }
    }

    pub(crate) fn of_run(reason: impl Into<String>) -> Self {
        Self { entry: None, reason: reason.into() }
    }
}

/// What a run has done so far. It follows from the steps that are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RunProgress {
    /// What the node keeps, as far as the run has changed it.
    pub state: NodeState,
    /// The state before the run.
    pub old_state: NodeState,
    /// Number of the round: bad entries are planned again if the last round corrected one.
    pub round: u32,
    /// Bad entries when the round began.
    pub bad_before: BTreeSet<EntryKey>,
    /// How many objects without an entry the run had changed when the round began.
    pub removed_before: usize,
    /// Sources and packages of the round. They are not planned again in the round.
    pub attempted: BTreeSet<EntryKey>,
    /// Bundles whose action before the change has failed.
    pub excluded: BTreeSet<String>,
    /// Actions that have run before the change.
    pub pre_actions: BTreeSet<String>,
    /// Actions that must run after the change.
    pub due_actions: BTreeSet<String>,
    /// Units whose command has failed: it is not repeated in this run.
    pub failed_units: BTreeSet<String>,
    /// Entries, and objects without an entry, that the run has changed.
    pub changed: BTreeSet<EntryKey>,
    /// What the run has done with units, for a reversal.
    pub units: BTreeMap<String, UnitChange>,
    pub failures: Vec<RunFailure>,
    pub is_reverting: bool,
}

/// What a run has done with a unit, for a reversal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct UnitChange {
    /// The run has enabled (true) or disabled the unit.
    pub enabled: Option<bool>,
    /// The run has started (true) the unit that did not run, or has stopped it.
    pub started: Option<bool>,
    /// The unit had no unit file.
    pub is_new: bool,
    /// Its files, or files that it uses, have changed.
    pub has_new_files: bool,
    /// The unit ran before a restart that has failed.
    pub has_failed_restart: bool,
}

impl RunProgress {
    pub fn new(state: NodeState, index: &DocumentIndex<'_>) -> Self {
        let bundles = index.document.bundles.iter();
        let actions = bundles.flat_map(|bundle| actions_of(bundle, ActionTiming::Post));
        let always = actions.filter(|(_, action)| runs_always(action));
        let due_actions = always.map(|(name, _)| name.to_owned()).collect();
        Self { old_state: state.clone(), state, due_actions, ..Self::default() }
    }

    /// Records a complete step with what has failed in it.
    pub fn complete(
        &mut self,
        (planned, has_systemd): (&PlannedStep, bool),
        failures: &[RunFailure],
        index: &DocumentIndex<'_>,
    ) {
        let has_failed =
            |key: &EntryKey| failures.iter().any(|failure| failure.entry.as_ref() == Some(key));
        for change in planned.changes.iter().filter(|change| !has_failed(&change.entry)) {
            self.complete_change(change, has_systemd, index);
        }
        let is_good = failures.is_empty();
        match &planned.step {
            Step::PreAction { bundle, name } => {
                self.pre_actions.insert(name.clone());
                if !is_good {
                    self.excluded.insert(bundle.clone());
                }
            }
            Step::PostAction { name, .. } => {
                self.due_actions.remove(name);
            }
            Step::WriteSources => {
                self.attempted.extend(planned.changes.iter().map(|change| change.entry.clone()));
                self.state.has_old_package_lists |=
                    planned.changes.iter().any(|change| !has_failed(&change.entry));
            }
            Step::ReloadUnits => self.state.has_unread_units &= !is_good,
            Step::RestoreFiles => self.state.has_unread_units |= has_systemd,
            Step::ChangePackages { .. } => {
                self.attempted.extend(planned.changes.iter().map(|change| change.entry.clone()));
                self.state.has_old_package_lists &= !is_good;
            }
            _ => self.complete_unit(planned, is_good, index),
        }
        self.failures.extend_from_slice(failures);
    }

    /// Records what a step that was stopped may have changed.
    pub fn assume_changes(
        &mut self,
        (planned, has_systemd): (&PlannedStep, bool),
        index: &DocumentIndex<'_>,
    ) {
        for change in &planned.changes {
            self.complete_change(change, has_systemd, index);
        }
    }

    fn complete_unit(&mut self, planned: &PlannedStep, is_good: bool, index: &DocumentIndex<'_>) {
        match &planned.step {
            Step::EnableUnit { unit } if is_good => self.unit(unit).enabled = Some(true),
            Step::DisableUnit { unit } if is_good => self.unit(unit).enabled = Some(false),
            Step::RetireUnit { unit, was_enabled, was_active, has_other_file } => {
                let change = self.unit(unit);
                if *has_other_file {
                    change.has_new_files = true;
                    self.state.add_restart(unit, RestartReason::UnitFiles);
                    return;
                }
                change.enabled = was_enabled.then_some(false).or(change.enabled);
                change.started = was_active.then_some(false).or(change.started);
                self.state.clear_restart(unit);
            }
            Step::RunUnit { unit, .. } if is_good => self.state.clear_restart(unit),
            Step::RunUnit { unit, .. } => {
                if index.find_unit(unit).is_none() {
                    // The document does not have the unit, so no run repeats the restart.
                    self.state.clear_restart(unit);
                }
                self.failed_units.insert(unit.clone());
                self.unit(unit).has_failed_restart = planned.changes.is_empty();
            }
            _ => {}
        }
    }

    /// How many objects without an entry the run has changed, such as stale users.
    pub fn removed_objects(&self, index: &DocumentIndex<'_>) -> usize {
        self.changed.iter().filter(|key| index.find(key).is_none()).count()
    }

    fn unit(&mut self, name: &str) -> &mut UnitChange {
        self.units.entry(name.to_owned()).or_default()
    }

    fn complete_change(
        &mut self,
        change: &EntryChange,
        has_systemd: bool,
        index: &DocumentIndex<'_>,
    ) {
        let key = &change.entry;
        self.changed.insert(key.clone());
        if let Some((bundle, _)) = index.find(key) {
            let actions = actions_of(bundle, ActionTiming::Post);
            self.due_actions.extend(actions.map(|(name, _)| name.to_owned()));
        }
        let is_present = index.has_present(key);
        let owned = &mut self.state.owned;
        if !is_present && change.has(&Difference::Existence) {
            owned.remove(key);
        } else if change.has(&Difference::Existence) || key.component == Component::Sysctl {
            owned.entries.insert(key.clone());
        }
        match key.component {
            Component::Unit => self.complete_unit_change(change, has_systemd, index),
            Component::File => {
                self.state.has_unread_units |= has_systemd && is_in_unit_folder(&key.name);
                for unit in index.units_of_file(&key.name) {
                    self.unit(unit).has_new_files = true;
                    if has_systemd {
                        let reason = RestartReason::File(key.name.clone());
                        self.state.add_restart(unit, reason);
                    }
                }
            }
            _ => {}
        }
    }

    fn complete_unit_change(
        &mut self,
        change: &EntryChange,
        has_systemd: bool,
        index: &DocumentIndex<'_>,
    ) {
        let name = &change.entry.name;
        let unit = index.find_unit(name);
        let mut has_new_files = false;
        for difference in &change.differences {
            match difference {
                Difference::DropIn { name: drop_in, is_missing } => {
                    has_new_files = true;
                    let owned = &mut self.state.owned;
                    if unit.is_none_or(|(_, state)| !state.drop_ins.contains_key(drop_in)) {
                        owned.remove_drop_in(name, drop_in);
                    } else if *is_missing {
                        let drop_ins = owned.drop_ins.entry(name.clone()).or_default();
                        drop_ins.insert(drop_in.clone());
                    }
                }
                Difference::Existence => {
                    has_new_files = unit.is_some();
                    self.unit(name).is_new |= unit.is_some();
                }
                Difference::Content => has_new_files = true,
                Difference::Activity => {
                    let is_started = unit.is_some_and(|(_, state)| crate::check::must_run(state));
                    self.unit(name).started = Some(is_started);
                }
                _ => {}
            }
        }
        // A unit without an entry whose unit file is removed is retired.
        let is_retired = unit.is_none() && change.has(&Difference::Existence);
        self.state.has_unread_units |= has_systemd && (has_new_files || is_retired);
        if has_new_files && !is_retired {
            self.unit(name).has_new_files = true;
            if has_systemd {
                self.state.add_restart(name, RestartReason::UnitFiles);
            }
        }
    }
}

/// Whether a command of a unit is due, because of its activity or of a pending restart.
pub(crate) fn is_command_due(planned: &PlannedStep, state: &NodeState) -> bool {
    match &planned.step {
        Step::RunUnit { unit, command, is_due } => {
            let is_pending = state.pending_restarts.contains_key(unit);
            let restarts = matches!(command, UnitAction::Restart | UnitAction::TryRestart);
            *is_due || !planned.changes.is_empty() || (restarts && is_pending)
        }
        _ => true,
    }
}
