//! Executes the steps of a pass.

use super::pass::{BegunStep, CompletedStep, RunJournal};
use super::plan::{PlannedStep, Stage, Step, UnitAction};
use super::progress::{RunFailure, is_step_due, list_keys};
use super::state::RestartReason;
use super::steps::StepExecutor;
use super::{OpenPass, Run, RunError};
use crate::files::RootFolder;
use crate::names::AGENT_UNIT;

/// Most attempts of a step. An action has one.
const MAX_STEP_ATTEMPTS: u32 = 2;

impl Run<'_> {
    /// Executes the steps that are left of the current pass.
    pub(super) fn execute_pass(&mut self, journal: &mut dyn RunJournal) -> Result<(), RunError> {
        let Some(mut open) = self.pass.take() else { return Ok(()) };
        if let Err(error) = self.execute_steps(journal, &mut open) {
            self.pass = Some(open);
            return Err(error);
        }
        self.next_stage = match open.pass.stage {
            Stage::PreActions | Stage::Packages => Some(Stage::PreActions),
            Stage::Entries => Some(Stage::Removals),
            Stage::Removals => None,
        };
        Ok(())
    }

    fn execute_steps(
        &mut self,
        journal: &mut dyn RunJournal,
        open: &mut OpenPass,
    ) -> Result<(), RunError> {
        let root = RootFolder::open(&self.context.machine.root)?;
        while let Some(planned) = open.pass.plan.steps.get(open.next) {
            let result = if let Some(result) = self.decide(planned, open.attempts) {
                result
            } else {
                let attempt = open.attempts + 1;
                journal.begin_step(&BegunStep { index: open.next, attempt })?;
                open.attempts = attempt;
                let executor = StepExecutor {
                    context: self.context,
                    index: &self.index,
                    root: &root,
                    pass: &open.pass,
                    progress: &self.progress,
                };
                executor.execute(planned)
            };
            let result = CompletedStep { index: open.next, ..result };
            journal.complete_step(&result)?;
            self.progress.complete((planned, open.pass.plan.has_systemd), &result, &self.index);
            open.next += 1;
            open.attempts = 0;
        }
        Ok(())
    }

    /// The result of a step that is not executed.
    fn decide(&self, planned: &PlannedStep, attempts: u32) -> Option<CompletedStep> {
        let is_action = matches!(planned.step, Step::PreAction { .. } | Step::PostAction { .. });
        let max_attempts = if is_action { 1 } else { MAX_STEP_ATTEMPTS };
        // The restart of the agent has ended the process of the run.
        let is_restart = attempts > 0 && restarts_agent(&planned.step);
        if is_restart || !is_step_due(planned, &self.progress) {
            return Some(CompletedStep::default());
        }
        if attempts >= max_attempts {
            let reason = if is_action {
                "the run was interrupted while the action ran; the action is not repeated"
            } else {
                "the run was interrupted twice during the change; the change is not repeated"
            };
            return Some(interrupt_step(planned, reason));
        }
        let reason = "systemd has not read the new unit files, so the unit does not restart";
        self.lacks_unit_files(planned).then(|| CompletedStep {
            failures: fail_step(planned, reason),
            ..CompletedStep::default()
        })
    }

    /// Whether a unit would restart with its old unit files. A reversal restarts it nevertheless,
    /// because other files that it reads are restored.
    fn lacks_unit_files(&self, planned: &PlannedStep) -> bool {
        let Step::RunUnit { unit, command, .. } = &planned.step else { return false };
        let state = &self.progress.state;
        let reasons = state.pending_restarts.get(unit);
        state.has_unread_units
            && !self.progress.is_reverting
            && *command != UnitAction::Stop
            && reasons.is_some_and(|reasons| reasons.contains(&RestartReason::UnitFiles))
    }
}

fn restarts_agent(step: &Step) -> bool {
    matches!(step, Step::RunUnit { unit, .. } if unit.as_str() == AGENT_UNIT)
}

/// The result of a step that has interrupted the run too often.
fn interrupt_step(planned: &PlannedStep, reason: &str) -> CompletedStep {
    let failures = fail_step(planned, reason);
    CompletedStep { failures, is_interrupted: true, ..CompletedStep::default() }
}

fn fail_step(planned: &PlannedStep, reason: &str) -> Vec<RunFailure> {
    let keys = list_keys(planned);
    if keys.is_empty() {
        return vec![RunFailure::of_run(reason)];
    }
    keys.into_iter().map(|key| RunFailure::of_entry(key, reason)).collect()
}
