//! One plan at a time: while a plan is made, the sources and preferences that it is made from lie in a folder of the
//! agent, and a person may ask for a plan beside the agent that runs.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::durable::FileError;
use crate::place::Place;

/// Held from the beginning of a plan until it is written into the journal or thrown away. The system lets go of it when
/// the process ends, however it ends.
#[derive(Debug)]
pub struct Planning {
    _folder: File,
}

impl Planning {
    /// Begins to plan; `None` if another program is at it. The state directory itself is locked, so nothing is left
    /// behind.
    pub fn begin(place: &Place) -> Result<Option<Self>, FileError> {
        let state = place.state();
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
        let place = Place::new("/", Some(folder.path().to_owned()));
        let first = Planning::begin(&place).unwrap().unwrap();
        assert!(Planning::begin(&place).unwrap().is_none());
        drop(first);
        assert!(Planning::begin(&place).unwrap().is_some());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn without_a_state_directory_nothing_is_planned() {
        let place = Place::new("/", Some("/no/such/folder".into()));
        let error = Planning::begin(&place).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /no/such/folder");
    }
}
