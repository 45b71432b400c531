//! All calls that change something on the disk.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid, chmodat, chownat, fchmod, fchown, fsync,
    mkdirat, openat, renameat, renameat_with, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;

use super::error::FileError;
use super::folder::Folder;

/// Is called before each call that changes something on the disk, and before a new link or
/// directory is opened. Tests stop a run there.
pub trait FaultPoint {
    /// If it returns an error, the call is not made and fails with this error.
    ///
    /// # Errors
    /// The call should fail.
    fn before(&self, call: &'static str, path: &str) -> Result<(), Errno>;
}

/// Lets every call happen.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl FaultPoint for NoFaults {
    fn before(&self, _call: &'static str, _path: &str) -> Result<(), Errno> {
        Ok(())
    }
}

/// Makes the calls. An error names the path, and what to do.
#[derive(Clone, Copy)]
pub(crate) struct Calls<'a>(pub(crate) &'a dyn FaultPoint);

impl Calls<'_> {
    fn make<T>(
        self,
        action: &'static str,
        folder: &Folder,
        name: &str,
        call: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, FileError> {
        self.0
            .before(action, &folder.child_path(name))
            .and_then(|()| call())
            .map_err(|errno| FileError::from_change(action, folder, name, errno))
    }

    /// Creates a file that only root can read. What is there already is removed.
    pub(crate) fn create_file(self, folder: &Folder, name: &str) -> Result<File, FileError> {
        let flags = OFlags::WRONLY
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::NOFOLLOW
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        if folder.stat(name).is_ok() {
            self.unlink(folder, name)?;
        }
        let fd = self.make("create", folder, name, || {
            openat(&folder.fd, name, flags, Mode::RUSR | Mode::WUSR)
        })?;
        Ok(File::from(fd))
    }

    pub(crate) fn write(
        self,
        file: &mut File,
        (folder, name): (&Folder, &str),
        chunk: &[u8],
    ) -> Result<(), FileError> {
        self.make("write", folder, name, || {
            file.write_all(chunk).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })
    }

    /// Sets the owner, the group and the mode of a new file.
    pub(crate) fn set_new_attributes(
        self,
        file: &File,
        (folder, name): (&Folder, &str),
        (mode, owner, group): (u32, u32, u32),
    ) -> Result<(), FileError> {
        let (owner, group) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)));
        self.make("set the owner of", folder, name, || fchown(file, owner, group))?;
        // A change of the owner clears bits of the mode, so the mode is set afterwards.
        let mode = Mode::from_raw_mode(mode);
        self.make("set the mode of", folder, name, || fchmod(file, mode))
    }

    /// Sets the mode of what an `O_PATH` descriptor names, also of a FIFO or a socket.
    pub(crate) fn set_mode(
        self,
        fd: &OwnedFd,
        (folder, name): (&Folder, &str),
        mode: u32,
    ) -> Result<(), FileError> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let mode = Mode::from_raw_mode(mode);
        self.make("set the mode of", folder, name, || {
            chmodat(CWD, link.as_str(), mode, AtFlags::empty())
        })
    }

    /// Sets the owner of what an `O_PATH` descriptor names, also of a link.
    pub(crate) fn set_owner(
        self,
        fd: &OwnedFd,
        (folder, name): (&Folder, &str),
        (owner, group): (u32, u32),
    ) -> Result<(), FileError> {
        let (owner, group) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)));
        self.make("set the owner of", folder, name, || {
            chownat(fd, "", owner, group, AtFlags::EMPTY_PATH)
        })
    }

    pub(crate) fn make_link(
        self,
        folder: &Folder,
        name: &str,
        target: &str,
    ) -> Result<(), FileError> {
        if folder.stat(name).is_ok() {
            self.unlink(folder, name)?;
        }
        self.make("create", folder, name, || symlinkat(target, &folder.fd, name))
    }

    /// Creates a directory that only root can open.
    pub(crate) fn make_folder(self, folder: &Folder, name: &str) -> Result<(), FileError> {
        self.make("create", folder, name, || mkdirat(&folder.fd, name, Mode::RWXU))
    }

    /// Opens a new link or directory for changes of its owner.
    pub(crate) fn open_new(self, folder: &Folder, name: &str) -> Result<OwnedFd, FileError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.make("open", folder, name, || openat(&folder.fd, name, flags, Mode::empty()))
    }

    /// Gives the new directory `from` the name `to`. What has this name gets the name `from`, or is
    /// removed if the file system cannot exchange names.
    pub(crate) fn exchange(self, folder: &Folder, from: &str, to: &str) -> Result<(), FileError> {
        let fd = &folder.fd;
        self.make("replace", folder, to, || {
            match renameat_with(fd, from, fd, to, RenameFlags::EXCHANGE) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    unlinkat(fd, to, AtFlags::empty())?;
                    renameat(fd, from, fd, to)
                }
                result => result,
            }
        })
    }

    pub(crate) fn rename(self, folder: &Folder, from: &str, to: &str) -> Result<(), FileError> {
        self.make("replace", folder, to, || renameat(&folder.fd, from, &folder.fd, to))
    }

    pub(crate) fn unlink(self, folder: &Folder, name: &str) -> Result<(), FileError> {
        self.make("remove", folder, name, || unlinkat(&folder.fd, name, AtFlags::empty()))
    }

    pub(crate) fn remove_folder(self, folder: &Folder, name: &str) -> Result<(), FileError> {
        self.make("remove", folder, name, || unlinkat(&folder.fd, name, AtFlags::REMOVEDIR))
    }

    /// Writes everything of the folder's file system to the disk. The folder is open for reading.
    pub(crate) fn sync_file_system(self, folder: &Folder) -> Result<(), FileError> {
        self.make("sync", folder, "", || syncfs(&folder.fd))
    }

    /// Writes a file or a folder to the disk.
    pub(crate) fn sync(
        self,
        (folder, name): (&Folder, &str),
        fd: impl AsFd,
    ) -> Result<(), FileError> {
        self.make("sync", folder, name, || fsync(fd))
    }
}
