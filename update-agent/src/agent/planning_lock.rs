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
    _folders: Vec<File>,
}

impl PlanningLock {
    /// Acquires the lock; `None` if another program has it. The folders themselves are locked, so
    /// no file is left behind: the state directory, and the folder for apt, which an agent with
    /// another state directory uses as well.
    pub fn acquire(paths: &AgentPaths) -> Result<Option<Self>, FileError> {
        let mut folders = vec![paths.state().to_owned()];
        let apt_folder = paths.apt_folder();
        // A root that is read-only may not have it, and gets no packages.
        if apt_folder != paths.state() && apt_folder.exists() {
            folders.push(apt_folder);
        }
        let mut locked = Vec::new();
        for path in &folders {
            let folder = File::open(path).map_err(FileError::while_doing("open", path))?;
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => locked.push(folder),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(FileError::while_doing("lock", path)(error.into())),
            }
        }
        Ok(Some(Self { _folders: locked }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_plan_waits_for_the_end_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let state = folder.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let paths = AgentPaths::new(&root, Some(state.clone()));
        let first = PlanningLock::acquire(&paths).unwrap().unwrap();
        assert!(PlanningLock::acquire(&paths).unwrap().is_none());
        drop(first);
        assert!(PlanningLock::acquire(&paths).unwrap().is_some());
        assert_eq!(state.read_dir().unwrap().count(), 0);
    }

    #[test]
    fn agents_with_two_state_directories_do_not_plan_at_the_same_time_in_one_root() {
        let root = tempfile::tempdir().unwrap();
        let paths = ["one", "two"].map(|name| {
            let state = root.path().join(name);
            let paths = AgentPaths::new(root.path(), Some(state));
            paths.prepare().unwrap();
            paths
        });
        let first = PlanningLock::acquire(&paths[0]).unwrap().unwrap();
        assert!(PlanningLock::acquire(&paths[1]).unwrap().is_none());
        drop(first);
        assert!(PlanningLock::acquire(&paths[1]).unwrap().is_some());
    }

    #[test]
    fn without_a_state_directory_planning_fails() {
        let paths = AgentPaths::new("/", Some("/no/such/folder".into()));
        let error = PlanningLock::acquire(&paths).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /no/such/folder");
    }
}
