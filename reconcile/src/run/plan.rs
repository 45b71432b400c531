//! The plan of a run: its steps.

use serde::{Deserialize, Serialize};

use crate::change::PackageRequest;
use crate::finding::{Difference, EntryKey};

/// What a run does, in this order. It has no contents of files and no secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPlan {
    pub steps: Vec<PlannedStep>,
    /// Whether systemd runs. Otherwise nothing restarts.
    pub has_systemd: bool,
    /// Whether the plan has an action that is due since an earlier run.
    #[serde(default)]
    pub has_pending_actions: bool,
}

/// One step of a run, with the entries that it corrects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedStep {
    #[serde(flatten)]
    pub step: Step,
    /// Also objects that the document does not have, and that the step removes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<EntryChange>,
}

/// An entry that a step changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryChange {
    pub entry: EntryKey,
    /// What the step corrects.
    pub differences: Vec<Difference>,
}

/// The kind of a step. Each step except actions can be repeated after it was killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Runs an action before its bundle changes.
    PreAction {
        bundle: String,
        name: String,
    },
    /// Writes and removes the files of package sources.
    WriteSources,
    /// Installs and removes packages.
    ChangePackages {
        request: PackageRequest,
    },
    /// Creates or corrects a group.
    ChangeGroup {
        name: String,
    },
    /// Creates or corrects a user.
    ChangeUser {
        name: String,
    },
    /// Disables and stops a unit that the document does not have, as far as necessary.
    RetireUnit {
        unit: String,
        was_enabled: bool,
        was_active: bool,
        /// Whether a package has a unit file for it. Then it stays as it is, and restarts if it
        /// runs.
        has_other_file: bool,
    },
    /// Writes files, unit files, drop-ins and the file of kernel settings as one set. Removes paths
    /// that must be absent, and files of units that the document does not have any more.
    WriteFiles,
    /// Makes systemd read the unit files.
    ReloadUnits,
    /// Sets a value of the running kernel.
    SetKernelValue {
        key: String,
    },
    EnableUnit {
        unit: String,
    },
    DisableUnit {
        unit: String,
    },
    /// Starts, restarts or stops a unit once, if its activity differs, a restart is pending, or
    /// `is_due`.
    RunUnit {
        unit: String,
        command: UnitAction,
        /// Whether the unit used a file that is removed as the last step.
        is_due: bool,
    },
    /// Runs an action after its bundle has changed.
    PostAction {
        bundle: String,
        name: String,
    },
    RemoveUser {
        name: String,
    },
    RemoveGroup {
        name: String,
    },
    /// Removes files that earlier runs have created and the document does not have any more.
    RemoveStaleFiles,
    /// Restores the files that the run has changed.
    RestoreFiles,
}

/// What happens to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UnitAction {
    Start,
    Restart,
    /// Restarts a unit that runs. For units without an entry.
    TryRestart,
    Stop,
}

/// The parts of a run. The machine is checked again between them: actions and packages change what
/// later steps need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stage {
    PreActions,
    Packages,
    Entries,
    /// What cannot be restored is removed when everything else is done.
    Removals,
}

impl RunPlan {
    /// Whether the machine is as the document describes, and nothing is pending. Other actions than
    /// those that are due since an earlier run do not count.
    pub fn is_empty(&self) -> bool {
        let is_action = |step: &PlannedStep| {
            matches!(step.step, Step::PreAction { .. } | Step::PostAction { .. })
        };
        !self.has_pending_actions && self.steps.iter().all(is_action)
    }

    /// The steps of the first part that has any, from a part on.
    pub(crate) fn first_stage(&self, earliest: Stage) -> Option<(Stage, Self)> {
        let stages = self.steps.iter().scan(Stage::PreActions, |previous, planned| {
            *previous = planned.step.stage(*previous);
            Some((*previous, planned))
        });
        let stages: Vec<(Stage, &PlannedStep)> =
            stages.filter(|(stage, _)| *stage >= earliest).collect();
        let first = stages.iter().map(|(stage, _)| *stage).min()?;
        let steps = stages.into_iter().filter(|(stage, _)| *stage == first);
        let steps = steps.map(|(_, planned)| planned.clone()).collect();
        Some((first, Self { steps, ..self.clone() }))
    }
}

impl Step {
    /// The part of a step that follows a step of another part.
    fn stage(&self, previous: Stage) -> Stage {
        match self {
            Self::PreAction { .. } => Stage::PreActions,
            Self::WriteSources | Self::ChangePackages { .. } => Stage::Packages,
            Self::RemoveUser { .. } | Self::RemoveGroup { .. } | Self::RemoveStaleFiles => {
                Stage::Removals
            }
            // Files that are removed last may be unit files.
            _ if previous == Stage::Removals => Stage::Removals,
            _ => Stage::Entries,
        }
    }

    /// Whether the step writes, removes or restores files of the document.
    pub(crate) fn changes_files(&self) -> bool {
        matches!(
            self,
            Self::WriteSources | Self::WriteFiles | Self::RemoveStaleFiles | Self::RestoreFiles
        )
    }

    /// A step that retires a unit. A run finds out the state of the unit before it begins.
    pub(crate) fn retire(unit: String) -> Self {
        Self::RetireUnit { unit, was_enabled: true, was_active: true, has_other_file: false }
    }

    pub(crate) fn with(self, changes: Vec<EntryChange>) -> PlannedStep {
        PlannedStep { step: self, changes }
    }
}

impl EntryChange {
    pub(crate) fn new(entry: EntryKey, differences: impl Into<Vec<Difference>>) -> Self {
        Self { entry, differences: differences.into() }
    }

    pub(crate) fn has(&self, difference: &Difference) -> bool {
        self.differences.contains(difference)
    }
}
