//! Key files: created once by the first process that needs them, and not readable by other users.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rand::TryRngCore;
use rand::rngs::OsRng;

/// A key or certificate file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// An operation on the file failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// The operation, such as "read".
        act: &'static str,
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("{} is not usable: {why}", path.display())]
    Content {
        path: PathBuf,
        /// What is wrong with the content.
        why: String,
    },
    /// A key, a certificate or a random number could not be created.
    #[error("cannot create {what}: {why}")]
    Create {
        what: &'static str,
        /// The error of the library.
        why: String,
    },
}

impl FileError {
    pub(crate) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { act, path, source }
    }

    pub(crate) fn content(path: &Path, why: impl ToString) -> Self {
        Self::Content { path: path.to_owned(), why: why.to_string() }
    }

    pub(crate) fn create<E: ToString>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Create { what, why: error.to_string() }
    }
}

/// Creates a folder that only the server's user can enter, if it does not exist.
pub(crate) fn create_private_folder(path: &Path) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FileError::io("create the folder", path))
}

/// Content of a file. None if the file does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::io("read", path)(error)),
    }
}

/// Content of a file. If the file does not exist, creates it with the text of `make`. If several
/// processes start at once, one of them creates the file and all get the same text. The file
/// appears complete or not at all.
pub(crate) fn read_or_create(
    path: &Path,
    mode: u32,
    make: impl FnOnce() -> Result<String, FileError>,
) -> Result<String, FileError> {
    if let Some(text) = read(path)? {
        return Ok(text);
    }
    let text = make()?;
    let mut random = [0; 8];
    OsRng.try_fill_bytes(&mut random).map_err(FileError::create("a random number"))?;
    let temporary = path.with_extension(format!("{:016x}.new", u64::from_ne_bytes(random)));
    write(&temporary, mode, &text).map_err(FileError::io("write", &temporary))?;
    // A hard link fails if the name exists. A rename would replace the file of another process.
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary).map_err(FileError::io("remove", &temporary))?;
    match linked {
        Ok(()) => {
            let folder = path.parent().unwrap_or(Path::new("."));
            let flush = File::open(folder).and_then(|folder| folder.sync_all());
            flush.map_err(FileError::io("flush", folder))?;
            Ok(text)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::read_to_string(path).map_err(FileError::io("read", path))
        }
        Err(error) => Err(FileError::io("create", path)(error)),
    }
}

fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Logs a warning if other users can read the key file.
pub(crate) fn warn_if_open(path: &Path) {
    let open = fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0);
    if open {
        tracing::warn!(path = %path.display(), "this key can be read by every user of this machine");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_once_and_only_for_us() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        let first = read_or_create(&path, 0o600, || Ok("first".to_owned())).unwrap();
        let second = read_or_create(&path, 0o600, || Ok("second".to_owned())).unwrap();
        assert_eq!((first.as_str(), second.as_str()), ("first", "first"));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn processes_that_start_at_once_get_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        let barrier = std::sync::Barrier::new(8);
        let texts: Vec<String> = std::thread::scope(|scope| {
            let make = |n: usize| {
                let (path, barrier) = (&path, &barrier);
                scope.spawn(move || {
                    let make = || {
                        barrier.wait(); // No process has found the file.
                        Ok(n.to_string())
                    };
                    read_or_create(path, 0o600, make).unwrap()
                })
            };
            let threads: Vec<_> = (0..8).map(make).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let stored = fs::read_to_string(&path).unwrap();
        assert!(texts.iter().all(|text| *text == stored), "{texts:?} {stored}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file remains");
    }
}
