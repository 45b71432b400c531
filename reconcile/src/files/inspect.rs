//! Compares a path with its spec.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use evenkeel_configuration::document::UNIT_FOLDER;

use crate::names::is_kept_in_unit_folder;

use super::accounts::AccountNames;
use super::content::ContentSource;
use super::error::FileError;
use super::folder::{Folder, FolderError, RootFolder, join, split_parent};
use super::spec::{FileObject, FileSpec, ManagedPaths, PathGoal};
use super::state::{ContentDepth, PathKind, PathObservation, observe_child, observe_exact};

/// Most names in a directory with `prune`.
pub(crate) const MAX_FOLDER_NAMES: usize = 10_000;

/// What checks and plans of files need.
pub struct FileContext<'a> {
    pub(crate) root: &'a RootFolder,
    pub(crate) source: &'a dyn ContentSource,
    pub(crate) accounts: AccountNames,
    managed: &'a ManagedPaths,
    /// The managed paths without links. Only pruned directories need them.
    real_managed: OnceCell<ManagedPaths>,
    /// The folder of the last path: neighbours in a document are often in one folder.
    last_folder: RefCell<Option<(String, Rc<Folder>)>>,
}

impl std::fmt::Debug for FileContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileContext").field("root", &self.root).finish_non_exhaustive()
    }
}

/// A path and its spec.
#[derive(Debug)]
pub(crate) struct PathInspection {
    /// The path without links.
    pub(crate) path: String,
    pub(crate) observation: PathObservation,
    /// Parent directories that are missing, outermost first.
    pub(crate) missing_parents: Vec<String>,
    /// The desired state; `None` if it is not known.
    pub(crate) goal: Option<PathGoal>,
    /// Why the path cannot be compared or corrected, as a sentence.
    pub(crate) problem: Option<String>,
    /// Names in a directory with `prune` that the document does not name.
    pub(crate) unmanaged: Vec<String>,
}

impl PathInspection {
    /// Whether the path is as desired.
    pub(crate) fn is_good(&self) -> bool {
        let is_reached = |goal: &PathGoal| {
            goal.unknown_accounts.is_empty() && goal.state.accepts(&self.observation.state)
        };
        self.problem.is_none()
            && self.unmanaged.is_empty()
            && self.goal.as_ref().is_some_and(is_reached)
    }
}

impl<'a> FileContext<'a> {
    /// Reads the accounts of the machine. `managed` are the paths that pruned directories keep.
    ///
    /// # Errors
    /// The accounts cannot be read.
    pub fn new(
        root: &'a RootFolder,
        source: &'a dyn ContentSource,
        managed: &'a ManagedPaths,
    ) -> Result<Self, FileError> {
        let accounts = AccountNames::load(root)?;
        let (real_managed, last_folder) = (OnceCell::new(), RefCell::new(None));
        Ok(Self { root, source, accounts, managed, real_managed, last_folder })
    }

    pub(crate) fn real_managed(&self) -> &ManagedPaths {
        self.real_managed.get_or_init(|| {
            let mut paths = ManagedPaths::default();
            for path in self.managed.iter() {
                let located = split_parent(path)
                    .and_then(|(parent, name)| Some((self.root.open_folder(parent).ok()?, name)));
                let real = located.map(|(folder, name)| folder.child_path(name));
                paths.insert(real.unwrap_or_else(|| path.to_owned()));
            }
            paths
        })
    }

    /// Compares a path with its spec.
    pub(crate) fn inspect(&self, spec: &FileSpec<'_>) -> PathInspection {
        let mut inspection = PathInspection {
            path: spec.path.clone().into_owned(),
            observation: PathObservation::MISSING,
            missing_parents: Vec::new(),
            goal: None,
            problem: None,
            unmanaged: Vec::new(),
        };
        let folder = match self.observe(spec, &mut inspection) {
            Ok(folder) => folder,
            Err(reason) => {
                inspection.problem = Some(reason);
                return inspection;
            }
        };
        self.complete(spec, &mut inspection);
        if let Some(folder) = folder
            && inspection.problem.is_none()
            && let Err(reason) = self.inspect_current(spec, &folder, &mut inspection)
        {
            inspection.problem = Some(reason);
        }
        inspection
    }

    /// Compares a path whose parent will be a new directory, so that nothing is at the path.
    pub(crate) fn inspect_below_replaced(
        &self,
        spec: &FileSpec<'_>,
        path: String,
    ) -> PathInspection {
        let mut inspection = PathInspection {
            path,
            observation: PathObservation::MISSING,
            missing_parents: Vec::new(),
            goal: None,
            problem: None,
            unmanaged: Vec::new(),
        };
        self.complete(spec, &mut inspection);
        inspection
    }

    /// Observes the path. Returns its folder, if that exists.
    fn observe(
        &self,
        spec: &FileSpec<'_>,
        inspection: &mut PathInspection,
    ) -> Result<Option<Rc<Folder>>, String> {
        let (parent, name) =
            split_parent(&spec.path).ok_or("the root directory is no path of an entry")?;
        let is_absent = matches!(spec.object, FileObject::Absent { .. });
        let folder = match self.open_folder(parent) {
            Ok(folder) => folder,
            Err(FolderError::Missing) if is_absent => return Ok(None),
            Err(FolderError::Blocked(part, _)) if is_absent && self.has_no_children(&part) => {
                return Ok(None);
            }
            Err(FolderError::Missing) => {
                let (_, missing) = self.root.locate(parent).map_err(describe)?;
                if let Some(parent) = missing.last() {
                    inspection.path = join(parent, name);
                }
                inspection.missing_parents = missing;
                return Ok(None);
            }
            Err(error) => return Err(describe(error)),
        };
        inspection.path = folder.child_path(name);
        let depth = match &spec.object {
            FileObject::File { content } => content.observation_depth(),
            _ => ContentDepth::Attributes,
        };
        inspection.observation =
            observe_child(&folder, name, depth).map_err(|error| error.to_string())?;
        Ok(Some(folder))
    }

    /// Whether a path is neither a directory nor a link, so that nothing can be below it.
    fn has_no_children(&self, path: &str) -> bool {
        let kind = observe_exact(self.root, path, ContentDepth::Attributes)
            .map(|observation| observation.state.kind);
        kind.is_ok_and(|kind| !matches!(kind, PathKind::Directory | PathKind::Symlink { .. }))
    }

    fn open_folder(&self, path: &str) -> Result<Rc<Folder>, FolderError> {
        if let Some((last_path, folder)) = &*self.last_folder.borrow()
            && last_path == path
        {
            return Ok(Rc::clone(folder));
        }
        let folder = Rc::new(self.root.open_folder(path)?);
        *self.last_folder.borrow_mut() = Some((path.to_owned(), Rc::clone(&folder)));
        Ok(folder)
    }

    /// Adds the desired state.
    fn complete(&self, spec: &FileSpec<'_>, inspection: &mut PathInspection) {
        let current = &inspection.observation.state;
        let digest = match &spec.object {
            FileObject::File { content } => match content.digest(self.source) {
                Ok(digest) => Some(digest),
                Err(error) => {
                    inspection.problem = Some(error.to_string());
                    None
                }
            },
            _ => None,
        };
        let is_link = matches!(current.kind, PathKind::Symlink { .. });
        if spec.object == FileObject::Existing && (is_link || current.kind == PathKind::Missing) {
            let label = current.kind.label();
            inspection.problem = Some(format!(
                "{label} is at the path, so it has no permissions; name a file or directory"
            ));
            return;
        }
        let kind = spec.kind(digest);
        inspection.goal = Some(PathGoal::new(kind, spec.attributes(), current, &self.accounts));
    }

    /// Checks that the object at the path can be replaced, and lists the names to prune in a
    /// directory.
    fn inspect_current(
        &self,
        spec: &FileSpec<'_>,
        folder: &Folder,
        inspection: &mut PathInspection,
    ) -> Result<(), String> {
        let Some((_, name)) = split_parent(&spec.path) else { return Ok(()) };
        let current = &inspection.observation.state.kind;
        let keeps_type = match &spec.object {
            FileObject::Existing => return Ok(()),
            FileObject::File { .. } => matches!(current, PathKind::File { .. }),
            FileObject::Directory { .. } => *current == PathKind::Directory,
            FileObject::Symlink { .. } => matches!(current, PathKind::Symlink { .. }),
            FileObject::Absent { .. } => *current == PathKind::Missing,
        };
        if current.is_special() {
            let label = current.label();
            return Err(format!("{label} is at the path, which could not be restored; remove it"));
        }
        if *current != PathKind::Directory {
            return Ok(());
        }
        let is_pruned = spec.has_prune();
        if keeps_type && !is_pruned {
            return Ok(());
        }
        let max = if is_pruned { MAX_FOLDER_NAMES } else { 0 };
        let child = folder.open_child(name);
        let child = child.map_err(|errno| {
            FileError::from_errno("open", folder.child_path(name), errno).to_string()
        })?;
        let names = child.list(max).map_err(|error| {
            if is_pruned {
                return error.to_string();
            }
            let advice = match spec.object {
                FileObject::Absent { .. } => "set prune: true, or empty it",
                _ => "empty it",
            };
            format!("a directory that is not empty is at the path; {advice}")
        })?;
        if keeps_type {
            let is_unmanaged = |name: &String| {
                // What enables units, and the agent, are no files of anyone's.
                let is_kept = child.path == UNIT_FOLDER
                    && (child.is_link(name) || is_kept_in_unit_folder(name));
                !is_kept && !self.real_managed().contains(&child.child_path(name))
            };
            inspection.unmanaged = names.into_iter().filter(is_unmanaged).collect();
        }
        Ok(())
    }
}

fn describe(error: FolderError) -> String {
    match error {
        FolderError::Missing => "its directory does not exist".to_owned(),
        FolderError::Blocked(path, reason) => format!("{path} {reason}"),
        FolderError::Failed(error) => error.to_string(),
    }
}
