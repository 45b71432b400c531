//! What is at a path.

use std::io::Read;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::digest::ContentDigest;
use super::error::FileError;
use super::folder::{Folder, RootFolder, read_target, split_parent};

/// Largest file whose content is read.
pub(crate) const MAX_READ_BYTES: u64 = 1 << 30;

/// Bytes that are read beyond the size of a file when it was opened.
const MAX_GROWTH_BYTES: u64 = 1 << 20;

/// Largest file whose content is read although its size differs from the desired content.
const MAX_DIFFERENT_BYTES: u64 = 1 << 20;

/// What is at a path, or should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PathState {
    #[serde(flatten)]
    pub(crate) kind: PathKind,
    /// Permissions; 0 for links and if there is nothing.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The type of what is at a path, with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(crate) enum PathKind {
    Missing,
    /// Without a digest, the content does not matter.
    File {
        digest: Option<ContentDigest>,
    },
    Directory,
    Symlink {
        target: String,
    },
    Fifo,
    Socket,
    Device,
}

impl PathKind {
    /// The name in reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Missing => "absent",
            Self::File { .. } => "file",
            Self::Directory => "directory",
            Self::Symlink { .. } => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }

    /// The name in sentences.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Missing => "nothing",
            Self::File { .. } => "a file",
            Self::Directory => "a directory",
            Self::Symlink { .. } => "a symbolic link",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
        }
    }

    pub(crate) fn is_special(&self) -> bool {
        matches!(self, Self::Fifo | Self::Socket | Self::Device)
    }

    /// Whether type and content are as this one demands. Without a digest it accepts any content.
    pub(crate) fn accepts(&self, current: &Self) -> bool {
        match (self, current) {
            (Self::File { digest: Some(desired) }, Self::File { digest }) => {
                Some(desired) == digest.as_ref()
            }
            (Self::File { digest: None }, Self::File { .. }) => true,
            (desired, current) => desired == current,
        }
    }
}

impl PathState {
    pub(crate) const MISSING: Self = Self { kind: PathKind::Missing, mode: 0, uid: 0, gid: 0 };

    /// Whether the current state needs no change.
    pub(crate) fn accepts(&self, current: &Self) -> bool {
        self.kind.accepts(&current.kind)
            && (self.mode, self.uid, self.gid) == (current.mode, current.uid, current.gid)
    }
}

/// The state of a path, with what only its observation knows.
#[derive(Clone, Debug)]
pub(crate) struct PathObservation {
    pub(crate) state: PathState,
    pub(crate) size: u64,
    pub(crate) has_hard_links: bool,
    pub(crate) identity: FileIdentity,
}

/// Identifies an object of a file system as long as it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileIdentity {
    pub(crate) fn from_stats(stats: &Stat) -> Self {
        Self { device: stats.st_dev, inode: stats.st_ino }
    }
}

impl PathObservation {
    pub(crate) const MISSING: Self = Self {
        state: PathState::MISSING,
        size: 0,
        has_hard_links: false,
        identity: FileIdentity { device: 0, inode: 0 },
    };

    fn from_stats(stats: &Stat, kind: PathKind) -> Self {
        let is_link = matches!(kind, PathKind::Symlink { .. });
        let mode = if is_link { 0 } else { stats.st_mode & 0o7777 };
        Self {
            has_hard_links: stats.st_nlink > 1 && kind != PathKind::Directory,
            state: PathState { kind, mode, uid: stats.st_uid, gid: stats.st_gid },
            size: u64::try_from(stats.st_size).unwrap_or(0),
            identity: FileIdentity::from_stats(stats),
        }
    }

    /// Whether an open file is the observed one, with the observed attributes.
    pub(crate) fn is_same_file(&self, stats: &Stat) -> bool {
        let file = Self::from_stats(stats, PathKind::File { digest: None });
        let attributes = |state: &PathState| (state.mode, state.uid, state.gid);
        file.identity == self.identity
            && file.has_hard_links == self.has_hard_links
            && attributes(&file.state) == attributes(&self.state)
    }
}

/// Whether an observation reads the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentDepth {
    /// The digest is computed, if the file has at most [`MAX_READ_BYTES`].
    Digest,
    /// The digest is computed, if the file has this size, or is small enough for a report: a user
    /// cannot make each check read a large file.
    DigestOfSize(u64),
    Attributes,
}

/// Observes a child of a folder.
pub(crate) fn observe_child(
    folder: &Folder,
    name: &str,
    depth: ContentDepth,
) -> Result<PathObservation, FileError> {
    let fail = |errno| FileError::from_errno("read", folder.child_path(name), errno);
    let stats = match folder.stat(name) {
        Ok(stats) => stats,
        Err(Errno::NOENT) => return Ok(PathObservation::MISSING),
        Err(errno) => return Err(fail(errno)),
    };
    let kind = match FileType::from_raw_mode(stats.st_mode) {
        FileType::RegularFile => PathKind::File { digest: None },
        FileType::Directory => PathKind::Directory,
        FileType::Symlink => PathKind::Symlink {
            target: read_target(folder, name)
                .map_err(|reason| FileError::new("read", folder.child_path(name), reason))?,
        },
        FileType::Fifo => PathKind::Fifo,
        FileType::Socket => PathKind::Socket,
        FileType::BlockDevice | FileType::CharacterDevice | FileType::Unknown => PathKind::Device,
    };
    let observation = PathObservation::from_stats(&stats, kind);
    let is_file = matches!(observation.state.kind, PathKind::File { .. });
    if is_file && depth.includes_content(observation.size) {
        return observe_content(folder, name);
    }
    Ok(observation)
}

impl ContentDepth {
    fn includes_content(self, size: u64) -> bool {
        match self {
            Self::Digest => size <= MAX_READ_BYTES,
            Self::DigestOfSize(desired) => {
                size <= MAX_DIFFERENT_BYTES || (size == desired && size <= MAX_READ_BYTES)
            }
            Self::Attributes => false,
        }
    }
}

/// Observes a file with its content. Attributes and content belong to one open file.
fn observe_content(folder: &Folder, name: &str) -> Result<PathObservation, FileError> {
    let path = || folder.child_path(name);
    let changed = || FileError::new("read", path(), "it is being replaced; try again");
    let fail = |errno| FileError::from_errno("read", path(), errno);
    let file = folder.open_file(name).map_err(fail)?.ok_or_else(changed)?;
    let stats = rustix::fs::fstat(&file).map_err(fail)?;
    // A file that grows meanwhile is not read to its end. Files of the kernel have no size.
    let max = u64::try_from(stats.st_size).unwrap_or(0) + MAX_GROWTH_BYTES;
    let digest = ContentDigest::from_reader(&mut file.take(max))
        .map_err(|error| FileError::new("read", path(), error.to_string()))?;
    Ok(PathObservation::from_stats(&stats, PathKind::File { digest: Some(digest) }))
}

/// Observes a path without links. If its folder is missing, or is no folder, nothing is there.
pub(crate) fn observe_exact(
    root: &RootFolder,
    path: &str,
    depth: ContentDepth,
) -> Result<PathObservation, FileError> {
    let (parent, name) = split_parent(path)
        .ok_or_else(|| FileError::new("read", path, "it is the root directory"))?;
    match root.open_exact(parent) {
        Ok(folder) => observe_child(&folder, name, depth),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(PathObservation::MISSING),
        Err(errno) => Err(FileError::from_errno("open", parent, errno)),
    }
}

impl RootFolder {
    /// Whether nobody but root can put something else at a path without links.
    pub(crate) fn is_parent_protected(&self, path: &str) -> bool {
        split_parent(path)
            .is_some_and(|(parent, _)| self.open_exact(parent).is_ok_and(|f| f.is_protected()))
    }
}
