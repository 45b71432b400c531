//! Makes the steps of a pass.

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{ActionStatusCheck, Desired};

use super::RunContext;
use super::document_index::DocumentIndex;
use super::pass::RunPass;
use super::plan::{PlannedStep, Step, UnitAction};
use super::progress::RunFailure;
use super::specs::PassSpecs;
use crate::change::{
    PackageRequest, UnitOperation, change_group, change_user, remove_group, remove_user,
    run_action, run_systemctl, set_running_value,
};
use crate::files::{ChangeReport, FileChanger, FileError, RootFolder};
use crate::finding::EntryKey;

/// Makes steps.
pub(super) struct StepExecutor<'a> {
    pub context: RunContext<'a>,
    pub index: &'a DocumentIndex<'a>,
    pub root: &'a RootFolder,
    pub pass: &'a RunPass,
    pub has_old_package_lists: bool,
}

impl StepExecutor<'_> {
    /// Makes a step, and returns what has failed.
    pub fn execute(&self, planned: &PlannedStep) -> Vec<RunFailure> {
        let machine = self.context.machine;
        let of = |component: Component, name: &str| EntryKey::new(component, name);
        let (key, result) = match &planned.step {
            Step::PreAction { name, .. } | Step::PostAction { name, .. } => {
                (of(Component::Action, name), self.run_action(name))
            }
            Step::WriteSources | Step::WriteFiles => return self.write_files(planned),
            Step::ChangePackages { request } => return self.change_packages(request, planned),
            Step::RemoveStaleFiles => return self.remove_stale_files(planned),
            Step::RestoreFiles => return self.restore_files(),
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
                (of(Component::User, name), remove_user(machine, self.root, name))
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
        let update_lists = self.has_old_package_lists;
        let request = PackageRequest { update_lists, ..request.clone() };
        match self.context.packages.apply(&request) {
            Ok(failures) => failures
                .into_iter()
                .map(|failure| {
                    let key = EntryKey::new(Component::Package, failure.name);
                    RunFailure::of_entry(key, failure.reason)
                })
                .collect(),
            Err(reason) => fail_all(planned, &reason),
        }
    }

    fn changer(&self) -> FileChanger<'_> {
        FileChanger {
            root: self.root,
            saved_folder: self.context.saved_folder.to_owned(),
            source: self.context.contents,
            faults: self.context.faults,
        }
    }

    fn write_files(&self, planned: &PlannedStep) -> Vec<RunFailure> {
        let files = &self.pass.files;
        let settings = files.settings.as_deref();
        let specs = PassSpecs::from_changes(&planned.changes, self.index, settings);
        let changer = self.changer();
        let written = changer.apply(&files.plan.files, &specs.specs);
        let removed = written.and_then(|written| {
            let removed = changer.remove(&files.plan.removals)?;
            Ok([written, removed])
        });
        let mut failures = specs.failures.clone();
        match removed {
            Ok(reports) => {
                failures.extend(specs.failures_of(self.root, &files.plan.refused, &reports));
            }
            Err(error) => failures.extend(fail_all(planned, &error.to_string())),
        }
        failures
    }

    fn remove_stale_files(&self, planned: &PlannedStep) -> Vec<RunFailure> {
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

    fn restore_files(&self) -> Vec<RunFailure> {
        let report = self.changer().revert().unwrap_or_else(|error| ChangeReport {
            failed: vec![error],
            ..ChangeReport::default()
        });
        let kept =
            report.kept.iter().map(|file| format!("cannot restore {}: {}", file.path, file.reason));
        let failed = report.failed.iter().map(ToString::to_string);
        failed.chain(kept).map(RunFailure::of_run).collect()
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
                (unit, disabled.and(stopped))
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
