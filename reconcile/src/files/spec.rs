//! One path that should have a state.

use std::borrow::Cow;
use std::collections::BTreeSet;

use evenkeel_configuration::document::{
    Component, Desired, Document, FileKind, FileState, UnitState,
};

use crate::finding::EntryKey;
use crate::names::{SYSCTL_FILE, drop_in_path, source_key_path, source_path, unit_file_path};

use super::accounts::AccountNames;
use super::content::{ContentError, DesiredContent};
use super::digest::ContentDigest;
use super::state::{PathKind, PathState};

/// What should be at a path. File entries, units, kernel settings and sources are written through
/// this type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSpec<'a> {
    /// Absolute and normalised path on the machine.
    pub path: Cow<'a, str>,
    pub object: FileObject<'a>,
    /// Permissions; `None` keeps the current ones. Ignored for links.
    pub mode: Option<u32>,
    /// Name or number; `None` keeps the current owner.
    pub owner: Option<Cow<'a, str>>,
    /// Name or number; `None` keeps the current group.
    pub group: Option<Cow<'a, str>>,
}

/// The type of what should be at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileObject<'a> {
    File {
        content: DesiredContent<'a>,
    },
    /// With `prune`, only managed paths are in the directory.
    Directory {
        prune: bool,
    },
    Symlink {
        target: Cow<'a, str>,
    },
    /// Nothing. With `prune`, a directory is removed with its contents.
    Absent {
        prune: bool,
    },
    /// Whatever is there, with other attributes.
    Existing,
}

/// Owner of files whose entry names none.
const ROOT: &str = "0";

impl<'a> FileSpec<'a> {
    /// A file of root.
    pub fn root_file(path: impl Into<Cow<'a, str>>, mode: u32, text: &'a str) -> Self {
        let content = DesiredContent::Text(Cow::Borrowed(text));
        Self::owned_by_root(path, FileObject::File { content }, Some(mode))
    }

    /// Nothing at the path. A directory is not removed unless it is empty.
    pub fn absent(path: impl Into<Cow<'a, str>>) -> Self {
        let object = FileObject::Absent { prune: false };
        Self { path: path.into(), object, mode: None, owner: None, group: None }
    }

    fn owned_by_root(
        path: impl Into<Cow<'a, str>>,
        object: FileObject<'a>,
        mode: Option<u32>,
    ) -> Self {
        let root = || Some(Cow::Borrowed(ROOT));
        Self { path: path.into(), object, mode, owner: root(), group: root() }
    }

    /// The spec of a `File` entry.
    ///
    /// # Errors
    /// The content of the entry is no valid content.
    pub fn from_entry(name: &'a str, state: &'a FileState) -> Result<Self, ContentError> {
        let object = match state.kind {
            FileKind::File => {
                FileObject::File { content: DesiredContent::from_document(state.content.as_ref())? }
            }
            FileKind::Directory => FileObject::Directory { prune: state.prune },
            FileKind::Symlink => FileObject::Symlink {
                target: Cow::Borrowed(state.target.as_deref().unwrap_or_default()),
            },
            FileKind::Absent => FileObject::Absent { prune: state.prune },
            FileKind::Permissions => FileObject::Existing,
        };
        let has_defaults =
            matches!(state.kind, FileKind::File | FileKind::Directory | FileKind::Symlink);
        let has_mode = matches!(state.kind, FileKind::File | FileKind::Directory);
        let default = has_defaults.then_some(ROOT);
        let account = |name: &'a Option<String>| name.as_deref().or(default).map(Cow::Borrowed);
        let default_mode = has_mode.then(|| state.default_mode().0);
        Ok(Self {
            path: Cow::Borrowed(name),
            object,
            mode: state.mode.map(|mode| mode.0).or(default_mode),
            owner: account(&state.owner),
            group: account(&state.group),
        })
    }

    /// The specs of all `File` entries of a document, in its order. Entries with an invalid content
    /// are left out; a validated document has none.
    pub fn from_document(document: &'a Document) -> impl Iterator<Item = Self> {
        document.entries().filter_map(|(_, entry)| match &entry.desired {
            Desired::File(state) => Self::from_entry(&entry.name, state).ok(),
            _ => None,
        })
    }

    pub(crate) fn attributes(&self) -> DesiredAttributes<'_> {
        let (owner, group) = (self.owner.as_deref(), self.group.as_deref());
        DesiredAttributes { mode: self.mode, owner, group }
    }

    /// The kind that should be at the path; `None` if it does not matter.
    pub(crate) fn kind(&self, digest: Option<ContentDigest>) -> Option<PathKind> {
        match &self.object {
            FileObject::File { .. } => Some(PathKind::File { digest }),
            FileObject::Directory { .. } => Some(PathKind::Directory),
            FileObject::Symlink { target } => {
                Some(PathKind::Symlink { target: target.clone().into_owned() })
            }
            FileObject::Absent { .. } => Some(PathKind::Missing),
            FileObject::Existing => None,
        }
    }

    pub(crate) fn has_prune(&self) -> bool {
        matches!(
            self.object,
            FileObject::Directory { prune: true } | FileObject::Absent { prune: true }
        )
    }
}

/// The state that a path should have. Accounts that the machine does not have keep the current
/// owner or group.
#[derive(Clone, Debug)]
pub(crate) struct PathGoal {
    pub(crate) state: PathState,
    /// The accounts that the machine does not have: a type (`user`, `group`) and a name.
    pub(crate) unknown_accounts: Vec<(&'static str, String)>,
}

/// The desired attributes of a path; `None` keeps the current ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DesiredAttributes<'a> {
    pub(crate) mode: Option<u32>,
    pub(crate) owner: Option<&'a str>,
    pub(crate) group: Option<&'a str>,
}

impl PathGoal {
    /// The goal for a path. Without a kind, type and content stay as they are.
    pub(crate) fn new(
        kind: Option<PathKind>,
        attributes: DesiredAttributes<'_>,
        current: &PathState,
        accounts: &AccountNames,
    ) -> Self {
        let mut unknown_accounts = Vec::new();
        let kind = kind.unwrap_or_else(|| match &current.kind {
            PathKind::File { .. } => PathKind::File { digest: None },
            kind => kind.clone(),
        });
        if kind == PathKind::Missing {
            return Self { state: PathState::MISSING, unknown_accounts };
        }
        let mut resolve = |account: &'static str, name: Option<&str>, current: u32| {
            let Some(name) = name else { return current };
            let id = if account == USER { accounts.user_id(name) } else { accounts.group_id(name) };
            id.unwrap_or_else(|| {
                unknown_accounts.push((account, name.to_owned()));
                current
            })
        };
        let owner = resolve(USER, attributes.owner, current.uid);
        let group = resolve(GROUP, attributes.group, current.gid);
        let has_mode = !matches!(kind, PathKind::Symlink { .. });
        let mode = if has_mode { attributes.mode.unwrap_or(current.mode) } else { 0 };
        Self { state: PathState { kind, mode, uid: owner, gid: group }, unknown_accounts }
    }
}

pub(crate) const USER: &str = "user";
pub(crate) const GROUP: &str = "group";

/// Paths that a document writes, so that pruned directories keep them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedPaths(BTreeSet<String>);

impl ManagedPaths {
    /// Everything that a document writes: files, units, package sources, and the file with kernel
    /// settings.
    pub fn from_document(document: &Document) -> Self {
        let mut paths = Self::default();
        for (_, entry) in document.entries() {
            match &entry.desired {
                Desired::File(state) if state.kind != FileKind::Absent => {
                    paths.insert(entry.name.clone());
                }
                Desired::Unit(state) => paths.insert_unit(&entry.name, state),
                Desired::Sysctl(_) => paths.insert(SYSCTL_FILE.to_owned()),
                Desired::PackageSource(state) => {
                    paths.insert(source_path(&entry.name));
                    if state.key.is_some() {
                        paths.insert(source_key_path(&entry.name));
                    }
                }
                _ => {}
            }
        }
        paths
    }

    /// Adds what entries describe that the document does not have because the server could not bind
    /// them.
    pub fn insert_failed_entries(&mut self, failed_entries: &BTreeSet<EntryKey>) {
        for EntryKey { component, name } in failed_entries {
            match component {
                Component::File => self.insert(name.clone()),
                Component::Unit => {
                    self.insert(unit_file_path(name));
                    self.insert(format!("{}.d", unit_file_path(name)));
                }
                Component::Sysctl => self.insert(SYSCTL_FILE.to_owned()),
                Component::PackageSource => {
                    self.insert(source_path(name));
                    self.insert(source_key_path(name));
                }
                _ => {}
            }
        }
    }

    /// Adds a path.
    pub fn insert(&mut self, path: String) {
        self.0.insert(path);
    }

    fn insert_unit(&mut self, name: &str, state: &UnitState) {
        for drop_in in state.drop_ins.keys() {
            self.insert(drop_in_path(name, drop_in));
        }
        if state.content.is_some() {
            self.insert(unit_file_path(name));
        }
    }

    /// Whether the path, or something below it, is managed.
    pub(crate) fn contains(&self, path: &str) -> bool {
        if self.0.contains(path) {
            return true;
        }
        let below = format!("{path}/");
        self.0.range(below.clone()..).next().is_some_and(|next| next.starts_with(&below))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}
