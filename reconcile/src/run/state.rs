//! What a node keeps between runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::finding::EntryKey;

/// What a node keeps between runs. The caller stores it durably after each run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeState {
    pub owned: OwnedEntries,
    pub pending_restarts: PendingRestarts,
    /// Actions that are due after a change of their bundle, and have not succeeded.
    pub pending_actions: BTreeSet<String>,
    /// What has interrupted runs, so that no run of the revision attempts it again.
    pub interruptions: Interruptions,
    /// Whether unit files have changed since systemd has read them.
    pub has_unread_units: bool,
    /// Whether sources of packages have changed since packages were changed the last time.
    pub has_old_package_lists: bool,
}

/// What earlier runs have created. Only this is removed when the document has no entry for it any
/// more: what a run did not create, it does not delete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnedEntries {
    /// Files, packages, sources, users, groups and kernel settings; of a unit: its unit file.
    pub entries: BTreeSet<EntryKey>,
    /// Drop-ins by unit.
    pub drop_ins: BTreeMap<String, BTreeSet<String>>,
    /// The units that have an owned file in `filePaths`: they restart once before the file is
    /// removed.
    pub file_units: BTreeMap<String, BTreeSet<String>>,
}

/// Entries whose change has interrupted a run of a revision, for example because it has stopped the
/// machine: an action once, a kernel value or a command of a unit twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interruptions {
    /// The revision of the document. Another revision attempts the entries again.
    pub revision: String,
    pub entries: BTreeSet<EntryKey>,
}

/// Why units must restart, by unit. A reason is added when a file changes, and removed when the
/// restart has succeeded.
pub type PendingRestarts = BTreeMap<String, BTreeSet<RestartReason>>;

/// Why a unit must restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RestartReason {
    /// Its unit file or a drop-in has changed.
    UnitFiles,
    /// A file in its `filePaths` has changed.
    File(String),
    /// A run was reverted.
    Reverted,
}

impl OwnedEntries {
    pub(crate) fn remove(&mut self, key: &EntryKey) {
        self.entries.remove(key);
        self.file_units.remove(&key.name);
    }

    /// Adds what another record has.
    pub(crate) fn merge(&mut self, other: Self) {
        self.entries.extend(other.entries);
        for (unit, drop_ins) in other.drop_ins {
            self.drop_ins.entry(unit).or_default().extend(drop_ins);
        }
        for (path, units) in other.file_units {
            self.file_units.entry(path).or_default().extend(units);
        }
    }

    pub(crate) fn add_drop_in(&mut self, unit: &str, drop_in: &str) {
        self.drop_ins.entry(unit.to_owned()).or_default().insert(drop_in.to_owned());
    }

    pub(crate) fn remove_drop_in(&mut self, unit: &str, drop_in: &str) {
        if let Some(drop_ins) = self.drop_ins.get_mut(unit) {
            drop_ins.remove(drop_in);
            if drop_ins.is_empty() {
                self.drop_ins.remove(unit);
            }
        }
    }
}

impl NodeState {
    pub(crate) fn add_restart(&mut self, unit: &str, reason: RestartReason) {
        self.pending_restarts.entry(unit.to_owned()).or_default().insert(reason);
    }

    /// Removes the reasons of a unit that has restarted.
    pub(crate) fn clear_restart(&mut self, unit: &str) {
        self.pending_restarts.remove(unit);
        for units in self.owned.file_units.values_mut() {
            units.remove(unit);
        }
        self.owned.file_units.retain(|_, units| !units.is_empty());
    }
}
