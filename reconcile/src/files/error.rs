//! Errors of files.

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::folder::Folder;

/// An action on a file failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {path}: {reason}")]
pub struct FileError {
    /// The failed action as a verb: "read", "write".
    pub action: &'static str,
    /// The path on the machine.
    pub path: String,
    /// What failed, and what to do.
    pub reason: String,
    /// Whether the file system has no space, so that its other files will fail as well. A quota of
    /// a user or group concerns only the files of the user or group.
    pub is_disk_full: bool,
}

impl FileError {
    pub(crate) fn new(
        action: &'static str,
        path: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self { action, path: path.into(), reason: reason.into(), is_disk_full: false }
    }

    pub(crate) fn from_errno(action: &'static str, path: impl Into<String>, errno: Errno) -> Self {
        let is_disk_full = errno == Errno::NOSPC;
        Self { action, path: path.into(), reason: describe(errno), is_disk_full }
    }

    /// The error of a change of `name` in a folder. Finds out whether the file or the folder is
    /// immutable, which the kernel does not distinguish from other refusals.
    pub(crate) fn from_change(
        action: &'static str,
        folder: &Folder,
        name: &str,
        errno: Errno,
    ) -> Self {
        let mut error = Self::from_errno(action, folder.child_path(name), errno);
        if errno == Errno::PERM {
            if is_immutable(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                let path = folder.child_path(name);
                error.reason = format!("it is immutable; run: chattr -i -a {path}");
            } else if is_immutable(folder, "", AtFlags::EMPTY_PATH) {
                let path = &folder.path;
                error.reason =
                    format!("the directory {path} is immutable; run: chattr -i -a {path}");
            }
        }
        error
    }
}

fn is_immutable(folder: &Folder, name: &str, flags: AtFlags) -> bool {
    let protecting = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    statx(&folder.fd, name, flags, StatxFlags::empty())
        .is_ok_and(|stats| stats.stx_attributes.intersects(protecting))
}

/// What an error of the kernel means, and what to do.
fn describe(errno: Errno) -> String {
    let advice = match errno {
        Errno::NOSPC => "the file system is full; free space or inodes and apply again",
        Errno::DQUOT => "the disk quota is used up; raise it or free space and apply again",
        Errno::ROFS => "the file system is read-only; mount it writable, or remove the entry",
        Errno::PERM | Errno::ACCESS => {
            "permission denied; run as root, and check that no security module refuses the access"
        }
        Errno::NOTEMPTY | Errno::EXIST => "the directory is not empty; remove what is in it",
        Errno::BUSY => "it is in use, for example as a mount point; unmount it",
        Errno::NOTDIR => "a part of the path is not a directory; remove it or correct the path",
        Errno::LOOP => "a part of the path is a symbolic link; write the path without links",
        Errno::NAMETOOLONG => "the file system does not accept names of this length; shorten it",
        _ => return std::io::Error::from(errno).to_string(),
    };
    advice.to_owned()
}

impl From<std::io::Error> for FileError {
    fn from(error: std::io::Error) -> Self {
        Self::new("read", "the content", error.to_string())
    }
}
