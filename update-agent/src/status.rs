//! Status of the agent, stored for `evenkeel-agent status`. Nothing depends on it: it may be
//! outdated or missing.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::journal::JournalEntry;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    /// When the server last answered a poll.
    pub last_contact: Option<DateTime<Utc>>,
    /// Reason of the last decision.
    pub reason: String,
    /// When the decision may change with time.
    pub next: Option<DateTime<Utc>>,
    /// Error of the last round; empty if there was none.
    pub error: String,
    /// Why the node itself delays a prepared change; empty if it does not.
    pub waiting: String,
    /// Warnings about the agent itself.
    pub warnings: Vec<String>,
    /// Limits of the machine's owner in one line; empty if there are none.
    pub limits: String,
    /// How far the machine's clock was ahead of the server's at the last contact.
    pub clock_ahead_seconds: Option<i64>,
    /// When the modules last refreshed what they know about the outside.
    pub refreshed: Option<DateTime<Utc>>,
    /// Error of the last refresh; empty if it succeeded.
    pub refresh_error: String,
    /// How the last attempt ended.
    pub last_end: Option<AttemptEnd>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptEnd {
    /// ID of the attempt.
    pub attempt: Uuid,
    /// Digest of the target.
    pub target: String,
    /// Name of the last event.
    pub outcome: String,
    /// Why the attempt failed; empty if it succeeded.
    pub reason: String,
    /// Problems that did not change the outcome.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// When the attempt ended, by the node's clock.
    pub at: DateTime<Utc>,
}

impl AttemptEnd {
    /// The end of an attempt; `None` if it has not ended.
    pub fn from_entry(entry: &JournalEntry) -> Option<Self> {
        let event = entry.events.last()?;
        event.kind.is_terminal().then(|| Self {
            attempt: entry.attempt,
            target: entry.target.digest.clone(),
            outcome: event.kind.name().to_owned(),
            reason: event.kind.failure().map_or_else(String::new, |failure| failure.reason.clone()),
            remarks: entry.remarks.clone(),
            at: event.at,
        })
    }
}

/// Stores the status in a file next to the journal.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    status: AgentStatus,
}

impl StatusFile {
    /// Loads the stored status.
    pub fn load(path: &Path) -> Self {
        Self { path: path.to_owned(), status: read_status(path).unwrap_or_default() }
    }

    /// The current status.
    pub fn get(&self) -> &AgentStatus {
        &self.status
    }

    /// Changes the status. A failed write is ignored.
    pub fn update(&mut self, change: impl FnOnce(&mut AgentStatus)) {
        change(&mut self.status);
        if let Err(error) = self.write() {
            tracing::debug!(error = %evenkeel_kit::chain(&error), "cannot write the status");
        }
    }

    /// Writes the file without flushing it: that would cost a disk write at each poll.
    fn write(&self) -> Result<(), FileError> {
        let content = serde_json::to_vec_pretty(&self.status).unwrap_or_default();
        let temporary = self.path.with_extension("json.new");
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(&content))
            .and_then(|()| fs::rename(&temporary, &self.path))
            .map_err(FileError::while_doing("write", &self.path))
    }
}

/// Reads the status; `None` if it is missing or invalid.
pub fn read_status(path: &Path) -> Option<AgentStatus> {
    let content = durable::read_file(path).ok()??;
    serde_json::from_slice(&content).ok()
}
