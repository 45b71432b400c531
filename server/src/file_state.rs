//! Files that the server reads again when they change: how it notices a change, who can read them,
//! and what it counts.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Metadata that changes with the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    inode: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl FileStamp {
    /// Reads the metadata of a file, also behind a symbolic link. `None` if that is not possible.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            inode: metadata.ino(),
            size: metadata.size(),
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec(),
        })
    }
}

/// Whether other users of this machine can read a file.
pub(crate) fn is_readable_by_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o007 != 0)
}

/// Files that are read again, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReloadedFile {
    Certificate(&'static str),
    Users,
}

impl ReloadedFile {
    fn label(self) -> &'static str {
        match self {
            Self::Certificate(listener) => listener,
            Self::Users => "users",
        }
    }

    /// Counts that a changed file is used from now on, or that it is not usable.
    pub(crate) fn count(self, is_usable: bool) {
        let outcome = if is_usable { "ok" } else { "failed" };
        metrics::counter!("evenkeel_file_reloads_total", "file" => self.label(), "outcome" => outcome)
            .increment(1);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_changed_and_a_replaced_file_have_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("one"), folder.path().join("other"));
        assert_eq!(FileStamp::read(&path), None);
        fs::write(&path, "one").unwrap();
        let first = FileStamp::read(&path);
        assert!(first.is_some() && first == FileStamp::read(&path));
        fs::write(&path, "longer").unwrap();
        let second = FileStamp::read(&path);
        assert_ne!(first, second);
        fs::write(&other, "longer").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_ne!(FileStamp::read(&path), second);
    }

    #[test]
    fn a_file_for_all_users_is_readable_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        fs::write(&path, "key").unwrap();
        for (mode, is_readable) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_readable_by_others(&path), is_readable, "{mode:o}");
        }
        assert!(!is_readable_by_others(Path::new("/no/such/file")));
    }
}
