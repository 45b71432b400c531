//! Opens directories of the machine without following links that a local user could have made.
//!
//! # Links in a path
//!
//! A path is opened from the root directory of the machine with `openat2` and
//! `RESOLVE_NO_SYMLINKS`. Systems have links such as `/lib` → `usr/lib` and `/var/run` → `/run`,
//! and documents name paths below them. Such a link is followed if only root could have made it:
//! root (or the user of this process) owns the link and every directory on the way to it, and
//! nobody else may write to these directories. A target is looked up below the root directory of
//! the machine, and `..` never leaves it. The path without links is then opened with
//! `RESOLVE_NO_SYMLINKS` again, so a link that is swapped in meanwhile is an error.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat, fstat, openat, openat2,
    readlinkat, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::error::FileError;

/// Most links that are followed in one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// Permission bits that let users other than the owner write.
const WRITABLE_BY_OTHERS: RawMode = 0o022;

/// The root directory of the machine.
#[derive(Debug)]
pub struct RootFolder {
    fd: OwnedFd,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Usually opened with `O_PATH`.
    pub(crate) fd: OwnedFd,
    /// The path on the machine, without links.
    pub(crate) path: String,
}

/// A directory could not be opened.
#[derive(Debug)]
pub(crate) enum FolderError {
    Missing,
    /// This path is something else than a directory, or a link that is not followed. The second
    /// text says why.
    Blocked(String, String),
    Failed(FileError),
}

impl RootFolder {
    /// Opens the directory whose content is the machine's `/`.
    ///
    /// # Errors
    /// It is no directory, or cannot be opened.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty()).map_err(|errno| {
            FileError::from_errno("open the root directory", path.display().to_string(), errno)
        })?;
        Ok(Self { fd })
    }

    /// Opens a directory whose path has no links.
    pub(crate) fn open_exact(&self, path: &str) -> Result<Folder, Errno> {
        let relative = path.strip_prefix('/').unwrap_or(path);
        let relative = if relative.is_empty() { "." } else { relative };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let fd = openat2(&self.fd, relative, flags, Mode::empty(), resolve)?;
        Ok(Folder { fd, path: path.to_owned() })
    }

    /// Opens a directory. Follows links that only root could have made.
    pub(crate) fn open_folder(&self, path: &str) -> Result<Folder, FolderError> {
        match self.open_exact(path) {
            Ok(folder) => Ok(folder),
            Err(Errno::NOENT) => Err(FolderError::Missing),
            Err(Errno::LOOP) => {
                let real = self.resolve_links(path)?;
                self.open_exact(&real).map_err(|errno| self.explain(&real, errno))
            }
            Err(errno) => Err(self.explain(path, errno)),
        }
    }

    /// Finds the deepest existing directory of a path, and the paths of those that are missing
    /// below it.
    pub(crate) fn locate(&self, path: &str) -> Result<(Folder, Vec<String>), FolderError> {
        let mut names = Vec::new();
        let mut existing = path;
        let folder = loop {
            match self.open_folder(existing) {
                Ok(folder) => break folder,
                Err(FolderError::Missing) => {}
                Err(error) => return Err(error),
            }
            let (parent, name) = split_parent(existing).ok_or(FolderError::Missing)?;
            names.push(name);
            existing = parent;
        };
        let mut missing: Vec<String> = Vec::new();
        for name in names.into_iter().rev() {
            let parent = missing.last().map_or(folder.path.as_str(), String::as_str);
            missing.push(join(parent, name));
        }
        if let Some((_, name)) = missing.first().and_then(|path| split_parent(path))
            && folder.stat(name).is_ok()
        {
            let reason = "is a symbolic link to a missing directory; remove it".to_owned();
            return Err(FolderError::Blocked(folder.child_path(name), reason));
        }
        Ok((folder, missing))
    }

    /// The path without links. Components that are missing stay as they are.
    fn resolve_links(&self, path: &str) -> Result<String, FolderError> {
        let mut names: VecDeque<String> = split(path).map(str::to_owned).collect();
        let mut real = String::new();
        let mut links = 0;
        // Whether only root can change the directories so far.
        let mut is_protected = true;
        while let Some(name) = names.pop_front() {
            if name == ".." {
                real.truncate(real.rfind('/').unwrap_or(0));
                continue;
            }
            let folder = match self.open_exact(&real) {
                Ok(folder) => folder,
                Err(errno) => return Err(self.explain(&real, errno)),
            };
            is_protected &= folder.is_protected();
            let child = format!("{real}/{name}");
            let stats = match statat(&folder.fd, name.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stats) => stats,
                Err(Errno::NOENT) => return Err(FolderError::Missing),
                Err(errno) => return Err(self.explain(&child, errno)),
            };
            if FileType::from_raw_mode(stats.st_mode) != FileType::Symlink {
                real = child;
                continue;
            }
            links += 1;
            let target = read_target(&folder, &name);
            let target = target.map_err(|reason| FolderError::Blocked(child.clone(), reason))?;
            if links > MAX_LINKS {
                let reason = "is a link in a circle of links; remove it".to_owned();
                return Err(FolderError::Blocked(child, reason));
            }
            if !is_protected || !is_own(stats.st_uid) {
                let reason = format!(
                    "is a symbolic link to {target} that a user could have made, so it is not \
                     followed; write the path without the link"
                );
                return Err(FolderError::Blocked(child, reason));
            }
            if target.starts_with('/') {
                real.clear();
                is_protected = true;
            }
            for part in split(&target).collect::<Vec<_>>().into_iter().rev() {
                names.push_front(part.to_owned());
            }
        }
        Ok(if real.is_empty() { "/".to_owned() } else { real })
    }

    /// Finds the part of a path that is no directory.
    fn explain(&self, path: &str, errno: Errno) -> FolderError {
        if errno == Errno::NOENT {
            return FolderError::Missing;
        }
        if !matches!(errno, Errno::NOTDIR | Errno::LOOP) {
            return FolderError::Failed(FileError::from_errno("open", path, errno));
        }
        let mut parent = path;
        while let Some((folder, name)) = split_parent(parent) {
            let stats = self.open_exact(folder).and_then(|folder| folder.stat(name));
            if let Ok(stats) = stats {
                let kind = kind_label(FileType::from_raw_mode(stats.st_mode));
                return FolderError::Blocked(
                    parent.to_owned(),
                    format!("is {kind} and not a directory; remove it or correct the path"),
                );
            }
            parent = folder;
        }
        FolderError::Failed(FileError::from_errno("open", path, errno))
    }

    /// Opens a file for reading; `None` if it does not exist. Follows the same links as for
    /// folders, also at the path itself.
    ///
    /// # Errors
    /// It is no file, or cannot be opened.
    pub(crate) fn open_file(&self, path: &str) -> Result<Option<File>, FileError> {
        match self.open_own_file(path)? {
            OwnFile::Missing => Ok(None),
            OwnFile::File(file) => Ok(Some(file)),
            OwnFile::Link => match self.resolve_links(path) {
                Ok(real) => match self.open_own_file(&real)? {
                    OwnFile::Missing => Ok(None),
                    OwnFile::File(file) => Ok(Some(file)),
                    OwnFile::Link => Err(FileError::new("read", path, "it is being replaced")),
                },
                Err(FolderError::Missing) => Ok(None),
                Err(error) => Err(error.into_file_error("read", path)),
            },
        }
    }

    /// Opens a file for reading that must not be a link itself.
    ///
    /// # Errors
    /// It is neither a file nor a link, or cannot be opened.
    pub(crate) fn open_own_file(&self, path: &str) -> Result<OwnFile, FileError> {
        let (parent, name) = split_parent(path)
            .ok_or_else(|| FileError::new("read", path, "it is the root directory"))?;
        let folder = match self.open_folder(parent) {
            Ok(folder) => folder,
            Err(FolderError::Missing) => return Ok(OwnFile::Missing),
            Err(error) => return Err(error.into_file_error("read", path)),
        };
        match folder.open_file(name) {
            Ok(Some(file)) => Ok(OwnFile::File(file)),
            Ok(None) if folder.is_link(name) => Ok(OwnFile::Link),
            Ok(None) => Err(FileError::new("read", path, "it is no file")),
            Err(Errno::NOENT) => Ok(OwnFile::Missing),
            Err(errno) => Err(FileError::from_errno("read", path, errno)),
        }
    }
}

impl RootFolder {
    /// The path without the links of its folder. If the folder cannot be found, the path itself.
    pub(crate) fn real_path(&self, path: &str) -> String {
        let located =
            split_parent(path).and_then(|(parent, name)| Some((self.locate(parent).ok()?, name)));
        match located {
            Some(((folder, missing), name)) => {
                join(missing.last().map_or(folder.path.as_str(), String::as_str), name)
            }
            None => path.to_owned(),
        }
    }
}

/// What is at a path that should have a file.
#[derive(Debug)]
pub(crate) enum OwnFile {
    Missing,
    Link,
    File(File),
}

impl FolderError {
    pub(crate) fn into_file_error(self, action: &'static str, path: &str) -> FileError {
        match self {
            Self::Missing => FileError::new(action, path, "its directory does not exist"),
            Self::Blocked(part, reason) => FileError::new(action, path, format!("{part} {reason}")),
            Self::Failed(error) => error,
        }
    }
}

impl Folder {
    pub(crate) fn child_path(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// Attributes of a child; a link is not followed.
    pub(crate) fn stat(&self, name: &str) -> Result<Stat, Errno> {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    pub(crate) fn is_link(&self, name: &str) -> bool {
        self.stat(name)
            .is_ok_and(|stats| FileType::from_raw_mode(stats.st_mode) == FileType::Symlink)
    }

    /// Whether only root (or the user of this process) can change what is in the directory.
    pub(crate) fn is_protected(&self) -> bool {
        fstat(&self.fd)
            .is_ok_and(|stats| is_own(stats.st_uid) && stats.st_mode & WRITABLE_BY_OTHERS == 0)
    }

    /// Opens a file for reading; `None` if it is something else. Does not wait for the writer of a
    /// FIFO, and does not open devices.
    pub(crate) fn open_file(&self, name: &str) -> Result<Option<File>, Errno> {
        if FileType::from_raw_mode(self.stat(name)?.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        let is_file = FileType::from_raw_mode(fstat(&fd)?.st_mode) == FileType::RegularFile;
        Ok(is_file.then(|| File::from(fd)))
    }

    /// Opens a child that is a directory; a link is not followed.
    pub(crate) fn open_child(&self, name: &str) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Self { fd, path: self.child_path(name) })
    }

    /// The directory for reading and syncing.
    pub(crate) fn reopen(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(self.fd.as_fd(), ".", flags, Mode::empty())
    }

    /// Names in the directory, sorted.
    ///
    /// # Errors
    /// There are more than `max` names, or one is not UTF-8.
    pub(crate) fn list(&self, max: usize) -> Result<Vec<String>, FileError> {
        let fail = |errno| FileError::from_errno("list", &self.path, errno);
        let directory = Dir::new(self.reopen().map_err(fail)?).map_err(fail)?;
        let mut names = Vec::new();
        for entry in directory {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().to_str() else {
                let reason = format!("the name {:?} in it is not UTF-8", entry.file_name());
                return Err(FileError::new("list", &self.path, reason));
            };
            if matches!(name, "." | "..") {
                continue;
            }
            if names.len() == max {
                let reason = format!("it has more than {max} names");
                return Err(FileError::new("list", &self.path, reason));
            }
            names.push(name.to_owned());
        }
        names.sort();
        Ok(names)
    }
}

/// The target of a link.
pub(crate) fn read_target(folder: &Folder, name: &str) -> Result<String, String> {
    let target = readlinkat(&folder.fd, name, Vec::new())
        .map_err(|errno| std::io::Error::from(errno).to_string())?;
    target.into_string().map_err(|_| "is a link whose target is not UTF-8; remove it".to_owned())
}

/// Opens a directory outside of the machine's root directory.
pub(crate) fn open_outside(path: &Path) -> Result<Folder, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(CWD, path, flags, Mode::empty())?;
    Ok(Folder { fd, path: path.display().to_string() })
}

/// Whether a user is root or the user of this process.
pub(crate) fn is_own(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The folder and the name of an absolute path; `None` for the root directory.
pub(crate) fn split_parent(path: &str) -> Option<(&str, &str)> {
    let (folder, name) = path.rsplit_once('/')?;
    (!name.is_empty()).then_some((if folder.is_empty() { "/" } else { folder }, name))
}

pub(crate) fn join(folder: &str, name: &str) -> String {
    format!("{}/{name}", folder.strip_suffix('/').unwrap_or(folder))
}

/// Whether a path is inside of a directory.
pub(crate) fn is_below(path: &str, folder: &str) -> bool {
    let folder = folder.strip_suffix('/').unwrap_or(folder);
    path.strip_prefix(folder).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
}

fn split(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

/// A type of file, with its article.
fn kind_label(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        FileType::Unknown => "something",
    }
}
