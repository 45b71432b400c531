//! Plans and runs all changes of a document.
//!
//! A run makes the machine as its document describes, in this order:
//!
//! | Part | Steps |
//! | --- | --- |
//! | actions | those that run before the change of their bundle |
//! | packages | files of sources, then one transaction of packages |
//! | entries | groups and users; units that the document does not have any more stop; all files, unit files, drop-ins and kernel settings as one set; `daemon-reload`; kernel values; enable and disable; one command for each unit; actions after the change; removed users and groups; stale files |
//!
//! Accounts come before files, because files need the numbers of their owners, and after packages,
//! because packages bring groups and shells. Users and groups are removed after the units that run
//! as them have restarted.
//!
//! The machine is checked before each part, because actions and packages change what the next part
//! needs. The run then checks everything again. If entries are bad and the last round corrected one,
//! or removed an object without an entry, there is another round, and at most [`MAX_ROUNDS`].
//!
//! # Restarts
//!
//! A unit restarts if its unit file, a drop-in or a file in its `filePaths` has changed, and only
//! once. The reasons are part of [`NodeState`] until the restart has succeeded: if it fails, the
//! next run repeats it alone. A unit whose command is `start` starts if it does not run, and never
//! restarts. Without systemd nothing restarts.
//!
//! # Bundles
//!
//! An action before the change that fails takes its bundle out of the run. A changed entry runs the
//! actions after the change of its bundle.
//!
//! # Kills
//!
//! Plans and complete steps are in the [`RunJournal`]. A run that was killed is continued with
//! [`Run::resume`] and ends as if it had not been killed; a step that was killed is repeated, so
//! that a unit may restart twice and an action may run twice.

mod document_index;
mod pass;
mod plan;
mod planner;
mod progress;
mod report;
mod revert;
mod specs;
mod stale;
mod state;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use evenkeel_configuration::document::{ApplyMode, Document, FailureMode};
use evenkeel_configuration::revision::revision;

use document_index::DocumentIndex;
use planner::plan_rest;
use progress::{RunProgress, is_command_due};
use report::{bad_entries, is_final};
use revert::{REVERSAL_STAGE, plan_reversal};
use specs::FilePlanning;
use steps::StepExecutor;

use crate::change::{ActionPolicy, PackageInstaller, query_unit};
use crate::check::{CheckOptions, MachineCheck, check_machine, has_package_file};
use crate::files::{ContentSource, FaultPoint, FileChanger, FileError, RootFolder};
use crate::finding::EntryKey;
use crate::machine::Machine;
use crate::names::AGENT_UNIT;
use crate::scope::EntryScope;

use pass::NoJournal;
pub use pass::{CompletedStep, JournalError, MemoryJournal, RunJournal, RunPass, StoredRun};
pub use plan::{EntryChange, PlannedStep, RunPlan, Step, UnitAction};
pub use planner::plan;
pub use progress::RunFailure;
pub use report::{RunOutcome, RunReport};
pub use state::{NodeState, OwnedEntries, PendingRestarts, RestartReason};

/// Most rounds of a run.
pub const MAX_ROUNDS: u32 = 5;

/// What a run needs.
#[derive(Clone, Copy)]
pub struct RunContext<'a> {
    pub document: &'a Document,
    pub machine: &'a Machine,
    pub scope: &'a EntryScope,
    /// Secrets and downloads.
    pub contents: &'a dyn ContentSource,
    pub packages: &'a dyn PackageInstaller,
    pub actions: &'a dyn ActionPolicy,
    /// Folder of this run for the old contents of files. Its parent must exist.
    pub saved_folder: &'a Path,
    pub faults: &'a dyn FaultPoint,
}

impl fmt::Debug for RunContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// A run stopped before its end. It can be continued with [`Run::resume`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The machine cannot be read, or the files cannot be planned.
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The stored run belongs to another document.
    #[error("the run is for revision {stored} of the document and not for {current}")]
    OtherDocument { stored: String, current: String },
}

/// A run.
#[derive(Debug)]
pub struct Run<'a> {
    context: RunContext<'a>,
    index: DocumentIndex<'a>,
    id: String,
    revision: String,
    progress: RunProgress,
    /// The pass that is not complete, with the index of its next step.
    pass: Option<(RunPass, usize)>,
    /// Whether the entries of the round are complete.
    is_round_complete: bool,
}

impl<'a> Run<'a> {
    /// A new run. `run_id` has 1 to 64 letters, digits, `-` and `_`, and is part of the names of
    /// temporary files. `state` is the one that the last run returned.
    pub fn new(context: RunContext<'a>, run_id: &str, state: NodeState) -> Self {
        let index = DocumentIndex::new(context.document);
        let progress = RunProgress::new(state, &index);
        Self {
            context,
            index,
            id: run_id.to_owned(),
            revision: revision(context.document),
            progress,
            pass: None,
            is_round_complete: false,
        }
    }

    /// Continues a run that was stopped. The context has the same document and scope, so the caller
    /// keeps the document of a stored run until the run has ended or is given up.
    ///
    /// # Errors
    /// The run is for another document.
    pub fn resume(context: RunContext<'a>, stored: StoredRun) -> Result<Self, RunError> {
        let StoredRun { pass, completed } = stored;
        let mut run = Self::new(context, &pass.run_id, NodeState::default());
        if run.revision != pass.revision {
            let current = run.revision;
            return Err(RunError::OtherDocument { stored: pass.revision, current });
        }
        run.progress = pass.progress.clone();
        let mut next = 0;
        for step in completed {
            if let Some(planned) = pass.plan.steps.get(step.index) {
                let planned = (planned, pass.plan.has_systemd);
                run.progress.complete(planned, &step.failures, &run.index);
            }
            next = step.index + 1;
        }
        run.pass = Some((pass, next));
        Ok(run)
    }

    /// What the node keeps if the run is not continued: what its complete steps have created, and
    /// the restarts that are due.
    pub fn into_state(self) -> NodeState {
        self.progress.state
    }

    /// Runs to the end. Blocks.
    ///
    /// A document that only audits changes nothing. If the run fails and the document demands it,
    /// the files and units are restored.
    ///
    /// # Errors
    /// The run has stopped before its end.
    pub fn execute(&mut self, journal: &mut dyn RunJournal) -> Result<RunReport, RunError> {
        loop {
            self.execute_pass(journal)?;
            let root = RootFolder::open(&self.context.machine.root)?;
            let check = self.check()?;
            if self.progress.is_reverting {
                self.progress.complete_reversal(&self.index);
                return Ok(self.finish(check, RunOutcome::Reverted));
            }
            let plan = plan_rest(&check, &self.index, self.context.scope, &self.progress);
            if self.context.document.apply_mode == ApplyMode::Audit {
                return Ok(self.finish(check, RunOutcome::Audited));
            }
            let bad = bad_entries(&check);
            if self.progress.round == 0 {
                self.progress.round = 1;
                self.progress.bad_before.clone_from(&bad);
            }
            let stage = plan.first_stage().filter(|_| !self.is_round_complete);
            if let Some((stage, plan)) = stage {
                self.begin_pass(journal, &root, (stage, plan))?;
                continue;
            }
            // The removal of an object may free a name or a number for an entry.
            let removed = self.progress.removed_objects(&self.index);
            let has_progress = removed > self.progress.removed_before
                || self.progress.bad_before.iter().any(|key| !bad.contains(key));
            if has_progress && !bad.is_empty() && self.progress.round < MAX_ROUNDS {
                self.begin_round(bad);
                continue;
            }
            let outcome = self.outcome(&check);
            let is_reverted = self.has_failed(&check)
                && self.context.document.on_failure == FailureMode::Revert
                && self.progress.has_changes();
            if !is_reverted {
                return Ok(self.finish(check, outcome));
            }
            self.begin_reversal(journal, &root, check.has_systemd)?;
        }
    }

    /// Restores the files and units that the run has changed, for example because the node does not
    /// reach its server any more. Packages and accounts stay.
    ///
    /// # Errors
    /// The reversal has stopped before its end.
    pub fn revert(&mut self, journal: &mut dyn RunJournal) -> Result<RunReport, RunError> {
        if !self.progress.is_reverting {
            self.pass = None;
            let root = RootFolder::open(&self.context.machine.root)?;
            let has_systemd = self.check()?.has_systemd;
            self.begin_reversal(journal, &root, has_systemd)?;
        }
        self.execute(journal)
    }

    /// Ends a run that was stopped and is not continued, for example because the node has a new
    /// document. Completes the files of the step that the run was stopped in, or the whole reversal,
    /// and removes the old contents of files. Returns what the caller must store for the next run.
    ///
    /// Another step counts as complete as far as it creates something, because it may have: a unit
    /// then restarts in vain, rather than keeping an old file. Actions that are due do not run.
    ///
    /// # Errors
    /// The files cannot be completed, or the old contents cannot be removed. It can be repeated.
    pub fn give_up(mut self) -> Result<NodeState, RunError> {
        let owned = self.progress.state.owned.clone();
        if let Some((mut pass, next)) = self.pass.take()
            && let Some(planned) = pass.plan.steps.get(next)
        {
            let is_reverting = self.progress.is_reverting;
            if is_reverting || planned.step.changes_files() {
                pass.plan.steps.truncate(if is_reverting { usize::MAX } else { next + 1 });
                self.pass = Some((pass, next));
                self.execute_pass(&mut NoJournal)?;
            } else {
                self.progress.assume_changes((planned, pass.plan.has_systemd), &self.index);
                self.progress.state.owned.merge(owned);
            }
        }
        if self.progress.is_reverting {
            self.progress.complete_reversal(&self.index);
        }
        self.discard_saved()?;
        Ok(self.progress.state)
    }

    /// Removes the old contents of files at the end, when no reversal is necessary any more.
    ///
    /// # Errors
    /// They cannot be removed.
    pub fn discard_saved(&self) -> Result<(), FileError> {
        let root = RootFolder::open(&self.context.machine.root)?;
        let changer = FileChanger {
            root: &root,
            saved_folder: self.context.saved_folder.to_owned(),
            source: self.context.contents,
            faults: self.context.faults,
        };
        changer.discard_saved()
    }

    fn check(&self) -> Result<MachineCheck, FileError> {
        let RunContext { contents, scope, .. } = self.context;
        let options = CheckOptions { contents, scope };
        check_machine(self.context.document, self.context.machine, &options)
    }

    fn begin_pass(
        &mut self,
        journal: &mut dyn RunJournal,
        root: &RootFolder,
        (stage, mut plan): (plan::Stage, RunPlan),
    ) -> Result<(), RunError> {
        for planned in &mut plan.steps {
            self.note_unit_state(root, planned);
        }
        let planning = FilePlanning {
            root,
            contents: self.context.contents,
            index: &self.index,
            scope: self.context.scope,
            run_id: &self.id,
        };
        let pass = RunPass {
            run_id: self.id.clone(),
            revision: self.revision.clone(),
            scope: self.context.scope.clone(),
            files: planning.plan(&plan)?,
            plan,
            stage,
            progress: self.progress.clone(),
        };
        journal.begin_pass(&pass)?;
        self.pass = Some((pass, 0));
        Ok(())
    }

    /// Adds to a step what a unit without an entry does now.
    fn note_unit_state(&self, root: &RootFolder, planned: &mut PlannedStep) {
        match &mut planned.step {
            Step::RetireUnit { unit, was_enabled, was_active, has_other_file } => {
                // An extra is disabled, whoever has its unit file.
                *has_other_file = planned.changes.is_empty() && has_package_file(root, unit);
                let query = || query_unit(self.context.machine, unit);
                (*was_enabled, *was_active) =
                    if *has_other_file { (false, false) } else { query() };
            }
            // After a kill during the restart, the unit may not run any more.
            Step::RunUnit { unit, command, .. } if *command == UnitAction::TryRestart => {
                let (_, is_active) = query_unit(self.context.machine, unit);
                *command = if is_active { UnitAction::Restart } else { UnitAction::TryRestart };
            }
            _ => {}
        }
    }

    fn begin_reversal(
        &mut self,
        journal: &mut dyn RunJournal,
        root: &RootFolder,
        has_systemd: bool,
    ) -> Result<(), RunError> {
        let plan = plan_reversal(&self.progress, has_systemd);
        self.progress.begin_reversal();
        self.begin_pass(journal, root, (REVERSAL_STAGE, plan))
    }

    /// Makes the steps that are left of the current pass.
    fn execute_pass(&mut self, journal: &mut dyn RunJournal) -> Result<(), RunError> {
        let Some((pass, next)) = self.pass.take() else { return Ok(()) };
        let root = RootFolder::open(&self.context.machine.root)?;
        for (index, planned) in pass.plan.steps.iter().enumerate().skip(next) {
            let is_due = is_command_due(planned, &self.progress.state);
            // The restart of the agent ends this process, so the step is complete before.
            let is_early = !is_due || ends_process(&planned.step);
            if is_early {
                journal.complete_step(&CompletedStep { index, failures: Vec::new() })?;
            }
            let failures = if is_due {
                let executor = StepExecutor {
                    context: self.context,
                    index: &self.index,
                    root: &root,
                    pass: &pass,
                    has_old_package_lists: self.progress.state.has_old_package_lists,
                };
                executor.execute(planned)
            } else {
                Vec::new()
            };
            if !is_early {
                let failures = failures.clone();
                journal.complete_step(&CompletedStep { index, failures })?;
            }
            let planned = (planned, pass.plan.has_systemd);
            self.progress.complete(planned, &failures, &self.index);
        }
        self.is_round_complete = pass.stage == plan::Stage::Entries;
        Ok(())
    }

    fn begin_round(&mut self, bad: BTreeSet<EntryKey>) {
        self.progress.round += 1;
        self.progress.bad_before = bad;
        self.progress.removed_before = self.progress.removed_objects(&self.index);
        self.progress.attempted.clear();
        self.is_round_complete = false;
        // Everything else is attempted again.
        let failed_units = self.progress.failed_units.clone();
        self.progress.failures.retain(|failure| is_final(failure, &failed_units));
    }
}

/// Whether a step restarts or stops the unit of this process.
fn ends_process(step: &Step) -> bool {
    matches!(step, Step::RunUnit { unit, .. } if unit.as_str() == AGENT_UNIT)
}
