//! What the agent last did, kept for `evenkeel-agent status`. Nothing depends on it: it may be old or gone.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::journal::Entry;

/// What the agent last did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// When the server last answered a poll.
    pub last_contact: Option<DateTime<Utc>>,
    /// Why the server decided as it did.
    pub reason: String,
    /// When that may change by time alone.
    pub next: Option<DateTime<Utc>>,
    /// What the agent could not do, if the last round did not work.
    pub trouble: String,
    /// Why the node itself does not let a prepared change begin; empty if it does or nothing is to begin.
    pub waiting: String,
    /// What a person should know of the agent itself.
    pub troubles: Vec<String>,
    /// What the machine's owner allows, in one line; empty if everything.
    pub limits: String,
    /// How far this machine's clock was ahead of the server's at the last contact.
    pub clock_ahead_seconds: Option<i64>,
    /// When the lists of packages were last made current by the agent.
    pub refreshed: Option<DateTime<Utc>>,
    /// Why they were not the last time; empty if they were.
    pub refresh_trouble: String,
    /// How the last attempt ended.
    pub last_end: Option<End>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Which.
    pub attempt: Uuid,
    /// Digest of what was wanted.
    pub target: String,
    /// The name of the last event.
    pub outcome: String,
    /// Why it did not end well; empty if it did.
    pub reason: String,
    /// What went wrong on the way and did not change the end.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// When, by the node's clock.
    pub at: DateTime<Utc>,
}

impl End {
    /// How an attempt ended; `None` if it has not.
    pub fn of(entry: &Entry) -> Option<Self> {
        let event = entry.events.last()?;
        event.news.is_terminal().then(|| Self {
            attempt: entry.attempt,
            target: entry.target.digest.clone(),
            outcome: event.news.name().to_owned(),
            reason: event
                .news
                .failure()
                .map_or_else(String::new, |failure| failure.reason.clone()),
            remarks: entry.remarks.clone(),
            at: event.at,
        })
    }
}

/// Keeps a status beside the journal.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    now: Status,
}

impl StatusFile {
    /// Goes on with the status that is there.
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            now: read(path).unwrap_or_default(),
        }
    }

    /// The status as it is.
    pub fn get(&self) -> &Status {
        &self.now
    }

    /// Changes it. That it cannot be written does not hinder the agent.
    pub fn change(&mut self, change: impl FnOnce(&mut Status)) {
        change(&mut self.now);
        if let Err(error) = self.write() {
            tracing::debug!(error = %evenkeel_kit::chain(&error), "the status cannot be written");
        }
    }

    /// Not flushed: it would cost a write to the disk with every poll.
    fn write(&self) -> Result<(), FileError> {
        let content = serde_json::to_vec_pretty(&self.now).unwrap_or_default();
        let beside = self.path.with_extension("json.new");
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)
            .and_then(|mut file| file.write_all(&content))
            .and_then(|()| fs::rename(&beside, &self.path))
            .map_err(FileError::while_doing("write", &self.path))
    }
}

/// The status that is there; `None` if there is none or it makes no sense.
pub fn read(path: &Path) -> Option<Status> {
    let content = durable::read(path).ok()??;
    serde_json::from_slice(&content).ok()
}
