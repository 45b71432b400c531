//! What earlier runs have created and the document does not have any more.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_configuration::Component;

use super::document_index::DocumentIndex;
use super::ownership::list_paths;
use super::plan::EntryChange;
use super::progress::RunProgress;
use super::state::OwnedEntries;
use crate::files::ManagedPaths;
use crate::finding::{Difference, EntryKey};
use crate::names::{drop_in_path, is_same_package};
use crate::protection::is_part_of_agent;
use crate::scope::EntryScope;

/// What earlier runs have created and the document does not have any more.
///
/// A unit that loses its `content` keeps its file, as long as the document has the unit. A directory
/// stays as long as the document has something in it. What the server could not bind stays.
#[derive(Debug, Default)]
pub(super) struct StaleEntries {
    pub entries: BTreeSet<EntryKey>,
    /// By unit. The document may have the unit.
    pub drop_ins: BTreeMap<String, BTreeSet<String>>,
    /// Units that had a stale file in `filePaths` in an earlier document.
    pub units_of_files: BTreeSet<String>,
}

impl StaleEntries {
    pub fn find(
        owned: &OwnedEntries,
        index: &DocumentIndex<'_>,
        scope: &EntryScope,
        progress: &RunProgress,
    ) -> Self {
        let mut stale = Self::default();
        if !scope.is_whole() {
            return stale;
        }
        let mut managed = ManagedPaths::from_document(index.document);
        managed.insert_failed_entries(&scope.failed_entries);
        let failed = scope.failed_entries.iter();
        let failed_packages: Vec<&EntryKey> =
            failed.filter(|key| key.component == Component::Package).collect();
        let is_failed_package =
            |name: &str| failed_packages.iter().any(|key| is_same_package(&key.name, name));
        let is_used = |key: &EntryKey| {
            index.find(key).is_some()
                || scope.failed_entries.contains(key)
                || progress.attempted.contains(key)
                || progress.failed_retirements.contains(key)
                || progress.interrupted.contains(key)
                || is_part_of_agent(key)
                || list_paths(key).iter().any(|path| managed.contains(path))
                || (key.component == Component::Package && is_failed_package(&key.name))
        };
        stale.entries = owned.entries.iter().filter(|key| !is_used(key)).cloned().collect();
        for (unit, drop_ins) in &owned.drop_ins {
            let entry = index.find_unit(unit);
            let is_excluded =
                entry.is_some_and(|(bundle, _)| progress.excluded.contains(&bundle.name));
            if is_excluded || scope.failed_entries.contains(&EntryKey::unit(unit)) {
                continue;
            }
            let is_present = |drop_in: &String| {
                entry.is_some_and(|(_, state)| state.drop_ins.contains_key(drop_in))
                    || managed.contains(&drop_in_path(unit, drop_in))
            };
            let names: BTreeSet<String> =
                drop_ins.iter().filter(|drop_in| !is_present(drop_in)).cloned().collect();
            if !names.is_empty() {
                stale.drop_ins.insert(unit.clone(), names);
            }
        }
        for key in stale.entries.iter().filter(|key| key.component == Component::File) {
            let units = owned.file_units.get(&key.name);
            stale.units_of_files.extend(units.into_iter().flatten().cloned());
        }
        stale
    }

    /// Removals of a component.
    pub fn changes(&self, component: Component) -> impl Iterator<Item = EntryChange> {
        let keys = self.entries.iter().filter(move |key| key.component == component);
        keys.map(|key| EntryChange::new(key.clone(), [Difference::Existence]))
    }

    pub fn drop_in_changes(&self) -> impl Iterator<Item = EntryChange> {
        self.drop_ins.iter().map(|(unit, drop_ins)| {
            let name = |name: &String| Difference::DropIn { name: name.clone(), is_missing: false };
            EntryChange::new(
                EntryKey::unit(unit),
                drop_ins.iter().map(name).collect::<Vec<Difference>>(),
            )
        })
    }
}
