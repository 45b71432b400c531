//! Executes single steps of a pass.

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{ActionStatusCheck, Desired};

use super::RunContext;
use super::document_index::{DocumentIndex, is_present};
use super::ownership::list_paths;
use super::pass::{CompletedStep, RunPass};
use super::plan::{PlannedStep, Step, UnitAction};
use super::progress::{RunFailure, RunProgress};
use super::specs::PassSpecs;
use crate::change::{
    PackageRequest, UnitOperation, change_group, change_user, remove_group, remove_user,
    run_action, run_systemctl, set_running_value,
};
use crate::files::{ChangeReport, FileChanger, FileError, Removal, RemovalSet, RootFolder};
use crate::finding::EntryKey;
use crate::names::is_same_package;

/// Executes steps.
pub(super) struct StepExecutor<'a> {
    pub context: RunContext<'a>,
    pub index: &'a DocumentIndex<'a>,
    pub root: &'a RootFolder,
    pub pass: &'a RunPass,
    pub progress: &'a RunProgress,
}

impl StepExecutor<'_> {
    /// Executes a step. The caller sets the index of the result.
    pub fn execute(&self, planned: &PlannedStep) -> CompletedStep {
        match &planned.step {
            Step::WriteSources | Step::WriteFiles => self.write_files(planned),
            Step::RestoreFiles => self.restore_files(),
            _ => CompletedStep { failures: self.find_failures(planned), ..Default::default() },
        }
    }

    fn find_failures(&self, planned: &PlannedStep) -> Vec<RunFailure> {
        let machine = self.context.machine;
        let of = |component: Component, name: &str| EntryKey::new(component, name);
        let (key, result) = match &planned.step {
            Step::PreAction { name, .. } | Step::PostAction { name, .. } => {
                (of(Component::Action, name), self.run_action(name))
            }
            Step::ChangePackages { request } => return self.change_packages(request, planned),
            Step::RemoveStaleFiles => return self.remove_stale_files(planned),
            Step::ChangeGroup { name } => {
                let key = of(Component::UserGroup, name);
                let result = match self.desired(&key) {
                    Some(Desired::UserGroup(state)) => {
                        change_group(machine, self.root, (name, state))
                    }
                    _ => Ok(()),
                };
                (key, result)
            }
            Step::ChangeUser { name } => {
                let key = of(Component::User, name);
                let result = match self.desired(&key) {
                    Some(Desired::User(state)) => change_user(machine, self.root, (name, state)),
                    _ => Ok(()),
                };
                (key, result)
            }
            Step::RemoveUser { name } => {
                let group = EntryKey::new(Component::UserGroup, name);
                let keeps_group = self.index.has_present(&group)
                    || self.context.scope.failed_entries.contains(&group);
                (of(Component::User, name), remove_user(machine, self.root, (name, keeps_group)))
            }
            Step::RemoveGroup { name } => {
                (of(Component::UserGroup, name), remove_group(machine, self.root, name))
            }
            Step::SetKernelValue { key } => {
                (of(Component::Sysctl, key), self.set_kernel_value(key))
            }
            step => return self.change_unit(step),
        };
        result.err().map(|reason| RunFailure::of_entry(key, reason)).into_iter().collect()
    }

    fn desired(&self, key: &EntryKey) -> Option<&Desired> {
        self.index.find(key).map(|(_, entry)| &entry.desired)
    }

    fn run_action(&self, name: &str) -> Result<(), String> {
        let Some(Desired::Action(action)) = self.desired(&EntryKey::new(Component::Action, name))
        else {
            return Ok(());
        };
        let result = run_action(self.context.machine, self.context.actions, (name, action));
        if action.status == ActionStatusCheck::Ignore { Ok(()) } else { result }
    }

    fn set_kernel_value(&self, key: &str) -> Result<(), String> {
        let Some(Desired::Sysctl(state)) = self.desired(&EntryKey::new(Component::Sysctl, key))
        else {
            return Ok(());
        };
        set_running_value(self.root, self.context.faults, (key, &state.value))
            .map_err(|error| error.to_string())
    }

    fn change_packages(&self, request: &PackageRequest, planned: &PlannedStep) -> Vec<RunFailure> {
        let update_lists = self.progress.state.has_old_package_lists;
        let mut request = PackageRequest { update_lists, ..request.clone() };
        let installed = |name: &String| {
            let entries = self.index.document.entries();
            entries
                .filter(|(_, entry)| entry.component() == Component::Package)
                .any(|(_, entry)| is_present(entry) && is_same_package(&entry.name, name))
        };
        let (refused, remove): (Vec<String>, Vec<String>) =
            request.remove.iter().cloned().partition(installed);
        request.remove = remove;
        let failure = |name: String, reason: String| {
            RunFailure::of_entry(EntryKey::new(Component::Package, name), reason)
        };
        let reason = "the document also installs the package";
        let mut failures: Vec<RunFailure> =
            refused.into_iter().map(|name| failure(name, reason.to_owned())).collect();
        if request.install.is_empty() && request.remove.is_empty() {
            return failures;
        }
        match self.context.packages.apply(&request) {
            Ok(failed) => {
                failures
                    .extend(failed.into_iter().map(|failed| failure(failed.name, failed.reason)));
            }
            Err(reason) => failures = fail_all(planned, &reason),
        }
        failures
    }

    fn changer(&self) -> FileChanger<'_> {
        FileChanger {
            root: self.root,
            saved_folder: self.context.saved_folder.to_owned(),
            source: self.context.contents,
            faults: self.context.faults,
        }
    }

    fn write_files(&self, planned: &PlannedStep) -> CompletedStep {
        let files = &self.pass.files;
        if let Some(error) = &files.error {
            return CompletedStep { failures: fail_all(planned, error), ..Default::default() };
        }
        let settings = files.settings.as_deref();
        let specs = PassSpecs::from_changes(&planned.changes, self.index, settings);
        let changer = self.changer();
        let written = match changer.apply(&files.plan.files, &specs.specs) {
            Ok(report) => report,
            Err(error) => {
                let failures = fail_all(planned, &error.to_string());
                return CompletedStep { failures, ..Default::default() };
            }
        };
        let (kept, removals) = self.split_removals(&files.plan.removals);
        let removed = changer.remove(&removals).unwrap_or_else(|error| {
            let fail =
                |removal: &Removal| FileError { path: removal.path.clone(), ..error.clone() };
            let failed = removals.removals.iter().map(fail).collect();
            ChangeReport { failed, ..ChangeReport::default() }
        });
        let mut result = CompletedStep { failures: specs.failures.clone(), ..Default::default() };
        specs.add_failures(self.root, &files.plan.refused, &[written, kept, removed], &mut result);
        result
    }

    /// The removals without those of units that still run or are enabled, and why these stay.
    fn split_removals(&self, set: &RemovalSet) -> (ChangeReport, RemovalSet) {
        let units = self.progress.failed_retirements.iter();
        let paths = units.flat_map(list_paths).map(|path| self.root.real_path(&path));
        let paths: Vec<String> = paths.collect();
        let (kept, removals): (Vec<Removal>, Vec<Removal>) =
            set.removals.iter().cloned().partition(|removal| paths.contains(&removal.path));
        let reason = "the unit could not be disabled and stopped";
        let failed = kept.into_iter().map(|removal| FileError::new("remove", removal.path, reason));
        let report = ChangeReport { failed: failed.collect(), ..ChangeReport::default() };
        (report, RemovalSet { run_id: set.run_id.clone(), removals })
    }

    fn remove_stale_files(&self, planned: &PlannedStep) -> Vec<RunFailure> {
        if let Some(error) = &self.pass.files.error {
            return fail_all(planned, error);
        }
        match self.changer().remove(&self.pass.files.stale) {
            Ok(report) => report.failed.iter().map(|error| self.locate(planned, error)).collect(),
            Err(error) => fail_all(planned, &error.to_string()),
        }
    }

    fn locate(&self, planned: &PlannedStep, error: &FileError) -> RunFailure {
        let mut keys = planned.changes.iter().map(|change| &change.entry);
        let key = keys.find(|key| self.root.real_path(&key.name) == error.path);
        RunFailure { entry: key.cloned(), reason: error.to_string() }
    }

    /// Restores files and the values of the running kernel.
    fn restore_files(&self) -> CompletedStep {
        let report = self.changer().revert().unwrap_or_else(|error| ChangeReport {
            failed: vec![error],
            ..ChangeReport::default()
        });
        let values = self.progress.kernel_values.iter();
        let values = values.filter_map(|(key, value)| {
            set_running_value(self.root, self.context.faults, (key, value)).err()
        });
        let failed: Vec<FileError> = report.failed.into_iter().chain(values).collect();
        let kept = report.kept.iter();
        let kept = kept.map(|file| format!("cannot restore {}: {}", file.path, file.reason));
        CompletedStep {
            can_restore_more: !failed.is_empty(),
            failures: failed
                .iter()
                .map(ToString::to_string)
                .chain(kept)
                .map(RunFailure::of_run)
                .collect(),
            ..CompletedStep::default()
        }
    }

    fn change_unit(&self, step: &Step) -> Vec<RunFailure> {
        let run = |operation: UnitOperation, unit: &str| {
            run_systemctl(self.context.machine, operation, Some(unit))
        };
        let (unit, result) = match step {
            Step::ReloadUnits => {
                let result = run_systemctl(self.context.machine, UnitOperation::Reload, None);
                return result.err().map(RunFailure::of_run).into_iter().collect();
            }
            Step::EnableUnit { unit } => (unit, run(UnitOperation::Enable, unit)),
            Step::DisableUnit { unit } => (unit, run(UnitOperation::Disable, unit)),
            Step::RetireUnit { unit, was_enabled, was_active, .. } => {
                let disabled =
                    if *was_enabled { run(UnitOperation::Disable, unit) } else { Ok(()) };
                let is_stopped = *was_active && self.pass.plan.has_systemd;
                let stopped = if is_stopped { run(UnitOperation::Stop, unit) } else { Ok(()) };
                let errors: Vec<String> =
                    [disabled, stopped].into_iter().filter_map(Result::err).collect();
                (unit, if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) })
            }
            Step::RunUnit { unit, command, .. } => (unit, run(operation_of(*command), unit)),
            _ => return Vec::new(),
        };
        let failure = |reason| RunFailure::of_entry(EntryKey::unit(unit), reason);
        result.err().map(failure).into_iter().collect()
    }
}

fn operation_of(command: UnitAction) -> UnitOperation {
    match command {
        UnitAction::Start => UnitOperation::Start,
        UnitAction::Restart => UnitOperation::Restart,
        UnitAction::TryRestart => UnitOperation::TryRestart,
        UnitAction::Stop => UnitOperation::Stop,
    }
}

fn fail_all(planned: &PlannedStep, reason: &str) -> Vec<RunFailure> {
    let keys = planned.changes.iter().map(|change| change.entry.clone());
    keys.map(|key| RunFailure::of_entry(key, reason)).collect()
}
