//! Plans the correction of files.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::accounts::AccountNames;
use super::digest::ContentDigest;
use super::error::FileError;
use super::folder::{is_below, join, split_parent};
use super::inspect::{FileContext, PathInspection};
use super::spec::{DesiredAttributes, FileObject, FileSpec, ManagedPaths, PathGoal};
use super::state::{PathKind, PathState};

/// Prefix of temporary file names. Names with it are reserved: a run removes those that an earlier
/// run has left.
pub const TEMPORARY_PREFIX: &str = ".evenkeel-tmp-";

/// Longest identifier of a run.
const MAX_RUN_ID_BYTES: usize = 64;

/// Mode of a parent directory that has no entry.
const PARENT_MODE: u32 = 0o755;

/// Everything that has to change so that files are as desired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilePlan {
    /// Files to write. First step.
    pub files: FileSet,
    /// Paths to remove. A later step.
    pub removals: RemovalSet,
    /// Entries that cannot be corrected.
    pub refused: Vec<RefusedFile>,
}

/// Files to write, parents before children. It has no contents and no digests of secrets: contents
/// come from the document, and must have the digests of the set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileSet {
    pub run_id: String,
    pub files: Vec<PlannedFile>,
}

/// A path to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedFile {
    /// Path on the machine, without links.
    pub path: String,
    /// Path of the spec; `None` for a parent directory without a spec.
    pub spec: Option<String>,
    #[serde(flatten)]
    pub object: PlannedObject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Name or number. A name is looked up when the file is written, because the same run may
    /// create the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the temporary file or link in the folder of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary: Option<String>,
}

/// The type of a path to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum PlannedObject {
    File {
        /// `None` for a secret, which could be guessed from its digest. The document names the
        /// secret, and the digest is computed when the file is written.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<ContentDigest>,
    },
    Directory,
    Symlink {
        target: String,
    },
    /// Only the attributes change.
    Existing,
}

/// Paths to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovalSet {
    pub run_id: String,
    pub removals: Vec<Removal>,
}

/// A path to remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Removal {
    /// Path on the machine, without links.
    pub path: String,
    /// Whether a directory is removed with its contents.
    pub recursive: bool,
}

/// An entry that cannot be corrected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedFile {
    pub path: String,
    /// Why, as a sentence without a full stop.
    pub reason: String,
}

impl FilePlan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.files.files.is_empty() && self.removals.removals.is_empty()
    }
}

impl FileSet {
    /// Paths of all temporary files that writing the set creates.
    pub fn temporary_paths(&self) -> impl Iterator<Item = String> {
        self.files.iter().filter_map(|file| {
            let (folder, _) = split_parent(&file.path)?;
            Some(join(folder, file.temporary.as_ref()?))
        })
    }
}

impl PlannedFile {
    /// The desired state, with the accounts of now.
    pub(crate) fn goal(&self, current: &PathState, accounts: &AccountNames) -> PathGoal {
        let kind = match &self.object {
            PlannedObject::File { digest } => Some(PathKind::File { digest: *digest }),
            PlannedObject::Directory => Some(PathKind::Directory),
            PlannedObject::Symlink { target } => Some(PathKind::Symlink { target: target.clone() }),
            PlannedObject::Existing => None,
        };
        let (owner, group) = (self.owner.as_deref(), self.group.as_deref());
        PathGoal::new(kind, DesiredAttributes { mode: self.mode, owner, group }, current, accounts)
    }

    /// A directory without a spec.
    pub(crate) fn parent(path: String) -> Self {
        let root = || Some("0".to_owned());
        Self {
            path,
            spec: None,
            object: PlannedObject::Directory,
            mode: Some(PARENT_MODE),
            owner: root(),
            group: root(),
            temporary: None,
        }
    }
}

/// Plans what makes all paths as their specs say.
///
/// # Errors
/// The identifier of the run is not usable in a file name.
pub fn plan(
    context: &FileContext<'_>,
    specs: &[FileSpec<'_>],
    run_id: &str,
) -> Result<FilePlan, FileError> {
    let is_accepted = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if run_id.is_empty() || run_id.len() > MAX_RUN_ID_BYTES || !run_id.bytes().all(is_accepted) {
        let reason = "it needs 1 to 64 letters, digits, \"-\" and \"_\"";
        return Err(FileError::new("use the run identifier", run_id, reason));
    }
    // Parents come before their children.
    let mut sorted: Vec<&FileSpec<'_>> = specs.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut planner = FilePlanner::new(context);
    for spec in sorted {
        planner.add(spec);
    }
    Ok(planner.finish(run_id))
}

/// Plans the removal of paths without an entry. A path stays if it is the path of an entry, or a
/// directory with one, by another name; directories that are not empty stay as well.
pub(crate) fn plan_stale_removals<'p>(
    context: &FileContext<'_>,
    paths: impl Iterator<Item = &'p str>,
    run_id: &str,
) -> RemovalSet {
    let real = paths.map(|path| context.root.real_path(path));
    let removals = real
        .filter(|path| !context.real_managed().contains(path))
        .map(|path| Removal { path, recursive: false });
    RemovalSet { run_id: run_id.to_owned(), removals: removals.collect() }
}

struct FilePlanner<'a> {
    context: &'a FileContext<'a>,
    files: BTreeMap<String, PlannedFile>,
    /// Removals, each with the path of its spec.
    removals: BTreeMap<String, (Removal, String)>,
    refused: Vec<RefusedFile>,
    /// Paths without links, with the path of their spec.
    specs: BTreeMap<String, String>,
    /// Paths without links that should exist.
    present: ManagedPaths,
    /// Directories that replace something else: path of the spec, and path without links.
    replaced: BTreeMap<String, String>,
}

impl<'a> FilePlanner<'a> {
    fn new(context: &'a FileContext<'a>) -> Self {
        Self {
            context,
            files: BTreeMap::new(),
            removals: BTreeMap::new(),
            refused: Vec::new(),
            specs: BTreeMap::new(),
            present: ManagedPaths::default(),
            replaced: BTreeMap::new(),
        }
    }

    fn add(&mut self, spec: &FileSpec<'_>) {
        let inspection = self.inspect(spec);
        if let Some(other) = self.specs.get(&inspection.path) {
            let reason = format!("{other} is the same path; remove one of the two");
            self.refuse(spec, reason);
            return;
        }
        self.specs.insert(inspection.path.clone(), spec.path.clone().into_owned());
        if !matches!(spec.object, FileObject::Absent { .. }) {
            self.present.insert(inspection.path.clone());
        }
        if inspection.is_good() {
            return;
        }
        if let Some(problem) = inspection.problem {
            self.refuse(spec, problem);
            return;
        }
        if let FileObject::Absent { prune } = spec.object {
            self.remove(spec, inspection.path, prune);
            return;
        }
        for name in &inspection.unmanaged {
            self.remove(spec, join(&inspection.path, name), true);
        }
        self.plan_file(spec, inspection);
    }

    fn inspect(&self, spec: &FileSpec<'_>) -> PathInspection {
        let mut parents = std::iter::successors(split_parent(&spec.path), |(p, _)| split_parent(p));
        let replaced = parents.find_map(|(parent, _)| self.replaced.get_key_value(parent));
        let Some((folder, real)) = replaced else {
            return self.context.inspect(spec);
        };
        let mut path = real.clone();
        path.push_str(&spec.path[folder.len()..]);
        let mut inspection = self.context.inspect_below_replaced(spec, path);
        let mut parent = inspection.path.as_str();
        let mut missing = Vec::new();
        while let Some((folder, _)) = split_parent(parent)
            && is_below(folder, real)
        {
            missing.push(folder.to_owned());
            parent = folder;
        }
        missing.reverse();
        inspection.missing_parents = missing;
        inspection
    }

    fn plan_file(&mut self, spec: &FileSpec<'_>, inspection: PathInspection) {
        let current = &inspection.observation.state;
        let Some(goal) = inspection.goal else { return };
        if goal.unknown_accounts.is_empty() && goal.state.accepts(current) {
            return;
        }
        let object = match (&spec.object, goal.state.kind) {
            (FileObject::Existing, _) => PlannedObject::Existing,
            (FileObject::File { content }, PathKind::File { digest }) => {
                PlannedObject::File { digest: digest.filter(|_| !content.is_secret()) }
            }
            (_, PathKind::Symlink { target }) => PlannedObject::Symlink { target },
            (_, PathKind::Directory) => PlannedObject::Directory,
            _ => return,
        };
        if object == PlannedObject::Directory
            && !matches!(current.kind, PathKind::Directory | PathKind::Missing)
        {
            self.replaced.insert(spec.path.clone().into_owned(), inspection.path.clone());
        }
        for parent in inspection.missing_parents {
            self.files.entry(parent.clone()).or_insert_with(|| PlannedFile::parent(parent));
        }
        let file = PlannedFile {
            path: inspection.path,
            spec: Some(spec.path.clone().into_owned()),
            object,
            mode: spec.mode,
            owner: spec.owner.clone().map(Cow::into_owned),
            group: spec.group.clone().map(Cow::into_owned),
            temporary: None,
        };
        self.files.insert(file.path.clone(), file);
    }

    fn remove(&mut self, spec: &FileSpec<'_>, path: String, recursive: bool) {
        let removal = (Removal { path: path.clone(), recursive }, spec.path.clone().into_owned());
        self.removals.insert(path, removal);
    }

    fn refuse(&mut self, spec: &FileSpec<'_>, reason: String) {
        self.refused.push(RefusedFile { path: spec.path.clone().into_owned(), reason });
    }

    /// Refuses removals of directories that contain the path of an entry. Only links in the paths
    /// of the document lead there.
    fn refuse_removals(&mut self) {
        let present = &self.present;
        let refused = self.removals.extract_if(.., |path, _| present.contains(path));
        for (path, (_, spec)) in refused {
            let reason = format!("another entry needs {path}; remove one of them");
            self.refused.push(RefusedFile { path: spec, reason });
        }
    }

    /// Refuses paths that are below something that the plan makes no directory. Only links in the
    /// document's paths lead there.
    fn refuse_blocked_files(&mut self) {
        let is_blocking = |path: &str| {
            let file = self.files.get(path).map(|file| &file.object);
            let is_folder = matches!(file, None | Some(PlannedObject::Directory));
            !(is_folder || file == Some(&PlannedObject::Existing))
        };
        let mut blocked = Vec::new();
        for path in self.files.keys() {
            let mut parents = std::iter::successors(split_parent(path), |(p, _)| split_parent(p));
            if let Some((parent, _)) = parents.find(|(parent, _)| is_blocking(parent)) {
                blocked.push((path.clone(), parent.to_owned()));
            }
        }
        for (path, parent) in blocked {
            let file = self.files.remove(&path);
            let path = file.and_then(|file| file.spec).unwrap_or(path);
            let reason = format!("another entry makes {parent} no directory; remove one of them");
            self.refused.push(RefusedFile { path, reason });
        }
    }

    fn finish(mut self, run_id: &str) -> FilePlan {
        self.refuse_removals();
        self.refuse_blocked_files();
        let mut files: Vec<PlannedFile> = self.files.into_values().collect();
        for (index, file) in files.iter_mut().enumerate() {
            if matches!(file.object, PlannedObject::File { .. } | PlannedObject::Symlink { .. }) {
                file.temporary = Some(format!("{TEMPORARY_PREFIX}{run_id}-{index}"));
            }
        }
        let removals = self.removals.into_values().map(|(removal, _)| removal).collect();
        FilePlan {
            files: FileSet { run_id: run_id.to_owned(), files },
            removals: RemovalSet { run_id: run_id.to_owned(), removals },
            refused: self.refused,
        }
    }
}
