//! The attempts that ended on this node, for `evenkeel-agent history`. Written durably when one ends; nothing else
//! depends on it, so a file that makes no sense is begun anew.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::journal::Entry;
use crate::model::{Account, Change, FailureKind, ImageChange, News, tail};

/// So many attempts are kept, the last ones.
const MOST: usize = 100;
/// A file of more bytes than this loses its oldest attempts sooner.
const MOST_BYTES: usize = 1 << 20;
/// So many changes of an attempt are kept.
const MOST_CHANGES: usize = 1_000;
/// So many bytes of the words of a tool that failed are kept.
const MOST_LOG: usize = 4 << 10;

/// An attempt that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub attempt: Uuid,
    /// Digest of what was wanted.
    pub target: String,
    /// The name of its last event.
    pub outcome: String,
    /// Why it did not end well, for programs; none if it did.
    pub kind: Option<FailureKind>,
    /// Why it did not end well; empty if it did.
    pub reason: String,
    /// The last lines of the tool that failed; empty if none did.
    pub log: String,
    /// When it was opened, by the node's clock, as all times here.
    pub opened: Option<DateTime<Utc>>,
    /// When the node began to be changed; none if it was not.
    pub began: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended: DateTime<Utc>,
    /// What was to be changed, the first of it if it was much.
    pub changes: Vec<Change>,
    /// How many packages were to be changed.
    pub changed: usize,
    /// Bytes that were to be fetched.
    pub download_bytes: u64,
    /// How it went.
    pub account: Account,
    /// The image before and after, if one was to be booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageChange>,
    /// The version of the image that the node then ran, if its image was to be changed and that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<String>,
}

impl Record {
    /// What is kept of an attempt; `None` if it has not ended.
    pub fn of(entry: &Entry) -> Option<Self> {
        let last = entry.events.last()?;
        if !last.news.is_terminal() {
            return None;
        }
        let failure = last.news.failure();
        let began = entry.events.iter().find(|event| event.news == News::Began);
        let changes = entry.plan.changes.iter();
        Some(Self {
            attempt: entry.attempt,
            target: entry.target.digest.clone(),
            outcome: last.news.name().to_owned(),
            kind: failure.map(|failure| failure.kind),
            reason: failure.map_or_else(String::new, |failure| failure.reason.clone()),
            log: failure.map_or_else(String::new, |failure| {
                tail(&failure.log, MOST_LOG).to_owned()
            }),
            opened: entry.events.first().map(|event| event.at),
            began: began.map(|event| event.at),
            ended: last.at,
            changes: changes.take(MOST_CHANGES).cloned().collect(),
            changed: entry.plan.changes.len(),
            download_bytes: entry.plan.download_bytes,
            account: last.account.clone().unwrap_or_default(),
            image: entry.plan.image.clone(),
            booted: last.news.booted().map(str::to_owned),
        })
    }
}

/// What is in the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Page {
    /// In the order in which they ended.
    attempts: Vec<Record>,
}

/// Keeps the attempts that ended.
#[derive(Debug)]
pub struct HistoryFile {
    path: PathBuf,
    /// The attempt that was written last.
    last: Option<Uuid>,
}

impl HistoryFile {
    /// The history at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            last: None,
        }
    }

    /// Adds an attempt; it is on disk when this returns. One that is there already is not added again.
    pub fn add(&mut self, record: Record) -> Result<(), FileError> {
        let attempt = record.attempt;
        if self.last == Some(attempt) {
            return Ok(());
        }
        let mut attempts = read(&self.path)?;
        if attempts.iter().all(|known| known.attempt != attempt) {
            attempts.push(record);
            let content = fitting(attempts);
            durable::replace(&self.path, &content, 0o600)?;
        }
        self.last = Some(attempt);
        Ok(())
    }
}

/// The attempts that ended, in that order; none if the file makes no sense.
pub fn read(path: &Path) -> Result<Vec<Record>, FileError> {
    let Some(content) = durable::read(path)? else {
        return Ok(Vec::new());
    };
    let page: Page = serde_json::from_slice(&content).unwrap_or_else(|error| {
        tracing::warn!(%error, file = %path.display(), "the history makes no sense");
        Page::default()
    });
    Ok(page.attempts)
}

/// The last attempts, as many as may be kept.
fn fitting(mut attempts: Vec<Record>) -> Vec<u8> {
    attempts.drain(..attempts.len().saturating_sub(MOST));
    let mut page = Page { attempts };
    loop {
        let content = serde_json::to_vec(&page).unwrap_or_default();
        if content.len() <= MOST_BYTES || page.attempts.len() <= 1 {
            return content;
        }
        // Half at once: to try each one would write the page a hundred times.
        let surplus = page.attempts.len().div_ceil(2);
        page.attempts.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Event, Failure, Target, Wish};

    fn entry(number: u128, news: News) -> Entry {
        let target = Target {
            digest: "d".into(),
            wish: Wish::Unknown,
        };
        let mut entry = Entry::new(Uuid::from_u128(number), target);
        for (sequence, news) in (1..).zip([News::Began, news]) {
            entry.events.push(Event {
                sequence,
                at: DateTime::from_timestamp(i64::from(sequence), 0).unwrap(),
                boot_id: String::new(),
                news,
                account: None,
            });
        }
        entry
    }

    fn finished(number: u128) -> Record {
        let (results, booted) = (Vec::new(), None);
        Record::of(&entry(number, News::Finished { results, booted })).unwrap()
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.json");
        (folder, path)
    }

    #[test]
    fn an_attempt_is_kept_with_its_end_and_only_once() {
        let (_folder, path) = file();
        assert!(read(&path).unwrap().is_empty());
        let failure = Failure::with_log(FailureKind::Apply, "no", "words");
        let news = News::Failed {
            failure,
            results: Vec::new(),
            booted: None,
        };
        let failed = Record::of(&entry(1, news)).unwrap();
        assert_eq!(failed.kind, Some(FailureKind::Apply));
        assert_eq!(
            (failed.reason.as_str(), failed.log.as_str()),
            ("no", "words")
        );
        assert_eq!(failed.began.unwrap().timestamp(), 1);
        assert_eq!(failed.ended.timestamp(), 2);

        let mut history = HistoryFile::at(&path);
        history.add(failed.clone()).unwrap();
        history.add(failed.clone()).unwrap();
        HistoryFile::at(&path).add(failed.clone()).unwrap();
        assert_eq!(read(&path).unwrap(), [failed]);
        assert_eq!(Record::of(&entry(2, News::VerifyBegun)), None);
    }

    #[test]
    fn the_last_hundred_are_kept_and_fewer_if_they_are_long() {
        let (_folder, path) = file();
        let mut history = HistoryFile::at(&path);
        for number in 0..103 {
            history.add(finished(number)).unwrap();
        }
        let kept = read(&path).unwrap();
        assert_eq!(kept.len(), MOST);
        assert_eq!(kept[0].attempt, Uuid::from_u128(3));

        let long = Record {
            reason: "x".repeat(MOST_BYTES - 1_000),
            ..finished(200)
        };
        history.add(long.clone()).unwrap();
        let kept = read(&path).unwrap();
        assert!(kept.len() < MOST);
        assert_eq!(kept.last(), Some(&long));
        assert!(std::fs::metadata(&path).unwrap().len() <= MOST_BYTES as u64);
    }

    #[test]
    fn a_history_that_makes_no_sense_is_begun_anew() {
        let (_folder, path) = file();
        std::fs::write(&path, "noise").unwrap();
        assert!(read(&path).unwrap().is_empty());
        HistoryFile::at(&path).add(finished(1)).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
    }
}
