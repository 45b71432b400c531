//! Hands objects over from an entry to another one that describes the same object, so that no run
//! removes them. An entry may move to another component, or change the spelling of its name.

use std::collections::HashMap;

use evenkeel_configuration::Component;
use evenkeel_configuration::document::Desired;

use super::document_index::DocumentIndex;
use super::state::OwnedEntries;
use crate::finding::EntryKey;
use crate::names::{drop_in_path, is_same_package, source_key_path, source_path, unit_file_path};

/// The paths that an owned object has.
pub(super) fn list_paths(key: &EntryKey) -> Vec<String> {
    match key.component {
        Component::File => vec![key.name.clone()],
        Component::Unit => vec![unit_file_path(&key.name)],
        Component::PackageSource => vec![source_path(&key.name), source_key_path(&key.name)],
        _ => Vec::new(),
    }
}

/// Who describes a path in a document.
enum PathOwner<'a> {
    Entry(EntryKey),
    DropIn { unit: &'a str, name: &'a str },
}

fn index_paths<'a>(index: &DocumentIndex<'a>) -> HashMap<String, PathOwner<'a>> {
    let mut owners = HashMap::new();
    for (_, entry) in index.document.entries() {
        let key = EntryKey::from_entry(entry);
        for path in list_paths(&key) {
            // A file entry names its path itself.
            if key.component == Component::File || !owners.contains_key(&path) {
                owners.insert(path, PathOwner::Entry(key.clone()));
            }
        }
        if let Desired::Unit(state) = &entry.desired {
            let (unit, names) = (entry.name.as_str(), state.drop_ins.keys());
            owners.extend(
                names.map(|name| (drop_in_path(unit, name), PathOwner::DropIn { unit, name })),
            );
        }
    }
    owners
}

/// Hands owned objects over to the entries that describe them now.
pub(super) fn hand_over(owned: &mut OwnedEntries, index: &DocumentIndex<'_>) {
    let is_old = |key: &EntryKey| index.find(key).is_none();
    let moved: Vec<EntryKey> = owned.entries.iter().filter(|key| is_old(key)).cloned().collect();
    if moved.is_empty() && owned.drop_ins.is_empty() {
        return;
    }
    let owners = index_paths(index);
    for key in moved {
        if key.component == Component::Package {
            let packages = index.document.entries().map(|(_, entry)| EntryKey::from_entry(entry));
            let mut packages = packages.filter(|other| other.component == Component::Package);
            if let Some(other) = packages.find(|other| is_same_package(&other.name, &key.name)) {
                owned.entries.remove(&key);
                owned.entries.insert(other);
            }
            continue;
        }
        let paths = list_paths(&key);
        if !paths.iter().any(|path| owners.contains_key(path)) {
            continue;
        }
        owned.remove(&key);
        for path in paths {
            match owners.get(&path) {
                Some(PathOwner::Entry(key)) => drop(owned.entries.insert(key.clone())),
                Some(PathOwner::DropIn { unit, name }) => owned.add_drop_in(unit, name),
                None => drop(owned.entries.insert(EntryKey::file(&path))),
            }
        }
    }
    let drop_ins: Vec<(String, String)> = owned
        .drop_ins
        .iter()
        .flat_map(|(unit, names)| names.iter().map(|name| (unit.clone(), name.clone())))
        .collect();
    for (unit, name) in drop_ins {
        if let Some(PathOwner::Entry(key)) = owners.get(&drop_in_path(&unit, &name)) {
            owned.remove_drop_in(&unit, &name);
            owned.entries.insert(key.clone());
        }
    }
}
