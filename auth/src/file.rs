//! Files with keys: made once, by whoever comes first, and closed to everybody else.

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
    /// The operating system refused.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The file does not hold what it should.
    #[error("{} is not usable: {why}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A key or certificate could not be made.
    #[error("cannot make {what}: {why}")]
    Make {
        /// What was to be made.
        what: &'static str,
        /// Why it failed.
        why: String,
    },
}

impl FileError {
    pub(crate) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { act, path, source }
    }

    pub(crate) fn content(path: &Path, why: impl ToString) -> Self {
        Self::Content {
            path: path.to_owned(),
            why: why.to_string(),
        }
    }

    pub(crate) fn make<E: ToString>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Make {
            what,
            why: error.to_string(),
        }
    }
}

/// Makes a folder that only we can enter, unless it is there.
pub(crate) fn folder(path: &Path) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(FileError::io("make the folder", path))
}

/// The text of a file, if there is one.
pub(crate) fn read(path: &Path) -> Result<Option<String>, FileError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::io("read", path)(error)),
    }
}

/// The text of a file; if there is none, the one that `make` makes. When several processes start at once, one of them
/// makes it and all get the same. The file appears complete or not at all.
pub(crate) fn read_or_make(
    path: &Path,
    mode: u32,
    make: impl FnOnce() -> Result<String, FileError>,
) -> Result<String, FileError> {
    if let Some(text) = read(path)? {
        return Ok(text);
    }
    let text = make()?;
    let mut random = [0; 8];
    OsRng
        .try_fill_bytes(&mut random)
        .map_err(FileError::make("a random number"))?;
    let beside = path.with_extension(format!("{:016x}.new", u64::from_ne_bytes(random)));
    write(&beside, mode, &text).map_err(FileError::io("write", &beside))?;
    // A link is made only if the name is free; a rename would replace what another process made meanwhile.
    let linked = fs::hard_link(&beside, path);
    fs::remove_file(&beside).map_err(FileError::io("remove", &beside))?;
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
        Err(error) => Err(FileError::io("make", path)(error)),
    }
}

fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Says so when others can read what only we should.
pub(crate) fn warn_if_open(path: &Path) {
    let open = fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o007 != 0);
    if open {
        tracing::warn!(path = %path.display(), "this key can be read by everybody on this machine");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_once_and_only_for_us() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        let first = read_or_make(&path, 0o600, || Ok("first".to_owned())).unwrap();
        let second = read_or_make(&path, 0o600, || Ok("second".to_owned())).unwrap();
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
                        barrier.wait(); // Everybody found no file.
                        Ok(n.to_string())
                    };
                    read_or_make(path, 0o600, make).unwrap()
                })
            };
            let threads: Vec<_> = (0..8).map(make).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let kept = fs::read_to_string(&path).unwrap();
        assert!(texts.iter().all(|text| *text == kept), "{texts:?} {kept}");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing is left over"
        );
    }
}
