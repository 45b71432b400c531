//! Plans the steps of a run from the check of a machine.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{
    ActionTiming, Bundle, Desired, Document, Entry, ExtraKind, PackageState, UnitCommand, UnitState,
};
use evenkeel_configuration::revision::revision;

use super::document_index::{DocumentIndex, actions_of, is_present, runs_always};
use super::plan::{EntryChange, PlannedStep, RunPlan, Step, UnitAction};
use super::progress::RunProgress;
use super::stale::StaleEntries;
use super::state::NodeState;
use crate::change::{PackageRequest, PackageTarget};
use crate::check::{MachineCheck, must_be_enabled, must_run};
use crate::finding::{Difference, EntryKey};
use crate::names::{AGENT_UNIT, is_in_unit_folder, is_template};
use crate::protection::is_part_of_agent;
use crate::scope::EntryScope;

/// Plans what makes the machine as the document describes it. `check` is the result of
/// [`check_machine`](crate::check::check_machine) with the same document and scope.
pub fn plan(
    check: &MachineCheck,
    document: &Document,
    scope: &EntryScope,
    state: &NodeState,
) -> RunPlan {
    let index = DocumentIndex::new(document);
    let progress = RunProgress::new(state.clone(), &index, &revision(document));
    plan_rest(check, &index, scope, &progress)
}

/// Plans what is left of a run.
pub(super) fn plan_rest(
    check: &MachineCheck,
    index: &DocumentIndex<'_>,
    scope: &EntryScope,
    progress: &RunProgress,
) -> RunPlan {
    let planner = Planner::new(check, index, scope, progress);
    let mut steps = planner.plan_pre_actions();
    planner.plan_packages(&mut steps);
    planner.plan_accounts(&mut steps);
    planner.plan_files(&mut steps);
    planner.plan_unit_states(&mut steps);
    planner.plan_post_actions(&mut steps);
    planner.plan_removals(&mut steps);
    planner.plan_late_actions(&mut steps);
    let has_pending_actions = planner.has_pending_actions();
    RunPlan { steps, has_systemd: check.has_systemd, has_pending_actions }
}

struct Planner<'a> {
    check: &'a MachineCheck,
    index: &'a DocumentIndex<'a>,
    scope: &'a EntryScope,
    progress: &'a RunProgress,
    stale: StaleEntries,
    /// Entries that differ and can be corrected.
    corrections: Vec<Correction<'a>>,
}

/// An entry that differs.
#[derive(Clone, Copy)]
struct Correction<'a> {
    bundle: &'a Bundle,
    entry: &'a Entry,
    differences: &'a [Difference],
}

impl Correction<'_> {
    fn change(&self, is_included: impl Fn(&Difference) -> bool) -> Option<EntryChange> {
        let differences: Vec<Difference> =
            self.differences.iter().filter(|d| is_included(d)).cloned().collect();
        let key = EntryKey::from_entry(self.entry);
        (!differences.is_empty()).then(|| EntryChange::new(key, differences))
    }

    fn whole_change(&self) -> EntryChange {
        EntryChange::new(EntryKey::from_entry(self.entry), self.differences)
    }
}

/// Whether a difference of a unit concerns its files.
fn is_of_files(difference: &Difference) -> bool {
    matches!(difference, Difference::Existence | Difference::Content | Difference::DropIn { .. })
}

/// Whether a correction removes a user or a group, which a run does last.
fn is_removal(correction: &Correction<'_>) -> bool {
    let component = correction.entry.component();
    matches!(component, Component::User | Component::UserGroup) && !is_present(correction.entry)
}

impl<'a> Planner<'a> {
    fn new(
        check: &'a MachineCheck,
        index: &'a DocumentIndex<'a>,
        scope: &'a EntryScope,
        progress: &'a RunProgress,
    ) -> Self {
        let checks: HashMap<(Component, &str), &[Difference]> = check
            .entries
            .iter()
            .map(|entry| {
                let key = (entry.report.component, entry.report.name.as_str());
                (key, entry.differences.as_slice())
            })
            .collect();
        let covered = index.document.entries().filter(|(bundle, _)| {
            scope.covers_bundle(&bundle.name) && !progress.excluded.contains(&bundle.name)
        });
        let corrections = covered.filter_map(|(bundle, entry)| {
            let differences = *checks.get(&entry.key())?;
            let key = EntryKey::from_entry(entry);
            let is_planned = !differences.is_empty()
                && !progress.attempted.contains(&key)
                && !progress.has_interrupted(&key);
            is_planned.then_some(Correction { bundle, entry, differences })
        });
        let corrections = corrections.collect();
        let stale = StaleEntries::find(&progress.state.owned, index, scope, progress);
        Self { check, index, scope, progress, stale, corrections }
    }

    fn of_component(&self, component: Component) -> impl Iterator<Item = &Correction<'a>> {
        self.corrections.iter().filter(move |c| c.entry.component() == component)
    }

    fn bundles(&self) -> impl Iterator<Item = &'a Bundle> {
        let is_covered = |bundle: &&Bundle| {
            self.scope.covers_bundle(&bundle.name) && !self.progress.excluded.contains(&bundle.name)
        };
        self.index.document.bundles.iter().filter(is_covered)
    }

    /// The bundles of which an entry changes.
    fn changed_bundles(&self, is_included: impl Fn(&Correction<'_>) -> bool) -> BTreeSet<&str> {
        let of_entries = self.corrections.iter().filter(|c| is_included(c));
        let of_entries = of_entries.map(|c| c.bundle.name.as_str());
        let of_drop_ins = self.stale.drop_ins.keys();
        let of_drop_ins = of_drop_ins.filter_map(|unit| self.index.find_unit(unit));
        of_entries.chain(of_drop_ins.map(|(bundle, _)| bundle.name.as_str())).collect()
    }

    fn plan_pre_actions(&self) -> Vec<PlannedStep> {
        let changed = self.changed_bundles(|_| true);
        let mut steps = Vec::new();
        for bundle in self.bundles() {
            for (name, action) in actions_of(bundle, ActionTiming::Pre) {
                let key = EntryKey::new(Component::Action, name);
                let is_always = runs_always(action) && !self.progress.has_interrupted(&key);
                let is_due = is_always || changed.contains(bundle.name.as_str());
                if is_due && !self.progress.pre_actions.contains(name) {
                    let (bundle, name) = (bundle.name.clone(), name.to_owned());
                    steps.push(Step::PreAction { bundle, name }.with(Vec::new()));
                }
            }
        }
        steps
    }

    fn plan_packages(&self, steps: &mut Vec<PlannedStep>) {
        let sources = self.of_component(Component::PackageSource);
        let mut changes: Vec<EntryChange> = sources.map(Correction::whole_change).collect();
        changes.extend(self.stale.changes(Component::PackageSource));
        if !changes.is_empty() {
            steps.push(Step::WriteSources.with(changes));
        }
        let (mut request, mut changes) = (PackageRequest::default(), Vec::new());
        for correction in self.of_component(Component::Package) {
            let name = &correction.entry.name;
            match &correction.entry.desired {
                Desired::Package(state) if state.version == PackageState::ABSENT => {
                    request.remove.push(name.clone());
                }
                Desired::Package(state) => {
                    request.install.push(PackageTarget::from_entry(name, state));
                }
                _ => continue,
            }
            changes.push(correction.whole_change());
        }
        let removed = self.stale.changes(Component::Package);
        for change in removed.chain(self.extras(Component::Package, ExtraKind::Packages)) {
            request.remove.push(change.entry.name.clone());
            changes.push(change);
        }
        if !changes.is_empty() {
            steps.push(Step::ChangePackages { request }.with(changes));
        }
    }

    /// Extras that the document removes.
    fn extras(&self, component: Component, kind: ExtraKind) -> impl Iterator<Item = EntryChange> {
        let is_removed = self.index.document.remove_extras.contains(&kind);
        let is_included = move |key: &EntryKey| {
            is_removed
                && key.component == component
                && !is_part_of_agent(key)
                && !self.progress.has_interrupted(key)
                && !self.progress.failed_retirements.contains(key)
                && !self.progress.attempted.contains(key)
                && !self.stale.entries.contains(key)
        };
        let extras = self.check.extras.iter();
        let keys = extras.map(|extra| EntryKey::new(extra.component, &extra.name));
        keys.filter(is_included).map(|key| EntryChange::new(key, [Difference::Existence]))
    }

    fn plan_accounts(&self, steps: &mut Vec<PlannedStep>) {
        for component in [Component::UserGroup, Component::User] {
            for correction in self.of_component(component).filter(|c| is_present(c.entry)) {
                let name = correction.entry.name.clone();
                let step = match component {
                    Component::UserGroup => Step::ChangeGroup { name },
                    _ => Step::ChangeUser { name },
                };
                steps.push(step.with(vec![correction.whole_change()]));
            }
        }
    }

    fn plan_files(&self, steps: &mut Vec<PlannedStep>) {
        for change in self.stale.changes(Component::Unit) {
            steps.push(Step::retire(change.entry.name).with(Vec::new()));
        }
        for mut change in self.extras(Component::Unit, ExtraKind::Services) {
            change.differences = vec![Difference::Enablement];
            steps.push(Step::retire(change.entry.name.clone()).with(vec![change]));
        }
        let mut changes: Vec<EntryChange> = Vec::new();
        for component in [Component::File, Component::Sysctl] {
            changes.extend(self.of_component(component).map(Correction::whole_change));
        }
        let units = self.of_component(Component::Unit);
        changes.extend(units.filter_map(|correction| correction.change(is_of_files)));
        for component in [Component::Unit, Component::Sysctl] {
            changes.extend(self.stale.changes(component));
        }
        for change in self.stale.drop_in_changes() {
            match changes.iter_mut().find(|other| other.entry == change.entry) {
                Some(other) => other.differences.extend(change.differences),
                None => changes.push(change),
            }
        }
        let is_unit_file = |change: &EntryChange| match change.entry.component {
            Component::Unit => true,
            Component::File => is_in_unit_folder(&change.entry.name),
            _ => false,
        };
        let needs_reload = self.progress.state.has_unread_units
            || changes.iter().any(is_unit_file)
            || self.corrections.iter().any(|c| c.differences.contains(&Difference::Reload));
        if !changes.is_empty() {
            steps.push(Step::WriteFiles.with(changes));
        }
        if needs_reload && self.check.has_systemd {
            let units = self.of_component(Component::Unit);
            let changes = units.filter_map(|c| c.change(|d| *d == Difference::Reload)).collect();
            steps.push(Step::ReloadUnits.with(changes));
        }
        for correction in self.of_component(Component::Sysctl) {
            let key = correction.entry.name.clone();
            steps.push(Step::SetKernelValue { key }.with(vec![correction.whole_change()]));
        }
    }

    fn plan_unit_states(&self, steps: &mut Vec<PlannedStep>) {
        for correction in self.of_component(Component::Unit) {
            let Some(change) = correction.change(|d| *d == Difference::Enablement) else {
                continue;
            };
            let Desired::Unit(state) = &correction.entry.desired else { continue };
            let unit = correction.entry.name.clone();
            let step = if must_be_enabled(state) {
                Step::EnableUnit { unit }
            } else {
                Step::DisableUnit { unit }
            };
            steps.push(step.with(vec![change]));
        }
        if self.check.has_systemd {
            let commands = self.unit_commands().into_values();
            steps.extend(commands);
        }
    }

    /// The commands of units by their order: the agent is the last one, because its restart ends
    /// the run.
    fn unit_commands(&self) -> BTreeMap<(bool, String), PlannedStep> {
        let mut commands = BTreeMap::new();
        let mut add = |unit: &str, command: UnitAction, change: Option<EntryChange>, is_due| {
            let is_refused = self.progress.failed_units.contains(unit)
                || self.progress.has_interrupted(&EntryKey::unit(unit));
            if is_refused {
                return;
            }
            // A template has no process; its running instances have.
            let command = if is_template(unit) { UnitAction::TryRestart } else { command };
            let key = (unit == AGENT_UNIT, unit.to_owned());
            let step = Step::RunUnit { unit: unit.to_owned(), command, is_due };
            commands.insert(key, step.with(change.into_iter().collect()));
        };
        let restarts = self.expected_restarts();
        for bundle in self.bundles() {
            for entry in &bundle.entries {
                let Desired::Unit(state) = &entry.desired else { continue };
                let correction =
                    self.of_component(Component::Unit).find(|c| std::ptr::eq(c.entry, entry));
                let activity = correction.and_then(|c| c.change(|d| *d == Difference::Activity));
                let uses_stale = self.stale.units_of_files.contains(&entry.name);
                let command = unit_action(state);
                let is_restarted = command == UnitAction::Restart
                    && (uses_stale || restarts.contains(entry.name.as_str()));
                if activity.is_some() || is_restarted {
                    add(&entry.name, command, activity, uses_stale);
                }
            }
        }
        if self.scope.is_whole() {
            let others = restarts.iter().filter(|unit| {
                self.index.find_unit(unit).is_none()
                    && !self.scope.failed_entries.contains(&EntryKey::unit(unit))
            });
            for unit in others {
                add(unit, UnitAction::TryRestart, None, false);
            }
        }
        commands
    }

    /// The units whose restart is pending, or will be after the files have changed.
    fn expected_restarts(&self) -> BTreeSet<&str> {
        let pending = self.progress.state.pending_restarts.keys().map(String::as_str);
        let mut units: BTreeSet<&str> = pending.collect();
        for correction in &self.corrections {
            let name = correction.entry.name.as_str();
            match correction.entry.desired {
                Desired::File(_) => units.extend(self.index.units_of_file(name)),
                Desired::Unit(_) if correction.differences.iter().any(is_of_files) => {
                    units.insert(name);
                }
                _ => {}
            }
        }
        units.extend(self.stale.drop_ins.keys().map(String::as_str));
        let retired = self.stale.entries.iter().filter(|key| key.component == Component::Unit);
        units.extend(retired.map(|key| key.name.as_str()));
        units
    }

    /// Whether an action is due since an earlier run.
    fn has_pending_actions(&self) -> bool {
        let pending = &self.progress.state.pending_actions;
        let mut actions = self.bundles().flat_map(|b| actions_of(b, ActionTiming::Post));
        actions.any(|(name, _)| pending.contains(name) && self.progress.due_actions.contains(name))
    }

    fn plan_post_actions(&self, steps: &mut Vec<PlannedStep>) {
        let changed = self.changed_bundles(|correction| !is_removal(correction));
        for bundle in self.bundles() {
            for (name, _) in actions_of(bundle, ActionTiming::Post) {
                let is_due = self.progress.due_actions.contains(name)
                    || (changed.contains(bundle.name.as_str())
                        && !self.progress.failed_actions.contains(name));
                if is_due {
                    let (bundle, name) = (bundle.name.clone(), name.to_owned());
                    steps.push(Step::PostAction { bundle, name }.with(Vec::new()));
                }
            }
        }
    }

    /// Actions of bundles of which only users or groups are removed.
    fn plan_late_actions(&self, steps: &mut Vec<PlannedStep>) {
        let bundles: BTreeSet<&str> = self
            .corrections
            .iter()
            .filter(|correction| is_removal(correction))
            .map(|correction| correction.bundle.name.as_str())
            .collect();
        for bundle in self.bundles().filter(|bundle| bundles.contains(bundle.name.as_str())) {
            for (name, _) in actions_of(bundle, ActionTiming::Post) {
                let step = Step::PostAction { bundle: bundle.name.clone(), name: name.to_owned() };
                let is_planned = steps.iter().any(|planned| planned.step == step);
                if !is_planned && !self.progress.run_actions.contains(name) {
                    steps.push(step.with(Vec::new()));
                }
            }
        }
    }

    /// Users before groups: a group that is the group of a user cannot be removed.
    fn plan_removals(&self, steps: &mut Vec<PlannedStep>) {
        for component in [Component::User, Component::UserGroup] {
            let absent = self.of_component(component).filter(|c| !is_present(c.entry));
            let mut changes: Vec<EntryChange> = absent.map(Correction::whole_change).collect();
            changes.extend(self.stale.changes(component));
            if component == Component::User {
                changes.extend(self.extras(component, ExtraKind::Users));
            }
            for change in changes {
                let name = change.entry.name.clone();
                let step = match component {
                    Component::User => Step::RemoveUser { name },
                    _ => Step::RemoveGroup { name },
                };
                steps.push(step.with(vec![change]));
            }
        }
        let files: Vec<EntryChange> = self.stale.changes(Component::File).collect();
        if files.is_empty() {
            return;
        }
        let needs_reload = files.iter().any(|file| is_in_unit_folder(&file.entry.name));
        steps.push(Step::RemoveStaleFiles.with(files));
        if needs_reload && self.check.has_systemd {
            steps.push(Step::ReloadUnits.with(Vec::new()));
        }
    }
}

pub(super) fn unit_action(state: &UnitState) -> UnitAction {
    match state.command {
        _ if !must_run(state) => UnitAction::Stop,
        Some(UnitCommand::Start) => UnitAction::Start,
        _ => UnitAction::Restart,
    }
}
