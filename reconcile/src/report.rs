//! The result of a check.

use evenkeel_configuration::Component;
use serde::{Deserialize, Serialize};

/// The result of a check, as `evenkeel-agent configuration check -o json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub state: ComplianceState,
    /// The entries in the order of the document, then extras by component and name. Actions are
    /// not among them.
    pub entries: Vec<EntryReport>,
}

/// Whether a machine is as its document describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComplianceState {
    /// Every entry is good. Extras do not matter.
    Clean,
    /// An entry is bad.
    Dirty,
}

/// One entry of a document, or one extra of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryReport {
    pub component: Component,
    pub name: String,
    pub verdict: Verdict,
    /// Whether this run has changed the entry.
    pub modified: bool,
    /// Why the entry is bad, as a sentence without a full stop; empty if it is good.
    pub reason: String,
    /// The state of the machine: the fields of the desired state that differ, with their current
    /// values. Empty for good entries. It never contains the content of a secret.
    pub current: serde_json::Map<String, serde_json::Value>,
}

/// Whether an entry is as desired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The machine is as desired.
    Good,
    /// The machine differs, or the entry could not be checked.
    Bad,
    /// The machine has it and the document does not.
    Extra,
}
