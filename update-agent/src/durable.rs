//! Writes files so that they survive a power cut: afterwards a file has either its old or its new
//! content.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct FileError {
    /// The failed action as a verb: "read", "write".
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// Error of the operating system.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// Creates the error for a failed action on a path.
    pub fn while_doing(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source }
    }
}

/// Replaces a file atomically: writes a temporary file, flushes, renames, flushes the folder.
pub fn replace_file(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let temporary = temporary_path(path);
    write_and_flush(&temporary, content, mode)
        .map_err(FileError::while_doing("write", &temporary))?;
    fs::rename(&temporary, path).map_err(FileError::while_doing("replace", path))?;
    flush_folder(path)
}

/// Removes a file, if it exists, and flushes the folder.
pub fn remove_file(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => flush_folder(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(FileError::while_doing("remove", path)(error)),
    }
}

/// Reads a file; `None` if it does not exist.
pub fn read_file(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::while_doing("read", path)(error)),
    }
}

/// Creates a folder and its missing parents. The folder gets `mode` even if it existed before.
pub fn create_folder(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(FileError::while_doing("create the folder", path))
}

/// Flushes the folder of `path`, so that its new name is on the disk.
pub fn flush_folder(path: &Path) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(FileError::while_doing("flush the folder", folder))
}

fn write_and_flush(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    // A file of an interrupted write may have another mode, so it must not be reused.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_atomically_and_has_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        replace_file(&path, b"old", 0o600).unwrap();
        fs::write(temporary_path(&path), b"left by an interrupted write").unwrap();

        replace_file(&path, b"new", 0o600).unwrap();

        assert_eq!(read_file(&path).unwrap().as_deref(), Some(&b"new"[..]));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_missing_file_reads_as_none_and_may_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nothing");
        assert_eq!(read_file(&path).unwrap(), None);
        remove_file(&path).unwrap();
    }

    #[test]
    fn an_error_names_the_file() {
        let error = replace_file(Path::new("/proc/nowhere/file"), b"", 0o600).unwrap_err();
        assert_eq!(error.to_string(), "cannot write /proc/nowhere/file.new");
    }
}
