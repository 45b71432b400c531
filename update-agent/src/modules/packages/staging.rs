//! The folder into which apt downloads. It belongs to apt's unprivileged user, so that the programs that connect to
//! mirrors do not run as root: apt runs them as root if its user cannot write to the folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::files::{ARCHIVES_FOLDER, Deb};
use crate::durable::{self, FileError};
use crate::paths::AgentPaths;

/// Name of the folder in the folder of the .debs.
pub const STAGING_NAME: &str = "staging";

/// apt's user for downloads.
const APT_USER: &str = "_apt";

/// The folder.
#[derive(Debug)]
pub struct StagingFolder {
    folder: PathBuf,
    /// List of the users of the managed root.
    passwd: PathBuf,
}

impl StagingFolder {
    /// The folder below the managed root.
    pub fn new(paths: &AgentPaths) -> Self {
        let folder = paths.inside(ARCHIVES_FOLDER).join(STAGING_NAME);
        Self { folder, passwd: paths.inside("/etc/passwd") }
    }

    /// Creates the folder, for apt's user only. Its parent belongs to root, so that user cannot replace the folder itself.
    pub fn create(&self) -> Result<(), FileError> {
        durable::create_folder(&self.folder, 0o700)?;
        let users = fs::read_to_string(&self.passwd).unwrap_or_default();
        // Without the user, apt downloads as root.
        let Some((user, group)) = find_user(&users, APT_USER) else {
            return Ok(());
        };
        chown(&self.folder, Some(user), Some(group))
            .map_err(FileError::while_doing("change the owner of", &self.folder))
    }

    /// Whether one of the files exists, at least in part.
    pub fn has_any(&self, debs: &[&Deb]) -> bool {
        debs.iter().any(|deb| fs::symlink_metadata(self.folder.join(&deb.name)).is_ok())
    }

    /// Removes the files that apt renamed because their content was wrong.
    pub fn remove_broken(&self, debs: &[&Deb]) -> Result<(), FileError> {
        debs.iter().try_for_each(|deb| remove(&self.folder.join(format!("{}.FAILED", deb.name))))
    }

    /// Moves the files that have their full size into another folder, as files of root. Shorter files stay, because their
    /// download can be continued; others are removed. The content is copied: apt's user may still have the file open.
    pub fn move_complete(&self, debs: &[&Deb], target: &Path) -> Result<(), FileError> {
        for deb in debs {
            let staged = self.folder.join(&deb.name);
            let opened = open_regular(&staged).map_err(FileError::while_doing("open", &staged))?;
            let Some((file, size)) = opened else {
                remove(&staged)?;
                continue;
            };
            if size < deb.size {
                continue;
            }
            if size == deb.size {
                let path = target.join(&deb.name);
                copy(file, deb.size, &path).map_err(FileError::while_doing("write", &path))?;
            }
            remove(&staged)?;
        }
        Ok(())
    }
}

/// Opens a file with its size; `None` if there is none or it is not a regular file.
pub(super) fn open_regular(path: &Path) -> io::Result<Option<(File, u64)>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some((file, metadata.len())))
}

/// Writes the first bytes of a file into a new file of root. A file with the same path is replaced.
pub(super) fn copy(file: File, size: u64, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    io::copy(&mut file.take(size), &mut target).map(drop)
}

fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FileError::while_doing("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// User and group ID of a user in passwd(5).
pub(super) fn find_user(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let [user, _, id, group, ..] = fields[..] else {
            return None;
        };
        if user != name {
            return None;
        }
        Some((id.parse().ok()?, group.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::modules::packages::files::deb_of_five_bytes;

    #[test]
    fn complete_files_are_moved_and_partial_ones_stay() {
        let root = tempfile::tempdir().unwrap();
        let staging = StagingFolder::new(&AgentPaths::new(root.path(), None));
        staging.create().unwrap();
        let mode = fs::metadata(&staging.folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let secret = root.path().join("secret");
        fs::write(&secret, "12345").unwrap();
        for (name, content) in [("whole", "hello"), ("short", "hel"), ("long", "hello!")] {
            fs::write(staging.folder.join(name), content).unwrap();
        }
        symlink(&secret, staging.folder.join("link")).unwrap();
        fs::write(staging.folder.join("whole.FAILED"), "").unwrap();

        let debs = ["whole", "short", "long", "link", "none"].map(deb_of_five_bytes);
        let debs: Vec<&Deb> = debs.iter().collect();
        assert!(staging.has_any(&debs));
        let target = root.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("whole"), "an older file").unwrap();
        staging.move_complete(&debs, &target).unwrap();
        staging.remove_broken(&debs).unwrap();

        let names = |folder: &Path| -> Vec<_> {
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        assert_eq!(names(&target), ["whole"]);
        assert_eq!(fs::read_to_string(target.join("whole")).unwrap(), "hello");
        assert_eq!(names(&staging.folder), ["short"]);
        assert_eq!(fs::read_to_string(&secret).unwrap(), "12345");
    }

    #[test]
    fn a_user_is_found_by_name() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nx_apt:x:1:1::/:/\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n";
        assert_eq!(find_user(passwd, "_apt"), Some((42, 65534)));
        assert_eq!(find_user(passwd, "nobody"), None);
        assert_eq!(find_user("_apt:x\n_apt:x:y:1::\n", "_apt"), None);
    }
}
