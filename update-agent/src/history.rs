//! The attempts that ended on this node, for `evenkeel-agent history`. Each one is written durably
//! when it ends. Nothing else depends on the file, so an invalid file is replaced.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::journal::JournalEntry;
use crate::model::{EventKind, FailureKind, RunReport, tail};
use crate::modules::ReportText;

/// Number of attempts that are stored; older ones are removed.
const MAX_ATTEMPTS: usize = 100;
/// Maximum size of the file in bytes. A larger file loses its oldest attempts.
const MAX_FILE_BYTES: usize = 1 << 20;
/// Maximum length of each list in what the modules report about an attempt.
const MAX_ITEMS: usize = 1_000;
/// Maximum number of bytes that are stored of the output of a failed tool.
const MAX_LOG_BYTES: usize = 4 << 10;

/// An attempt that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// ID of the attempt.
    pub attempt: Uuid,
    /// Digest of the target.
    pub target: String,
    /// Name of the last event.
    pub outcome: String,
    /// Kind of the failure; `None` if the attempt succeeded.
    pub kind: Option<FailureKind>,
    /// Why the attempt failed; empty if it succeeded.
    pub reason: String,
    /// Last lines of the failed tool; empty if there are none.
    pub log: String,
    /// When the attempt was opened, by the node's clock, as all times here.
    pub opened: Option<DateTime<Utc>>,
    /// When the change of the node began; `None` if it did not.
    pub began: Option<DateTime<Utc>>,
    /// When the attempt ended.
    pub ended: DateTime<Utc>,
    /// The planned change in a few words.
    #[serde(default)]
    pub change: String,
    /// The results of the modules, for people.
    #[serde(default)]
    pub results: Vec<String>,
    /// Planned download size in bytes.
    pub download_bytes: u64,
    /// Durations and details of the run. Only the first items of long lists are stored.
    pub report: RunReport,
}

impl AttemptRecord {
    /// Creates the record of an attempt with the description of its change; `None` if the attempt
    /// has not ended.
    pub fn from_entry(entry: &JournalEntry, text: ReportText) -> Option<Self> {
        let last = entry.events.last()?;
        if !last.kind.is_terminal() {
            return None;
        }
        let failure = last.kind.failure();
        let began = entry.events.iter().find(|event| event.kind == EventKind::Began);
        let mut report = last.report.clone().unwrap_or_default();
        report.modules.truncate_lists(MAX_ITEMS);
        Some(Self {
            attempt: entry.attempt,
            target: entry.target.digest.clone(),
            outcome: last.kind.name().to_owned(),
            kind: failure.map(|failure| failure.kind),
            reason: failure.map_or_else(String::new, |failure| failure.reason.clone()),
            log: failure
                .map_or_else(String::new, |failure| tail(&failure.log, MAX_LOG_BYTES).to_owned()),
            opened: entry.events.first().map(|event| event.at),
            began: began.map(|event| event.at),
            ended: last.at,
            change: text.change,
            results: text.results,
            download_bytes: entry.plan.download_bytes,
            report,
        })
    }
}

/// Content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct HistoryDocument {
    /// In the order in which they ended.
    attempts: Vec<AttemptRecord>,
}

/// Stores the ended attempts.
#[derive(Debug)]
pub struct HistoryFile {
    path: PathBuf,
    /// The last attempt that was added.
    last: Option<Uuid>,
}

impl HistoryFile {
    /// Creates a history with the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), last: None }
    }

    /// Adds an attempt durably. An attempt that is already stored is not added again.
    pub fn add(&mut self, record: AttemptRecord) -> Result<(), FileError> {
        let attempt = record.attempt;
        if self.last == Some(attempt) {
            return Ok(());
        }
        let mut attempts = read_history(&self.path)?;
        if attempts.iter().all(|stored| stored.attempt != attempt) {
            attempts.push(record);
            let content = encode_within_limit(attempts);
            durable::replace_file(&self.path, &content, 0o600)?;
        }
        self.last = Some(attempt);
        Ok(())
    }
}

/// Reads the ended attempts in the order in which they ended; none if the file is invalid.
pub fn read_history(path: &Path) -> Result<Vec<AttemptRecord>, FileError> {
    let Some(content) = durable::read_file(path)? else {
        return Ok(Vec::new());
    };
    let document: HistoryDocument = serde_json::from_slice(&content).unwrap_or_else(|error| {
        tracing::warn!(%error, file = %path.display(), "the history is invalid, ignoring it");
        HistoryDocument::default()
    });
    Ok(document.attempts)
}

/// Encodes the latest attempts within the limits.
fn encode_within_limit(mut attempts: Vec<AttemptRecord>) -> Vec<u8> {
    attempts.drain(..attempts.len().saturating_sub(MAX_ATTEMPTS));
    let mut document = HistoryDocument { attempts };
    loop {
        let content = serde_json::to_vec(&document).unwrap_or_default();
        if content.len() <= MAX_FILE_BYTES || document.attempts.len() <= 1 {
            return content;
        }
        // Half of them at once: removing them one by one would encode the document a hundred times.
        let surplus = document.attempts.len().div_ceil(2);
        document.attempts.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AttemptEvent, Failure, ModuleParts, UpdateTarget};

    fn ended_entry(number: u128, kind: EventKind) -> JournalEntry {
        let target = UpdateTarget { digest: "d".into(), spec: ModuleParts::default() };
        let mut entry = JournalEntry::new(Uuid::from_u128(number), target);
        for (sequence, kind) in (1..).zip([EventKind::Began, kind]) {
            entry.events.push(AttemptEvent {
                sequence,
                at: DateTime::from_timestamp(i64::from(sequence), 0).unwrap(),
                boot_id: String::new(),
                kind,
                report: None,
                interruptions: Vec::new(),
            });
        }
        entry
    }

    fn finished_record(number: u128) -> AttemptRecord {
        ended_record(number, EventKind::Finished).unwrap()
    }

    fn ended_record(number: u128, kind: EventKind) -> Option<AttemptRecord> {
        AttemptRecord::from_entry(&ended_entry(number, kind), ReportText::default())
    }

    fn test_file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.json");
        (folder, path)
    }

    #[test]
    fn an_ended_attempt_is_stored_once() {
        let (_folder, path) = test_file();
        assert!(read_history(&path).unwrap().is_empty());
        let failure = Failure::with_log(FailureKind::Apply, "no", "output");
        let failed = ended_record(1, EventKind::Failed { failure }).unwrap();
        assert_eq!(failed.kind, Some(FailureKind::Apply));
        assert_eq!((failed.reason.as_str(), failed.log.as_str()), ("no", "output"));
        assert_eq!(failed.began.unwrap().timestamp(), 1);
        assert_eq!(failed.ended.timestamp(), 2);

        let mut history = HistoryFile::new(&path);
        history.add(failed.clone()).unwrap();
        history.add(failed.clone()).unwrap();
        HistoryFile::new(&path).add(failed.clone()).unwrap();
        assert_eq!(read_history(&path).unwrap(), [failed]);
        assert_eq!(ended_record(2, EventKind::VerifyBegun), None);
    }

    #[test]
    fn the_last_hundred_are_stored_or_fewer_if_they_are_long() {
        let (_folder, path) = test_file();
        let mut history = HistoryFile::new(&path);
        for number in 0..103 {
            history.add(finished_record(number)).unwrap();
        }
        let stored = read_history(&path).unwrap();
        assert_eq!(stored.len(), MAX_ATTEMPTS);
        assert_eq!(stored[0].attempt, Uuid::from_u128(3));

        let long =
            AttemptRecord { reason: "x".repeat(MAX_FILE_BYTES - 1_000), ..finished_record(200) };
        history.add(long.clone()).unwrap();
        let stored = read_history(&path).unwrap();
        assert!(stored.len() < MAX_ATTEMPTS);
        assert_eq!(stored.last(), Some(&long));
        assert!(std::fs::metadata(&path).unwrap().len() <= MAX_FILE_BYTES as u64);
    }

    #[test]
    fn an_invalid_history_is_replaced() {
        let (_folder, path) = test_file();
        std::fs::write(&path, "noise").unwrap();
        assert!(read_history(&path).unwrap().is_empty());
        HistoryFile::new(&path).add(finished_record(1)).unwrap();
        assert_eq!(read_history(&path).unwrap().len(), 1);
    }
}
