//! Paths of entries that cannot be in one document.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use crate::document::{Desired, Entry, FileKind, UNIT_FOLDER};

/// A path that an entry writes. Slashes are NUL characters, so that in the order of paths, what is
/// below a path directly follows it.
#[derive(Debug)]
struct ClaimedPath {
    path: String,
    /// Whether nothing can be below the path.
    is_blocker: bool,
}

/// Paths of the entries of a document. They obey the same rules as [`crate::validation`] checks.
#[derive(Debug, Default)]
pub(super) struct PathClaims {
    /// The index of an entry by each path that the entry writes.
    owners: BTreeMap<String, usize>,
    /// Those of the paths that nothing can be below. None of them is below another.
    blockers: BTreeMap<String, usize>,
}

impl PathClaims {
    /// Adds the paths of an entry with its index, unless they clash with those of another entry.
    ///
    /// # Errors
    /// The index of the other entry.
    pub fn add(&mut self, entry: &Entry, index: usize) -> Result<(), usize> {
        let paths = claimed_paths(entry);
        if let Some(other) = paths.iter().find_map(|path| self.find_clash(path)) {
            return Err(other);
        }
        for ClaimedPath { path, is_blocker } in paths {
            if is_blocker {
                self.blockers.insert(path.clone(), index);
            }
            self.owners.insert(path, index);
        }
        Ok(())
    }

    fn find_clash(&self, claim: &ClaimedPath) -> Option<usize> {
        let path = claim.path.as_str();
        let same = self.owners.get(path).copied();
        same.or_else(|| self.find_above(path))
            .or_else(|| if claim.is_blocker { self.find_below(path) } else { None })
    }

    /// The blocker that a path is below. It directly precedes the path in the order of blockers.
    fn find_above(&self, path: &str) -> Option<usize> {
        let mut range = self.blockers.range::<str, _>((Unbounded, Excluded(path)));
        let (blocker, index) = range.next_back()?;
        is_below(path, blocker).then_some(*index)
    }

    fn find_below(&self, path: &str) -> Option<usize> {
        let mut range = self.owners.range::<str, _>((Excluded(path), Unbounded));
        let (below, index) = range.next()?;
        is_below(below, path).then_some(*index)
    }
}

fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.starts_with('\0'))
}

/// The path of a file entry, or those of the files that a unit entry writes.
fn claimed_paths(entry: &Entry) -> Vec<ClaimedPath> {
    let claim =
        |path: String, is_blocker| ClaimedPath { path: path.replace('/', "\0"), is_blocker };
    match &entry.desired {
        Desired::File(state) => {
            let has_contents = matches!(state.kind, FileKind::Directory | FileKind::Permissions);
            vec![claim(entry.name.clone(), !has_contents)]
        }
        Desired::Unit(state) => {
            let unit_file = format!("{UNIT_FOLDER}/{}", entry.name);
            let drop_ins = state.drop_ins.keys().map(|name| format!("{unit_file}.d/{name}"));
            let unit_file = state.content.as_ref().map(|_| unit_file.clone());
            unit_file.into_iter().chain(drop_ins).map(|path| claim(path, false)).collect()
        }
        _ => Vec::new(),
    }
}
