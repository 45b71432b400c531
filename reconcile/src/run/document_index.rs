//! Finds entries of a document.

use std::collections::HashMap;

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{
    ActionCondition, ActionSpec, ActionTiming, Bundle, Desired, Document, Entry, FileKind,
    PackageState, UnitState,
};

use crate::finding::EntryKey;

/// The entries of a document by component and name.
#[derive(Debug)]
pub(crate) struct DocumentIndex<'a> {
    pub document: &'a Document,
    entries: HashMap<(Component, &'a str), (&'a Bundle, &'a Entry)>,
    /// Units that name a file in `filePaths`, by path.
    file_units: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> DocumentIndex<'a> {
    pub fn new(document: &'a Document) -> Self {
        let mut index = Self { document, entries: HashMap::new(), file_units: HashMap::new() };
        for (bundle, entry) in document.entries() {
            index.entries.insert(entry.key(), (bundle, entry));
            if let Desired::Unit(state) = &entry.desired {
                for path in &state.file_paths {
                    index.file_units.entry(path).or_default().push(&entry.name);
                }
            }
        }
        index
    }

    pub fn find(&self, key: &EntryKey) -> Option<(&'a Bundle, &'a Entry)> {
        self.entries.get(&(key.component, key.name.as_str())).copied()
    }

    pub fn find_unit(&self, name: &str) -> Option<(&'a Bundle, &'a UnitState)> {
        match self.entries.get(&(Component::Unit, name)) {
            Some((bundle, Entry { desired: Desired::Unit(state), .. })) => Some((bundle, state)),
            _ => None,
        }
    }

    /// The units that restart when a file changes.
    pub fn units_of_file(&self, path: &str) -> &[&'a str] {
        self.file_units.get(path).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether the document has an entry by which the object exists.
    pub fn has_present(&self, key: &EntryKey) -> bool {
        self.find(key).is_some_and(|(_, entry)| is_present(entry))
    }
}

/// Whether the object of an entry must exist.
pub(crate) fn is_present(entry: &Entry) -> bool {
    match &entry.desired {
        Desired::File(state) => state.kind != FileKind::Absent,
        Desired::User(state) => !state.absent,
        Desired::UserGroup(state) => !state.absent,
        Desired::Package(state) => state.version != PackageState::ABSENT,
        _ => true,
    }
}

/// The actions of a bundle that run before or after its changes.
pub(crate) fn actions_of(
    bundle: &Bundle,
    timing: ActionTiming,
) -> impl Iterator<Item = (&str, &ActionSpec)> {
    bundle.entries.iter().filter_map(move |entry| match &entry.desired {
        Desired::Action(action) if matches!(action.timing, ActionTiming::Both) => {
            Some((entry.name.as_str(), action))
        }
        Desired::Action(action) if action.timing == timing => Some((entry.name.as_str(), action)),
        _ => None,
    })
}

/// Whether an action runs without a change of its bundle.
pub(crate) fn runs_always(action: &ActionSpec) -> bool {
    action.when == ActionCondition::Always
}
