//! Records what single changes and commands mean for a run.

use evenkeel_configuration::Component;
use evenkeel_configuration::document::ActionTiming;

use super::{RunFailure, RunProgress};
use crate::finding::{Difference, EntryKey};
use crate::names::is_in_unit_folder;
use crate::run::document_index::{DocumentIndex, actions_of};
use crate::run::plan::{EntryChange, PlannedStep, Step};
use crate::run::state::RestartReason;

impl RunProgress {
    pub(super) fn complete_unit(
        &mut self,
        planned: &PlannedStep,
        is_good: bool,
        index: &DocumentIndex<'_>,
    ) {
        match &planned.step {
            Step::EnableUnit { unit } if is_good => self.unit(unit).enabled = Some(true),
            Step::DisableUnit { unit } if is_good => self.unit(unit).enabled = Some(false),
            Step::RetireUnit { unit, was_enabled, was_active, has_other_file } => {
                if !is_good {
                    self.failed_retirements.insert(EntryKey::unit(unit));
                }
                let change = self.unit(unit);
                if *has_other_file {
                    change.has_new_files = true;
                    self.state.add_restart(unit, RestartReason::UnitFiles);
                    return;
                }
                // It may have done a part of it.
                change.enabled = was_enabled.then_some(false).or(change.enabled);
                change.started = was_active.then_some(false).or(change.started);
                if is_good {
                    self.state.clear_restart(unit);
                }
            }
            Step::RunUnit { unit, is_due, .. } => {
                if *is_due && !self.is_reverting {
                    self.unit(unit).has_new_files = true;
                }
                if is_good {
                    self.state.clear_restart(unit);
                } else {
                    self.complete_failed_command(unit, planned, index);
                }
            }
            _ => {}
        }
    }

    fn complete_failed_command(
        &mut self,
        unit: &str,
        planned: &PlannedStep,
        index: &DocumentIndex<'_>,
    ) {
        let is_due = matches!(planned.step, Step::RunUnit { is_due: true, .. });
        if index.find_unit(unit).is_none() {
            // The document does not have the unit, so no run repeats the restart.
            self.state.clear_restart(unit);
        } else if is_due && !self.is_reverting {
            // The file that it has used goes, and with it the reason.
            let files = self.state.owned.file_units.iter();
            let files = files.filter(|(path, units)| {
                units.contains(unit) && index.find(&EntryKey::file(path)).is_none()
            });
            let paths: Vec<String> = files.map(|(path, _)| path.clone()).collect();
            for path in paths {
                self.state.add_restart(unit, RestartReason::File(path));
            }
        }
        self.failed_units.insert(unit.to_owned());
        self.unit(unit).has_failed_restart = planned.changes.is_empty();
    }

    fn add_due_action(&mut self, name: String) {
        let key = EntryKey::new(Component::Action, name.as_str());
        if !self.has_interrupted(&key) {
            self.due_actions.insert(name);
        } else if !self.failures.iter().any(|failure| failure.entry.as_ref() == Some(&key)) {
            let reason = "the action has interrupted a run of this revision and does not run again";
            self.failures.push(RunFailure::of_entry(key, reason));
        }
    }

    pub(super) fn complete_change(
        &mut self,
        change: &EntryChange,
        has_systemd: bool,
        index: &DocumentIndex<'_>,
    ) {
        let key = &change.entry;
        self.changed.insert(key.clone());
        if let Some((bundle, _)) = index.find(key) {
            let actions = actions_of(bundle, ActionTiming::Post).map(|(name, _)| name);
            let is_removal = matches!(key.component, Component::User | Component::UserGroup)
                && !index.has_present(key);
            // An action that has run does not run again because accounts are removed last.
            let actions = actions.filter(|name| !is_removal || !self.run_actions.contains(*name));
            let actions: Vec<String> = actions.map(str::to_owned).collect();
            for name in actions {
                self.add_due_action(name);
            }
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
