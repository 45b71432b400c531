//! Allows only one agent at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::durable::FileError;

/// Held while an agent uses a state directory. The system releases the lock when the process ends,
/// in any way.
#[derive(Debug)]
pub struct AgentLock {
    _file: File,
}

/// The lock could not be acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent holds the lock.
    #[error("another evenkeel-agent is running ({} is locked)", .0.display())]
    AlreadyLocked(PathBuf),
    /// The lock file could not be opened or locked.
    #[error(transparent)]
    File(#[from] FileError),
}

impl AgentLock {
    /// Acquires the lock, or fails at once if another agent holds it.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(FileError::while_doing("open", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::WOULDBLOCK) => Err(LockError::AlreadyLocked(path.to_owned())),
            Err(error) => Err(FileError::while_doing("lock", path)(error.into()).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_until_the_first_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = AgentLock::acquire(&path).unwrap();

        let error = AgentLock::acquire(&path).unwrap_err();
        assert!(error.to_string().starts_with("another evenkeel-agent is running"), "{error}");

        drop(first);
        AgentLock::acquire(&path).unwrap();
    }
}
