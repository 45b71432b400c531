//! The result of a run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::plan::RunPlan;
use super::progress::RunFailure;
use super::state::NodeState;
use crate::finding::EntryKey;
use crate::report::{Report, Verdict};

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    pub outcome: RunOutcome,
    /// The check of the machine after the run.
    pub report: Report,
    /// What a next run would do now. For an audit: what a run would do.
    pub remaining: RunPlan,
    /// What the run has changed, also objects that the document does not have.
    pub changed: BTreeSet<EntryKey>,
    pub failures: Vec<RunFailure>,
    /// What the caller must store for the next run.
    pub state: NodeState,
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOutcome {
    /// The document only audits: nothing has changed.
    Audited,
    /// All entries are good, and nothing has failed.
    Succeeded,
    /// An entry is bad, or something has failed.
    Failed,
    /// The run failed or was taken back: the files and units are as before.
    Reverted,
}

/// Marks the entries that a run has changed, and adds why bad entries could not be corrected.
pub(super) fn complete_report(
    report: &mut Report,
    changed: &BTreeSet<EntryKey>,
    failures: &[RunFailure],
) {
    for entry in &mut report.entries {
        let key = EntryKey::new(entry.component, &entry.name);
        entry.modified = changed.contains(&key);
        if entry.verdict != Verdict::Bad {
            continue;
        }
        for failure in failures.iter().filter(|failure| failure.entry.as_ref() == Some(&key)) {
            if !entry.reason.contains(&failure.reason) {
                entry.reason.push_str("; ");
                entry.reason.push_str(&failure.reason);
            }
        }
    }
}
