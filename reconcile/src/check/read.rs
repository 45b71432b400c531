//! Reads files of the machine for checks.

use std::fs::File;
use std::io::{self, BufReader};

use rustix::fs::{Dir, FileType};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::files::{
    ContentDigest, FileError, FolderError, LineReader, OwnFile, RootFolder, read_limited,
    read_target,
};

/// Longest file that a check reads into memory.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Opens a regular file for reading. It does not wait for a writer of a named pipe.
pub(super) fn open_file(root: &RootFolder, path: &str) -> io::Result<File> {
    root.open_file(path).map_err(reason_of)?.ok_or_else(not_found)
}

/// The lines of a file.
pub(super) fn open_lines(root: &RootFolder, path: &str) -> io::Result<LineReader<BufReader<File>>> {
    root.open_lines(path).map_err(reason_of)?.ok_or_else(not_found)
}

/// Reads a file that has at most 1 MiB.
pub(super) fn read_text(root: &RootFolder, path: &str) -> io::Result<Vec<u8>> {
    read_limited(open_file(root, path)?, MAX_TEXT_BYTES)
}

/// Reads a file of at most 1 MiB that must not be a symbolic link.
pub(super) fn read_own_text(root: &RootFolder, path: &str) -> io::Result<Vec<u8>> {
    read_limited(open_own_file(root, path)?, MAX_TEXT_BYTES)
}

/// Opens a file that must not be a symbolic link.
pub(super) fn open_own_file(root: &RootFolder, path: &str) -> io::Result<File> {
    match root.open_own_file(path).map_err(reason_of)? {
        OwnFile::File(file) => Ok(file),
        OwnFile::Missing => Err(not_found()),
        OwnFile::Link => Err(Errno::LOOP.into()),
    }
}

/// Whether a file that must not be a symbolic link is one.
pub(super) fn is_link_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

/// The names and types of the files in a folder, sorted; none if there is no such folder. Names
/// that are not UTF-8 are left out.
pub(super) fn list_folder(root: &RootFolder, path: &str) -> io::Result<Vec<(String, FileType)>> {
    let folder = match root.open_folder(path) {
        Ok(folder) => folder,
        Err(FolderError::Missing) => return Ok(Vec::new()),
        Err(error) => return Err(reason_of(error.into_file_error("read", path))),
    };
    let mut names = Vec::new();
    for entry in Dir::new(folder.reopen()?)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push((name.to_owned(), entry.file_type()));
        }
    }
    names.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(names)
}

/// The target of a symbolic link in a folder; none if it is something else or not UTF-8.
pub(super) fn read_link(root: &RootFolder, folder: &str, name: &str) -> Option<String> {
    read_target(&root.open_folder(folder).ok()?, name).ok()
}

/// Whether there is a folder at a path.
pub(super) fn is_folder(root: &RootFolder, path: &str) -> bool {
    root.open_folder(path).is_ok()
}

/// The reason of an entry that needs a file that cannot be read.
pub(super) fn reading_failure(path: &str, error: &io::Error) -> String {
    format!("cannot read {path}: {error}")
}

/// The digest of a content, as the object `{"sha256": digits}`.
pub(super) fn digest_value(content: &[u8]) -> Value {
    json!({ "sha256": ContentDigest::from_bytes(content) })
}

fn reason_of(error: FileError) -> io::Error {
    io::Error::other(error.reason)
}

fn not_found() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "it does not exist")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn links_are_resolved_inside_the_root_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("etc")).unwrap();
        fs::write(folder.path().join("etc/passwd"), "inside").unwrap();
        symlink("/etc/passwd", folder.path().join("absolute")).unwrap();
        symlink("../../../../etc/passwd", folder.path().join("relative")).unwrap();
        symlink("/etc/none", folder.path().join("dangling")).unwrap();
        let root = RootFolder::open(folder.path()).unwrap();
        for path in ["/etc/passwd", "/absolute", "/relative"] {
            assert_eq!(read_text(&root, path).unwrap(), b"inside", "{path}");
        }
        let error = read_text(&root, "/dangling").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let error = read_own_text(&root, "/absolute").unwrap_err();
        assert!(is_link_error(&error), "{error}");
    }

    #[test]
    fn a_link_that_a_user_could_have_made_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "secret").unwrap();
        symlink("/secret", folder.path().join("link")).unwrap();
        std::os::unix::fs::lchown(folder.path().join("link"), Some(1000), Some(1000)).unwrap();
        let root = RootFolder::open(folder.path()).unwrap();
        let error = read_text(&root, "/link").unwrap_err().to_string();
        assert!(error.contains("a user could have made"), "{error}");
    }

    #[test]
    fn a_named_pipe_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::from_raw_mode(0o600)).unwrap();
        let root = RootFolder::open(folder.path()).unwrap();
        let error = read_text(&root, "/pipe").unwrap_err();
        assert_eq!(error.to_string(), "it is no file");
    }
}
