//! Shows the steps of a run while it runs, and stops it between two steps.

use std::io::Write;

use evenkeel_reconcile::change::PackageRequest;
use evenkeel_reconcile::run::{
    BegunStep, CompletedStep, JournalError, PlannedStep, RunJournal, RunPass, RunPlan, Step,
    StoredRun, UnitAction,
};
use tokio_util::sync::CancellationToken;

use super::store::FileRunJournal;
use crate::text::{pluralize, replace_controls};

/// Most entries of one step that are printed.
const MAX_SHOWN_ENTRIES: usize = 5;

/// A journal that prints each step before it begins, and whether it failed. It ends the run before
/// the next step when the command should stop.
#[derive(Debug)]
pub struct ProgressJournal<'a, W> {
    journal: FileRunJournal<'a>,
    output: W,
    stop: CancellationToken,
    plan: RunPlan,
}

impl<'a, W: Write> ProgressJournal<'a, W> {
    pub fn new(journal: FileRunJournal<'a>, output: W, stop: CancellationToken) -> Self {
        Self { journal, output, stop, plan: RunPlan::default() }
    }

    /// Continues with an interrupted run.
    pub fn resume(&mut self, stored: &StoredRun) {
        self.print("continuing the run that was interrupted");
        self.plan.clone_from(&stored.pass.plan);
    }

    /// Whether the command should stop.
    pub fn should_stop(&self) -> bool {
        self.stop.is_cancelled()
    }

    fn print_step(&mut self, index: usize) {
        if let Some(planned) = self.plan.steps.get(index) {
            let text = describe_step(planned);
            self.print(&text);
        }
    }

    fn print(&mut self, text: &str) {
        // There is no way to report that the error stream is closed.
        writeln!(self.output, "{}", replace_controls(text)).ok();
    }

    fn check_stop(&self) -> Result<(), JournalError> {
        if self.should_stop() {
            return Err(JournalError("the command should stop".to_owned()));
        }
        Ok(())
    }
}

impl<W: Write> RunJournal for ProgressJournal<'_, W> {
    fn begin_pass(&mut self, pass: &RunPass) -> Result<(), JournalError> {
        self.check_stop()?;
        self.journal.begin_pass(pass)?;
        self.plan.clone_from(&pass.plan);
        Ok(())
    }

    /// Prints the step. Steps that are not due do not begin.
    fn begin_step(&mut self, step: &BegunStep) -> Result<(), JournalError> {
        self.check_stop()?;
        self.journal.begin_step(step)?;
        self.print_step(step.index);
        Ok(())
    }

    fn complete_step(&mut self, step: &CompletedStep) -> Result<(), JournalError> {
        self.journal.complete_step(step)?;
        // The command prints all reasons at its end, unless it is killed before.
        for failure in step.failures.iter().take(MAX_SHOWN_ENTRIES) {
            self.print(&format!("  failed: {}", failure.reason));
        }
        self.check_stop()
    }
}

fn describe_step(planned: &PlannedStep) -> String {
    let entries = || {
        let names = planned.changes.iter().take(MAX_SHOWN_ENTRIES);
        let names: Vec<_> = names.map(|change| change.entry.to_string()).collect();
        let names = names.join(", ");
        match planned.changes.len().saturating_sub(MAX_SHOWN_ENTRIES) {
            0 => names,
            others => format!("{names} and {}", pluralize(others, "other", "others")),
        }
    };
    match &planned.step {
        Step::PreAction { name, .. } | Step::PostAction { name, .. } => format!("action {name}"),
        Step::ChangePackages { request } => describe_packages(request),
        Step::ChangeGroup { name } => format!("group {name}"),
        Step::ChangeUser { name } => format!("user {name}"),
        Step::RetireUnit { unit, .. } => format!("disable and stop {unit}"),
        Step::WriteSources | Step::WriteFiles => format!("change {}", entries()),
        Step::ReloadUnits => "reload the unit files".to_owned(),
        Step::SetKernelValue { key } => format!("set {key}"),
        Step::EnableUnit { unit } => format!("enable {unit}"),
        Step::DisableUnit { unit } => format!("disable {unit}"),
        Step::RunUnit { unit, command, .. } => match command {
            UnitAction::Start => format!("start {unit}"),
            UnitAction::Restart | UnitAction::TryRestart => format!("restart {unit}"),
            UnitAction::Stop => format!("stop {unit}"),
        },
        Step::RemoveUser { name } => format!("remove the user {name}"),
        Step::RemoveGroup { name } => format!("remove the group {name}"),
        Step::RemoveStaleFiles => format!("remove {}", entries()),
        Step::RestoreFiles => "restore the files".to_owned(),
    }
}

fn describe_packages(request: &PackageRequest) -> String {
    let installs = request.install.iter().map(|package| match &package.version {
        Some(version) => format!("{} {version}", package.name),
        None => package.name.clone(),
    });
    let installs: Vec<_> = installs.collect();
    let parts = [("install", installs), ("remove", request.remove.clone())];
    let parts = parts.iter().filter(|(_, names)| !names.is_empty());
    let parts = parts.map(|(verb, names)| format!("{verb} {}", names.join(", ")));
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use evenkeel_reconcile::change::PackageTarget;
    use evenkeel_reconcile::finding::EntryKey;
    use evenkeel_reconcile::run::EntryChange;

    use super::*;

    #[test]
    fn a_step_is_described_by_what_it_changes() {
        let files = |count: usize| {
            let change = |number| EntryChange {
                entry: EntryKey::file(&format!("/f{number}")),
                differences: Vec::new(),
            };
            let changes = (0..count).map(change).collect();
            describe_step(&PlannedStep { step: Step::WriteFiles, changes })
        };
        assert_eq!(files(2), "change File /f0, File /f1");
        assert!(files(7).ends_with("File /f4 and 2 others"), "{}", files(7));
        let target = |name: &str, version: Option<&str>| PackageTarget {
            name: name.to_owned(),
            version: version.map(str::to_owned),
        };
        let request = PackageRequest {
            update_lists: false,
            install: vec![target("web", None), target("tool", Some("2"))],
            remove: vec!["old".to_owned()],
        };
        assert_eq!(describe_packages(&request), "install web, tool 2; remove old");
    }
}
