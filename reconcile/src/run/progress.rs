//! What a run has done so far.

mod changes;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{ActionSpec, ActionTiming, Bundle, Desired};
use serde::{Deserialize, Serialize};

use super::document_index::{DocumentIndex, actions_of, runs_always};
use super::ownership::hand_over;
use super::pass::CompletedStep;
use super::plan::{EntryChange, PlannedStep, Step, UnitAction};
use super::state::{Interruptions, NodeState, OwnedEntries};
use crate::finding::EntryKey;

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
    /// Actions after the change that have run.
    pub run_actions: BTreeSet<String>,
    /// Actions after the change that have failed. They are not repeated in this run.
    pub failed_actions: BTreeSet<String>,
    /// Units whose command has failed: it is not repeated in this run.
    pub failed_units: BTreeSet<String>,
    /// Units without an entry that could not be disabled or stopped. Their files stay.
    pub failed_retirements: BTreeSet<EntryKey>,
    /// Steps that have interrupted the run. They are not repeated in this run.
    pub interrupted: BTreeSet<EntryKey>,
    /// The values of the running kernel before the run, of the settings that it has set.
    pub kernel_values: BTreeMap<String, String>,
    /// Why systemd has not read the unit files.
    pub reload_failures: BTreeSet<String>,
    /// What the node owned when a reversal began.
    pub owned_before_reversal: OwnedEntries,
    /// Whether the reversal could not restore a file or a kernel value.
    pub has_failed_restoration: bool,
    /// How many failures the run had when its reversal began.
    pub failures_before_reversal: usize,
    /// Whether a step of the reversal has failed.
    pub has_failed_reversal_step: bool,
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
    /// The progress of a run that begins. `revision` is the one of the document.
    pub fn new(mut state: NodeState, index: &DocumentIndex<'_>, revision: &str) -> Self {
        hand_over(&mut state.owned, index);
        if state.interruptions.revision != revision {
            state.interruptions = Interruptions::default();
        }
        let has_interrupted = |name: &str| {
            let key = EntryKey::new(Component::Action, name);
            state.interruptions.entries.contains(&key)
        };
        // Its entries must not change without the action before the change.
        let is_excluded = |bundle: &&Bundle| {
            actions_of(bundle, ActionTiming::Pre).any(|(name, _)| has_interrupted(name))
        };
        let excluded = index.document.bundles.iter().filter(is_excluded);
        let excluded = excluded.map(|bundle| bundle.name.clone()).collect();
        let bundles = index.document.bundles.iter();
        let actions: Vec<(&str, &ActionSpec)> =
            bundles.flat_map(|bundle| actions_of(bundle, ActionTiming::Post)).collect();
        let always =
            actions.iter().filter(|(name, action)| runs_always(action) && !has_interrupted(name));
        let mut due_actions: BTreeSet<String> =
            always.map(|(name, _)| (*name).to_owned()).collect();
        state.pending_actions.retain(|name| actions.iter().any(|(other, _)| other == name));
        due_actions.extend(state.pending_actions.iter().cloned());
        Self { old_state: state.clone(), state, due_actions, excluded, ..Self::default() }
    }

    /// Records a complete step with what has failed in it.
    pub fn complete(
        &mut self,
        (planned, has_systemd): (&PlannedStep, bool),
        result: &CompletedStep,
        index: &DocumentIndex<'_>,
    ) {
        let failures = &result.failures;
        let has_failed =
            |key: &EntryKey| failures.iter().any(|failure| failure.entry.as_ref() == Some(key));
        let changed = planned.changes.iter().filter(|change| !has_failed(&change.entry));
        let changed: Vec<&EntryChange> = changed.chain(&result.partial_changes).collect();
        for change in &changed {
            self.complete_change(change, has_systemd, index);
        }
        let is_good = failures.is_empty();
        self.has_failed_reversal_step |= self.is_reverting && !is_good;
        match &planned.step {
            Step::PreAction { bundle, name } => {
                self.pre_actions.insert(name.clone());
                if !is_good {
                    self.excluded.insert(bundle.clone());
                }
            }
            Step::PostAction { name, .. } => {
                let was_due = self.due_actions.remove(name);
                if was_due {
                    self.run_actions.insert(name.clone());
                }
                if was_due && !is_good && !result.is_interrupted {
                    self.failed_actions.insert(name.clone());
                }
            }
            Step::WriteSources => {
                self.attempted.extend(planned.changes.iter().map(|change| change.entry.clone()));
                self.state.has_old_package_lists |= !changed.is_empty();
            }
            Step::ReloadUnits => {
                self.state.has_unread_units &= !is_good;
                let reasons = failures.iter().map(|failure| failure.reason.clone());
                self.reload_failures.extend(reasons);
                if is_good {
                    // It makes up for an earlier one that has failed.
                    let old = std::mem::take(&mut self.reload_failures);
                    self.failures.retain(|failure| {
                        failure.entry.is_some() || !old.contains(&failure.reason)
                    });
                }
            }
            Step::RestoreFiles => {
                self.state.has_unread_units |= has_systemd;
                self.has_failed_restoration |= result.can_restore_more || result.is_interrupted;
            }
            Step::ChangePackages { .. } => {
                self.attempted.extend(planned.changes.iter().map(|change| change.entry.clone()));
                self.state.has_old_package_lists &= !is_good;
            }
            _ => {
                // A repeated reversal is planned from what the run has done.
                let units = self.is_reverting.then(|| self.units.clone());
                self.complete_unit(planned, is_good, index);
                self.units = units.unwrap_or_else(|| std::mem::take(&mut self.units));
            }
        }
        if result.is_interrupted {
            self.record_interruption(planned);
            if planned.step.changes_files() {
                // Files may have changed, so that units restart. What exists is not known, so the
                // node does not own it.
                let owned = self.state.owned.clone();
                for change in &planned.changes {
                    self.complete_change(change, has_systemd, index);
                }
                self.state.owned = owned;
            }
        }
        self.failures.extend_from_slice(failures);
    }

    /// Notes what no later step, and maybe no later run, attempts again.
    fn record_interruption(&mut self, planned: &PlannedStep) {
        let keys = list_keys(planned);
        let is_kept = matches!(
            planned.step,
            Step::PreAction { .. }
                | Step::PostAction { .. }
                | Step::SetKernelValue { .. }
                | Step::RunUnit { .. }
        );
        if is_kept {
            self.state.interruptions.entries.extend(keys.iter().cloned());
        }
        self.interrupted.extend(keys);
    }

    /// Whether an entry is not attempted again, because it has interrupted a run.
    pub fn has_interrupted(&self, key: &EntryKey) -> bool {
        self.interrupted.contains(key) || self.state.interruptions.entries.contains(key)
    }

    /// Records what a step that was stopped may have changed. `is_created` decides whether the node
    /// owns an object.
    pub fn assume_changes(
        &mut self,
        (planned, has_systemd): (&PlannedStep, bool),
        index: &DocumentIndex<'_>,
        is_created: impl Fn(&EntryKey) -> bool,
    ) {
        let owned = self.state.owned.clone();
        for change in &planned.changes {
            self.complete_change(change, has_systemd, index);
            let key = &change.entry;
            if !owned.entries.contains(key) && !is_created(key) {
                self.state.owned.entries.remove(key);
            }
        }
        // What the step should remove may still exist.
        self.state.owned.merge(owned);
        match &planned.step {
            Step::PostAction { name, .. } => drop(self.due_actions.remove(name)),
            Step::EnableUnit { .. } | Step::DisableUnit { .. } | Step::RetireUnit { .. } => {
                self.complete_unit(planned, true, index);
            }
            _ => {}
        }
    }

    /// The actions that the next run must run.
    pub fn pending_actions(&self, index: &DocumentIndex<'_>) -> BTreeSet<String> {
        let names = self.due_actions.iter().chain(&self.failed_actions);
        let is_kept = |name: &&String| {
            let entry = index.find(&EntryKey::new(Component::Action, name.as_str()));
            let entry = entry.map(|(_, entry)| &entry.desired);
            matches!(entry, Some(Desired::Action(action)) if !runs_always(action))
        };
        names.filter(is_kept).cloned().collect()
    }

    /// How many objects without an entry the run has changed, such as stale users.
    pub fn removed_objects(&self, index: &DocumentIndex<'_>) -> usize {
        self.changed.iter().filter(|key| index.find(key).is_none()).count()
    }

    fn unit(&mut self, name: &str) -> &mut UnitChange {
        self.units.entry(name.to_owned()).or_default()
    }
}

/// Whether a step is due: a command of a unit because of its activity or of a pending restart, an
/// action because an entry of its bundle has changed.
pub(crate) fn is_step_due(planned: &PlannedStep, progress: &RunProgress) -> bool {
    match &planned.step {
        Step::RunUnit { unit, command, is_due } => {
            let is_pending = progress.state.pending_restarts.contains_key(unit);
            let restarts = matches!(command, UnitAction::Restart | UnitAction::TryRestart);
            *is_due || !planned.changes.is_empty() || (restarts && is_pending)
        }
        Step::PostAction { name, .. } => progress.due_actions.contains(name),
        _ => true,
    }
}

/// The entries that a step concerns.
pub(crate) fn list_keys(planned: &PlannedStep) -> Vec<EntryKey> {
    match &planned.step {
        Step::PreAction { name, .. } | Step::PostAction { name, .. } => {
            vec![EntryKey::new(Component::Action, name)]
        }
        Step::RetireUnit { unit, .. }
        | Step::EnableUnit { unit }
        | Step::DisableUnit { unit }
        | Step::RunUnit { unit, .. } => vec![EntryKey::unit(unit)],
        _ => planned.changes.iter().map(|change| change.entry.clone()).collect(),
    }
}
