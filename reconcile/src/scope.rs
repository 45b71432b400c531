//! What of a document a check or a run covers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::finding::EntryKey;

/// What of a document a check or a run covers. The default is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryScope {
    /// Only the entries of this bundle are checked and changed. Nothing is an extra, and nothing is
    /// removed because the document does not have it. A bundle that the document does not have
    /// contains no entries; callers refuse such a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_bundle: Option<String>,
    /// Entries that the document does not have because the server could not bind them. They are
    /// bad, and what they describe is left alone: it is neither removed, nor an extra, nor pruned.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub failed_entries: BTreeSet<EntryKey>,
}

impl EntryScope {
    /// Whether the entries of a bundle are checked and changed.
    pub(crate) fn covers_bundle(&self, name: &str) -> bool {
        self.only_bundle.as_ref().is_none_or(|only| only == name)
    }

    /// Whether the whole document is covered.
    pub(crate) fn is_whole(&self) -> bool {
        self.only_bundle.is_none()
    }
}
