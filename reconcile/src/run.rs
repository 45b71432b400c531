//! Plans and runs all changes of a document.
//!
//! A run makes the machine as its document describes, in this order:
//!
//! | Part | Steps |
//! | --- | --- |
//! | actions | those that run before the change of their bundle |
//! | packages | files of sources, then one transaction of packages |
//! | entries | groups and users; units that the document does not have any more stop; all files, unit files, drop-ins and kernel settings as one set; `daemon-reload`; kernel values; enable and disable; one command for each unit; actions after the change |
//! | removals | users and groups; files that the document does not have any more |
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
//! What a run removes last cannot be restored as a whole. A document whose failed runs are reverted
//! removes it only if everything else is good.
//!
//! # Kills
//!
//! Plans, attempts and complete steps are in the [`RunJournal`]. A run that was killed is continued
//! with [`Run::resume`]. An action that was interrupted has failed, because it may have been the
//! reason, and is not repeated. Every other step is repeated once, so that a unit may restart twice.
//! If it is interrupted again, it has failed as well.
//!
//! # The agent
//!
//! An entry that would stop, disable or remove the agent is bad and never applied.

mod document_index;
mod execution;
mod ownership;
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
use pass::{NoJournal, PassFiles};
use plan::Stage;
use planner::plan_rest;
use progress::RunProgress;
use report::{bad_entries, is_final};
use specs::FilePlanning;

use crate::change::{ActionPolicy, PackageInstaller, query_unit, read_running_value};
use crate::check::{CheckOptions, MachineCheck, check_machine, has_package_file};
use crate::files::{ContentSource, FaultPoint, FileChanger, FileError, RootFolder};
use crate::finding::{Difference, EntryKey};
use crate::machine::Machine;
use crate::report::Verdict;
use crate::scope::EntryScope;

pub use pass::{
    BegunStep, CompletedStep, JournalError, MemoryJournal, RunJournal, RunPass, StoredRun,
};
pub use plan::{EntryChange, PlannedStep, RunPlan, Step, UnitAction};
pub use planner::plan;
pub use progress::RunFailure;
pub use report::{RunOutcome, RunReport};
pub use state::{Interruptions, NodeState, OwnedEntries, PendingRestarts, RestartReason};

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
    /// The stored run covers other entries.
    #[error("the run covers other entries of the document")]
    OtherScope,
    /// The journal lacks steps, or has steps that the plan does not have.
    #[error("the journal of the run is damaged: step {0} is not the next one of its plan")]
    DamagedJournal(usize),
}

/// A run.
pub struct Run<'a> {
    context: RunContext<'a>,
    index: DocumentIndex<'a>,
    id: String,
    revision: String,
    progress: RunProgress,
    /// The pass that is not complete.
    pass: Option<OpenPass>,
    /// The earliest part that the round can still have; `None` if the round is complete.
    next_stage: Option<Stage>,
    /// Whether the reversal has ended. Another attempt then plans it again.
    has_ended_reversal: bool,
}

/// A pass that is not complete.
#[derive(Debug)]
struct OpenPass {
    pass: RunPass,
    /// Index of the next step.
    next: usize,
    /// How many attempts of the next step have begun.
    attempts: u32,
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Documents have contents that may be secret.
        f.debug_struct("Run").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<'a> Run<'a> {
    /// A new run. `run_id` has 1 to 64 letters, digits, `-` and `_`, and is part of the names of
    /// temporary files. `state` is the one that the last run returned.
    pub fn new(context: RunContext<'a>, run_id: &str, state: NodeState) -> Self {
        let index = DocumentIndex::new(context.document);
        let revision = revision(context.document);
        let progress = RunProgress::new(state, &index, &revision);
        Self {
            context,
            index,
            id: run_id.to_owned(),
            revision,
            progress,
            pass: None,
            next_stage: Some(Stage::PreActions),
            has_ended_reversal: false,
        }
    }

    /// Continues a run that was stopped. The context has the same document and scope, so the caller
    /// keeps the document of a stored run until the run has ended or is given up.
    ///
    /// # Errors
    /// The run is for another document or scope, or its journal is damaged.
    pub fn resume(context: RunContext<'a>, stored: StoredRun) -> Result<Self, RunError> {
        let StoredRun { pass, completed, begun } = stored;
        let mut run = Self::new(context, &pass.run_id, NodeState::default());
        if run.revision != pass.revision {
            let current = run.revision;
            return Err(RunError::OtherDocument { stored: pass.revision, current });
        }
        if *context.scope != pass.scope {
            return Err(RunError::OtherScope);
        }
        run.progress = pass.progress.clone();
        let mut next = 0;
        for step in completed {
            match pass.plan.steps.get(step.index) {
                Some(planned) if step.index == next => {
                    let planned = (planned, pass.plan.has_systemd);
                    run.progress.complete(planned, &step, &run.index);
                    next += 1;
                }
                // The journal could store the step, and could not confirm it.
                Some(_) if step.index < next => {}
                _ => return Err(RunError::DamagedJournal(step.index)),
            }
        }
        let attempts = begun.iter().filter(|step| step.index == next);
        let attempts = attempts.map(|step| step.attempt).max().unwrap_or(0);
        let is_complete = next == pass.plan.steps.len();
        run.has_ended_reversal =
            is_complete && run.progress.is_reverting && run.progress.has_failed_restoration;
        run.pass = Some(OpenPass { pass, next, attempts });
        Ok(run)
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
            if self.has_ended_reversal {
                self.begin_reversal(journal)?;
            }
            self.execute_pass(journal)?;
            let root = RootFolder::open(&self.context.machine.root)?;
            let check = self.check()?;
            if self.progress.is_reverting {
                return Ok(self.finish_reversal(&root, check));
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
            let stage = self.next_stage.and_then(|stage| plan.first_stage(stage));
            let stage = stage
                .filter(|(stage, plan)| *stage != Stage::Removals || self.can_remove(&check, plan));
            if let Some((stage, plan)) = stage {
                let progress = self.progress.clone();
                self.begin_pass(journal, &root, (stage, plan, progress))?;
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
            self.begin_reversal(journal)?;
        }
    }

    /// Ends a run that was stopped and is not continued, for example because the node has a new
    /// document. Completes the files of the step that the run was stopped in, or the whole reversal,
    /// and removes the old contents of files. Returns what the caller must store for the next run.
    ///
    /// Another step counts as complete as far as it may have changed something: a unit then restarts
    /// in vain, rather than keeping an old file. The node owns only what exists. Actions that are
    /// due run in the next run, if its document has them.
    ///
    /// # Errors
    /// The files cannot be completed, or the old contents cannot be removed. It can be repeated.
    pub fn give_up(mut self) -> Result<NodeState, RunError> {
        let is_reverting = self.progress.is_reverting;
        let open = self.pass.as_ref();
        let is_half_done = open.is_some_and(|open| {
            let planned = open.pass.plan.steps.get(open.next);
            open.attempts > 0 && planned.is_some_and(|planned| planned.step.changes_files())
        });
        if is_reverting || is_half_done {
            if let Some(open) = self.pass.as_mut().filter(|_| !is_reverting) {
                open.pass.plan.steps.truncate(open.next + 1);
            }
            self.execute_pass(&mut NoJournal)?;
        } else {
            self.assume_interrupted_step()?;
        }
        let root = RootFolder::open(&self.context.machine.root)?;
        if is_reverting {
            self.progress.complete_reversal(&root, &self.index);
        }
        self.store_pending();
        self.remove_saved(&root)?;
        Ok(self.progress.state)
    }

    /// Records what the step may have changed in which the run was interrupted.
    fn assume_interrupted_step(&mut self) -> Result<(), RunError> {
        let Some(open) = self.pass.take_if(|open| open.attempts > 0) else { return Ok(()) };
        let Some(planned) = open.pass.plan.steps.get(open.next) else { return Ok(()) };
        let check = self.check()?;
        let is_created = |key: &EntryKey| {
            let mut entries = check.entries.iter();
            let entry = entries.find(|entry| {
                (entry.report.component, entry.report.name.as_str()) == (key.component, &key.name)
            });
            entry.is_some_and(|entry| {
                entry.report.verdict == Verdict::Good
                    || !entry.differences.is_empty()
                        && !entry.differences.contains(&Difference::Existence)
            })
        };
        let planned = (planned, open.pass.plan.has_systemd);
        self.progress.assume_changes(planned, &self.index, is_created);
        Ok(())
    }

    /// Removes the old contents of files at the end, when no reversal is necessary any more.
    ///
    /// # Errors
    /// They cannot be removed, or a reversal has not restored all files: they are then the only way
    /// back.
    pub fn discard_saved(&self) -> Result<(), FileError> {
        if self.progress.is_reverting && self.progress.has_failed_restoration {
            let folder = self.context.saved_folder.display().to_string();
            let reason = "files are not restored yet; revert the run again, or give it up";
            return Err(FileError::new("remove", folder, reason));
        }
        self.remove_saved(&RootFolder::open(&self.context.machine.root)?)
    }

    fn remove_saved(&self, root: &RootFolder) -> Result<(), FileError> {
        let changer = FileChanger {
            root,
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

    /// Whether what cannot be restored may be removed.
    fn can_remove(&self, check: &MachineCheck, plan: &RunPlan) -> bool {
        if self.context.document.on_failure != FailureMode::Revert {
            return true;
        }
        let changes = plan.steps.iter().flat_map(|planned| &planned.changes);
        let removed: BTreeSet<&EntryKey> = changes.map(|change| &change.entry).collect();
        self.failures(check).is_empty()
            && bad_entries(check).iter().all(|key| removed.contains(key))
    }

    fn begin_pass(
        &mut self,
        journal: &mut dyn RunJournal,
        root: &RootFolder,
        (stage, mut plan, mut progress): (Stage, RunPlan, RunProgress),
    ) -> Result<(), RunError> {
        for planned in &mut plan.steps {
            self.note_state(root, planned, &mut progress);
        }
        let planning = FilePlanning {
            root,
            contents: self.context.contents,
            index: &self.index,
            scope: self.context.scope,
            run_id: &self.id,
        };
        let files = planning.plan(&plan).unwrap_or_else(|error| PassFiles {
            error: Some(error.to_string()),
            ..PassFiles::default()
        });
        let pass = RunPass {
            run_id: self.id.clone(),
            revision: self.revision.clone(),
            scope: self.context.scope.clone(),
            files,
            plan,
            stage,
            progress,
        };
        journal.begin_pass(&pass)?;
        self.progress = pass.progress.clone();
        self.pass = Some(OpenPass { pass, next: 0, attempts: 0 });
        Ok(())
    }

    /// Notes what a step changes and no check has: what a unit without an entry does now, and the
    /// value of the kernel.
    fn note_state(&self, root: &RootFolder, planned: &mut PlannedStep, progress: &mut RunProgress) {
        match &mut planned.step {
            Step::RetireUnit { unit, was_enabled, was_active, has_other_file } => {
                // An extra is disabled, also if its unit file belongs to a package.
                *has_other_file = planned.changes.is_empty() && has_package_file(root, unit);
                (*was_enabled, *was_active) = if *has_other_file {
                    (false, false)
                } else {
                    let (is_enabled, is_active) = query_unit(self.context.machine, unit);
                    // Both commands do no harm if there is nothing to do.
                    (is_enabled.unwrap_or(true), is_active.unwrap_or(true))
                };
            }
            // After a kill during the restart, the unit may not run any more.
            Step::RunUnit { unit, command, .. }
                if *command == UnitAction::TryRestart
                    && query_unit(self.context.machine, unit).1 == Some(true) =>
            {
                *command = UnitAction::Restart;
            }
            Step::SetKernelValue { key } if !progress.kernel_values.contains_key(key) => {
                if let Some(value) = read_running_value(root, key) {
                    progress.kernel_values.insert(key.clone(), value);
                }
            }
            _ => {}
        }
    }

    fn begin_round(&mut self, bad: BTreeSet<EntryKey>) {
        self.progress.round += 1;
        self.progress.bad_before = bad;
        self.progress.removed_before = self.progress.removed_objects(&self.index);
        self.progress.attempted.clear();
        self.next_stage = Some(Stage::PreActions);
        // Everything else is attempted again.
        let mut failures = std::mem::take(&mut self.progress.failures);
        failures.retain(|failure| is_final(failure, &self.progress));
        self.progress.failures = failures;
    }
}
