//! Rules that concern several entries.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use super::{ErrorList, child_path, excerpt, item_path, sysctl_words};
use crate::document::{
    Component, Desired, Document, Entry, FileKind, FileState, UNIT_FOLDER, UnitState,
};

/// Index of a bundle, and index of an entry in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct EntryIndex(usize, usize);

impl EntryIndex {
    fn path(self) -> String {
        format!("bundles[{}].entries[{}]", self.0, self.1)
    }
}

pub(super) fn check(document: &Document, errors: &mut ErrorList) {
    check_bundle_names(document, errors);
    check_unique_entries(document, errors);
    let files = index_files(document);
    check_parents(&files, errors);
    for (index, entry) in indexed_entries(document) {
        if let Desired::Unit(state) = &entry.desired {
            check_file_paths(index, state, &files, errors);
            check_unit_files((index, &entry.name), state, &files, errors);
        }
    }
}

fn indexed_entries(document: &Document) -> impl Iterator<Item = (EntryIndex, &Entry)> {
    document.bundles.iter().enumerate().flat_map(|(bundle, entries)| {
        let entries = entries.entries.iter().enumerate();
        entries.map(move |(index, entry)| (EntryIndex(bundle, index), entry))
    })
}

fn check_bundle_names(document: &Document, errors: &mut ErrorList) {
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, bundle) in document.bundles.iter().enumerate() {
        if let Some(earlier) = first.get(bundle.name.as_str()) {
            let message = format!(
                "the bundle {} is also bundles[{earlier}]; merge them or rename one",
                excerpt(&bundle.name)
            );
            errors.add(&format!("bundles[{index}].name"), message);
        } else {
            first.insert(&bundle.name, index);
        }
    }
}

fn check_unique_entries(document: &Document, errors: &mut ErrorList) {
    let mut first: HashMap<(Component, Cow<'_, str>), EntryIndex> = HashMap::new();
    for (index, entry) in indexed_entries(document) {
        let (component, name) = entry.key();
        let key = (component, unique_name(component, name));
        if let Some(earlier) = first.get(&key) {
            let message = format!(
                "{component} {} is also {}; a document has one entry for it",
                excerpt(name),
                earlier.path()
            );
            errors.add(&index.path(), message);
        } else {
            first.insert(key, index);
        }
    }
}

/// The name by which entries of a component are the same.
pub(crate) fn unique_name(component: Component, name: &str) -> Cow<'_, str> {
    match component {
        Component::Sysctl if name.contains('/') => Cow::Owned(sysctl_words(name).join("\0")),
        Component::Sysctl => Cow::Owned(name.replace('.', "\0")),
        _ => Cow::Borrowed(name),
    }
}

type FileIndex<'a> = HashMap<&'a str, (EntryIndex, &'a FileState)>;

fn index_files(document: &Document) -> FileIndex<'_> {
    let mut files = FileIndex::new();
    for (index, entry) in indexed_entries(document) {
        if let Desired::File(state) = &entry.desired {
            files.entry(&entry.name).or_insert((index, state));
        }
    }
    files
}

/// Refuses paths below something that is no directory.
fn check_parents(files: &FileIndex<'_>, errors: &mut ErrorList) {
    let mut sorted: Vec<(&str, EntryIndex, FileKind)> =
        files.iter().map(|(name, (index, state))| (*name, *index, state.kind)).collect();
    // What is below a path follows it: `/a`, `/a/b`, `/a-b`.
    sorted.sort_by_cached_key(|(name, ..)| name.replace('/', "\0"));
    let mut refused = BTreeMap::new();
    let mut parent: Option<(&str, EntryIndex, FileKind)> = None;
    for (name, index, kind) in sorted {
        match parent {
            Some((path, parent_index, parent_kind)) if is_below(name, path) => {
                let message = format!(
                    "is below {} ({}), an entry of the type {}; nothing can be below it",
                    excerpt(path),
                    parent_index.path(),
                    parent_kind.name()
                );
                refused.insert(index, message);
            }
            _ if matches!(kind, FileKind::File | FileKind::Symlink | FileKind::Absent) => {
                parent = Some((name, index, kind));
            }
            _ => {}
        }
    }
    for (index, message) in refused {
        errors.add(&child_path(&index.path(), "name"), message);
    }
}

fn is_below(name: &str, parent: &str) -> bool {
    name.strip_prefix(parent).is_some_and(|rest| rest.starts_with('/'))
}

/// Refuses paths of a unit that have no entry.
fn check_file_paths(
    index: EntryIndex,
    state: &UnitState,
    files: &FileIndex<'_>,
    errors: &mut ErrorList,
) {
    for (item, file_path) in state.file_paths.iter().enumerate() {
        if !files.contains_key(file_path.as_str()) {
            let path = format!("{}.desired.filePaths", index.path());
            let message = format!(
                "no File entry of the document has the name {}; add the entry, or remove the path",
                excerpt(file_path)
            );
            errors.add(&item_path(&path, item), message);
        }
    }
}

/// Refuses file entries for files that a unit entry writes.
fn check_unit_files(
    (unit_index, name): (EntryIndex, &str),
    state: &UnitState,
    files: &FileIndex<'_>,
    errors: &mut ErrorList,
) {
    let unit_file = format!("{UNIT_FOLDER}/{name}");
    let drop_ins = state.drop_ins.keys().map(|drop_in| format!("{unit_file}.d/{drop_in}"));
    let unit_file = state.content.as_ref().map(|_| unit_file.clone());
    for path in unit_file.into_iter().chain(drop_ins) {
        if let Some((index, _)) = files.get(path.as_str()) {
            let unit_path = unit_index.path();
            let message = format!("{unit_path} writes the same file; remove one of them");
            errors.add(&index.path(), message);
        }
        for folder in folders(&path) {
            if let Some((index, state)) = files.get(folder)
                && !matches!(state.kind, FileKind::Directory | FileKind::Permissions)
            {
                let unit_path = unit_index.path();
                let message =
                    format!("{unit_path} writes a file below this path; remove one of them");
                errors.add(&index.path(), message);
            }
        }
    }
}

/// The folders that a path is in, innermost first.
fn folders(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent_folder(path), |folder| parent_folder(folder))
}

fn parent_folder(path: &str) -> Option<&str> {
    let (folder, _) = path.rsplit_once('/')?;
    (!folder.is_empty()).then_some(folder)
}
