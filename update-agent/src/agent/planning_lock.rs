//! Allows one plan at a time. While a plan is made, the sources and preferences that it uses are in
//! a folder of the agent, and a person may request another plan while the agent runs.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::durable::FileError;
use crate::paths::AgentPaths;

/// Held from the start of planning until the plan is in the journal or discarded. The system
/// releases the lock when the process ends, in any way.
#[derive(Debug)]
pub struct PlanningLock {
    _folder: File,
}

impl PlanningLock {
    /// Acquires the lock; `None` if another program has it. The state directory itself is locked,
    /// so no file is left behind.
    pub fn acquire(paths: &AgentPaths) -> Result<Option<Self>, FileError> {
        let state = paths.state();
        let folder = File::open(state).map_err(FileError::while_doing("open", state))?;
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { _folder: folder })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(FileError::while_doing("lock", state)(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_plan_waits_for_the_end_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        let first = PlanningLock::acquire(&paths).unwrap().unwrap();
        assert!(PlanningLock::acquire(&paths).unwrap().is_none());
        drop(first);
        assert!(PlanningLock::acquire(&paths).unwrap().is_some());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn without_a_state_directory_planning_fails() {
        let paths = AgentPaths::new("/", Some("/no/such/folder".into()));
        let error = PlanningLock::acquire(&paths).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /no/such/folder");
    }
}
