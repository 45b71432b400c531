//! The record of a running change. With it the next process of the agent finds a change that has outlived its agent, and
//! the deadline of that change.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{Command, session};
use crate::durable::{self, FileError};
use crate::os;

/// A change that an agent has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRecord {
    /// Name of the program.
    pub program: String,
    /// The boot in which the change was started.
    pub boot_id: String,
    /// The process ID. The process leads its session.
    pub process: i32,
    /// When the process started, in clock ticks since the boot. No other process with the same ID
    /// started then.
    pub process_start: u64,
    /// Time limit of the change.
    pub time_limit: Duration,
    /// When the time limit ends, by the monotonic clock of this boot: the wall clock may jump.
    pub deadline: Duration,
    /// Whether the time limit has ended, so that an agent has begun to end the change. The record of a change that follows
    /// an overdue one has its program and its time limit.
    pub is_overdue: bool,
}

impl ChangeRecord {
    /// The record of a change that was just started. Fails if its process has already ended.
    pub fn new(command: &Command, leader: Pid) -> io::Result<Self> {
        let process = leader.as_raw_pid();
        let start = session::read_process_start(process);
        Ok(Self {
            program: command.program.clone(),
            boot_id: os::boot_id(),
            process,
            process_start: start.ok_or(io::ErrorKind::NotFound)?,
            time_limit: command.deadline,
            deadline: monotonic_now().saturating_add(command.deadline),
            is_overdue: false,
        })
    }

    /// The record of a change that follows an overdue one: the result of that one is not stored yet, and the next process of
    /// the agent must learn it also if this change was interrupted.
    #[must_use]
    pub fn after_overdue(self, overdue: &Self) -> Self {
        let program = overdue.program.clone();
        Self { program, time_limit: overdue.time_limit, is_overdue: true, ..self }
    }

    /// The process of the change; `None` if it has ended. A process is never mistaken for another one that got its ID
    /// later.
    pub fn running_leader(&self) -> Option<Pid> {
        let is_running = !self.boot_id.is_empty()
            && self.boot_id == os::boot_id()
            && session::read_process_start(self.process) == Some(self.process_start);
        if is_running { Pid::from_raw(self.process) } else { None }
    }

    /// Time until the deadline.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_sub(monotonic_now())
    }
}

/// The file with the record of the running change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRecordFile {
    path: PathBuf,
}

impl ChangeRecordFile {
    /// A file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The record; `None` if there is none, or if it cannot be read: no process is ended without proof that it is ours.
    pub fn load(&self) -> Option<ChangeRecord> {
        let content = match durable::read_file(&self.path) {
            Ok(content) => content?,
            Err(error) => {
                tracing::warn!(%error, "cannot read the record of the running change");
                return None;
            }
        };
        match serde_json::from_slice(&content) {
            Ok(record) => Some(record),
            Err(error) => {
                tracing::warn!(%error, "the record of the running change is invalid");
                None
            }
        }
    }

    /// Writes the record durably.
    pub fn store(&self, record: &ChangeRecord) -> Result<(), FileError> {
        let content = serde_json::to_vec(record)
            .map_err(io::Error::from)
            .map_err(FileError::while_doing("write", &self.path))?;
        durable::replace_file(&self.path, &content, 0o600)
    }

    /// Records that the time limit has ended. A failure is logged: the change must be ended anyway.
    pub fn mark_overdue(&self) {
        let Some(mut record) = self.load() else { return };
        record.is_overdue = true;
        if let Err(error) = self.store(&record) {
            tracing::warn!(%error, "cannot record that a change has not ended in time");
        }
    }

    /// Removes the record of a change that has ended, unless it or the change before it was overdue.
    pub fn remove_unless_overdue(&self) {
        if self.load().is_none_or(|record| !record.is_overdue) {
            self.remove();
        }
    }

    /// Removes the record of a change that has ended. A failure is logged: the record names a process that does not run.
    pub fn remove(&self) {
        if let Err(error) = durable::remove_file(&self.path) {
            tracing::warn!(%error, "cannot remove the record of an ended change");
        }
    }
}

/// Time of the clock that never jumps. It starts at the boot.
fn monotonic_now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_record() -> ChangeRecord {
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap()).unwrap();
        ChangeRecord::new(&Command::new("dpkg", Duration::from_mins(1)), own).unwrap()
    }

    #[test]
    fn a_process_is_found_by_its_id_its_start_and_its_boot() {
        let record = own_record();
        assert_eq!(record.running_leader().map(Pid::as_raw_pid), Some(record.process));
        let other_start = record.process_start + 1;
        let with_reused_id = ChangeRecord { process_start: other_start, ..record.clone() };
        assert_eq!(with_reused_id.running_leader(), None);
        let before_reboot = ChangeRecord { boot_id: "another boot".into(), ..record };
        assert_eq!(before_reboot.running_leader(), None);
    }

    #[test]
    fn a_record_is_stored_with_its_deadline_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = ChangeRecordFile::new(folder.path().join("change.json"));
        assert_eq!(file.load(), None);
        let record = own_record();
        file.store(&record).unwrap();
        assert_eq!(file.load(), Some(record.clone()));
        assert!(record.time_left() <= record.time_limit);
        file.mark_overdue();
        assert_eq!(file.load(), Some(ChangeRecord { is_overdue: true, ..record }));
        file.remove();
        assert_eq!(file.load(), None);
        std::fs::write(folder.path().join("change.json"), "noise").unwrap();
        assert_eq!(file.load(), None, "no process is named");
    }
}
