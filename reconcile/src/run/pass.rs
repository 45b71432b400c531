//! What the journal of a run stores.

use serde::{Deserialize, Serialize};

use super::plan::{EntryChange, RunPlan, Stage};
use super::progress::{RunFailure, RunProgress};
use crate::files::{FilePlan, RemovalSet};
use crate::scope::EntryScope;

/// A part of a run that was planned at once. It has everything that is needed to continue it, except
/// the document. It contains texts of kernel settings, and no contents of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPass {
    pub run_id: String,
    /// The revision of the document.
    pub revision: String,
    pub scope: EntryScope,
    pub plan: RunPlan,
    pub(crate) stage: Stage,
    pub(crate) files: PassFiles,
    /// What the run had done when the pass began.
    pub(crate) progress: RunProgress,
}

/// The files of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PassFiles {
    /// What is written, and what is removed before units restart.
    pub plan: FilePlan,
    /// What is removed as the last step.
    pub stale: RemovalSet,
    /// The new text of the file of kernel settings; `None` if it is removed, or does not change.
    pub settings: Option<String>,
    /// Why the files cannot be planned. The entries of their steps then fail.
    pub error: Option<String>,
}

/// An attempt of a step that begins. If the step has no [`CompletedStep`], the run was interrupted
/// in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BegunStep {
    /// Index in the plan of the pass.
    pub index: usize,
    /// Number of the attempt, from 1.
    pub attempt: u32,
}

/// A step of a pass that is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompletedStep {
    /// Index in the plan of the pass.
    pub index: usize,
    /// What has failed in it. A step with failures is complete as well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<RunFailure>,
    /// What the step has changed of entries that have failed, for example one of two files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial_changes: Vec<EntryChange>,
    /// Whether the step was not attempted again after interruptions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_interrupted: bool,
    /// Whether a reversal may restore more files or kernel values if it is repeated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_restore_more: bool,
}

/// A run as a journal has stored it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredRun {
    pub pass: RunPass,
    /// In the order of the steps.
    pub completed: Vec<CompletedStep>,
    /// The attempts of steps, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub begun: Vec<BegunStep>,
}

/// Stores the progress of a run durably. A call returns when the data is on the disk.
pub trait RunJournal {
    /// Stores the plan of a pass, in the place of the earlier pass and its steps.
    ///
    /// # Errors
    /// The pass is not stored. The run stops.
    fn begin_pass(&mut self, pass: &RunPass) -> Result<(), JournalError>;

    /// Adds an attempt of a step, before it begins. Without this record, a step that kills the agent
    /// or the machine is repeated for ever.
    ///
    /// # Errors
    /// The attempt is not stored. The run stops, and the step does not begin.
    fn begin_step(&mut self, step: &BegunStep) -> Result<(), JournalError>;

    /// Adds a step that is complete.
    ///
    /// # Errors
    /// The step is not stored. The run stops.
    fn complete_step(&mut self, step: &CompletedStep) -> Result<(), JournalError>;
}

/// The journal cannot be written: why, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write the journal: {0}")]
pub struct JournalError(pub String);

/// Stores nothing.
pub(super) struct NoJournal;

impl RunJournal for NoJournal {
    fn begin_pass(&mut self, _pass: &RunPass) -> Result<(), JournalError> {
        Ok(())
    }

    fn begin_step(&mut self, _step: &BegunStep) -> Result<(), JournalError> {
        Ok(())
    }

    fn complete_step(&mut self, _step: &CompletedStep) -> Result<(), JournalError> {
        Ok(())
    }
}

/// A journal in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryJournal {
    /// The run; `None` before its first pass.
    pub stored: Option<StoredRun>,
}

impl RunJournal for MemoryJournal {
    fn begin_pass(&mut self, pass: &RunPass) -> Result<(), JournalError> {
        self.stored =
            Some(StoredRun { pass: pass.clone(), completed: Vec::new(), begun: Vec::new() });
        Ok(())
    }

    fn begin_step(&mut self, step: &BegunStep) -> Result<(), JournalError> {
        self.stored()?.begun.push(*step);
        Ok(())
    }

    fn complete_step(&mut self, step: &CompletedStep) -> Result<(), JournalError> {
        self.stored()?.completed.push(step.clone());
        Ok(())
    }
}

impl MemoryJournal {
    fn stored(&mut self) -> Result<&mut StoredRun, JournalError> {
        self.stored.as_mut().ok_or_else(|| JournalError("the run has no pass".to_owned()))
    }
}
