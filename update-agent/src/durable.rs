//! Writing files so that they survive a power cut: either the old content is there or the new one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}", path.display())]
pub struct FileError {
    /// What was tried, as a verb: "read", "write".
    pub doing: &'static str,
    /// With which file or folder.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// Says what was being done to which file when the system refused.
    pub fn while_doing(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self {
            doing,
            path,
            source,
        }
    }
}

/// Replaces a file as a whole: writes beside it, flushes, renames, flushes the folder.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let beside = beside(path);
    write_and_flush(&beside, content, mode).map_err(FileError::while_doing("write", &beside))?;
    fs::rename(&beside, path).map_err(FileError::while_doing("replace", path))?;
    flush_folder(path)
}

/// Removes a file, if it is there, and flushes the folder.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => flush_folder(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FileError::while_doing("remove", path)(error)),
    }
}

/// The content of a file; `None` if there is no such file.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::while_doing("read", path)(error)),
    }
}

/// Makes a folder and what is missing above it. The folder itself gets `mode` also if it was there.
pub fn make_folder(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(FileError::while_doing("make the folder", path))
}

/// Flushes the folder that `path` lies in, so that its new name is on the disk.
pub fn flush_folder(path: &Path) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(FileError::while_doing("flush the folder", folder))
}

fn write_and_flush(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // A file of an earlier, interrupted write may have another mode: it must not be taken over.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        replace(&path, b"old", 0o600).unwrap();
        fs::write(beside(&path), b"left by an interrupted write").unwrap();

        replace(&path, b"new", 0o600).unwrap();

        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"new"[..]));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    #[test]
    fn what_is_not_there_reads_as_nothing_and_may_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nothing");
        assert_eq!(read(&path).unwrap(), None);
        remove(&path).unwrap();
    }

    #[test]
    fn an_error_names_the_file() {
        let error = replace(Path::new("/proc/nowhere/file"), b"", 0o600).unwrap_err();
        assert_eq!(error.to_string(), "cannot write /proc/nowhere/file.new");
    }
}
