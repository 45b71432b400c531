//! One agent at a time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::durable::FileError;

/// Held while an agent works on a state directory; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct AgentLock {
    _file: File,
}

/// The lock was not obtained.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error("another evenkeel-agent is at work here ({} is locked)", .0.display())]
    Taken(PathBuf),
    /// The file could not be opened or locked.
    #[error(transparent)]
    File(#[from] FileError),
}

impl AgentLock {
    /// Takes the lock or says at once that another agent has it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path)
            .map_err(FileError::while_doing("open", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::WOULDBLOCK) => Err(LockError::Taken(path.to_owned())),
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
        let first = AgentLock::take(&path).unwrap();

        let error = AgentLock::take(&path).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("another evenkeel-agent is at work here"),
            "{error}"
        );

        drop(first);
        AgentLock::take(&path).unwrap();
    }
}
