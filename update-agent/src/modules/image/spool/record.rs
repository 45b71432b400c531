//! The record of a download: `spool.json` next to the file.

use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_fetch::MIN_PROGRESS_BYTES;
use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError};
use crate::model::Sha256;

/// File name in the folder of the spool.
pub const FILE_NAME: &str = "spool.json";

/// Number of retry times in a row, named by the server, that counts as one failure.
const MAX_CONSECUTIVE_WAITS: u32 = 20;

/// A download without progress is removed after this time.
const MAX_IDLE_AGE: TimeDelta = TimeDelta::days(30);

/// A record that seems older was written or is read with a wrong clock.
const MAX_PLAUSIBLE_AGE: TimeDelta = TimeDelta::days(10 * 365);

/// State of a download. The bytes were synced before the record was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpoolRecord {
    /// Digest and name of the file.
    pub file: Sha256,
    /// Number of synced bytes. After a power cut a longer file may end in garbage.
    pub synced: u64,
    /// Size of the file at the server, if known.
    pub total: Option<u64>,
    /// Strong entity tag of the file at the server, if any.
    pub etag: Option<String>,
    /// Failed attempts in a row.
    pub attempts: u32,
    /// Highest number of bytes at a failure or restart.
    pub furthest: u64,
    /// Bytes received through range requests since failures were last reset.
    #[serde(default)]
    pub resumed_bytes: u64,
    /// Restarts since the download last exceeded `furthest`.
    #[serde(default)]
    pub restarts: u32,
    /// Retry times in a row that the server named.
    #[serde(default)]
    pub waits: u32,
    /// Whether the complete file once had the wrong digest.
    pub was_wrong: bool,
    /// Whether the server once had fewer bytes than were downloaded.
    pub was_shorter: bool,
    /// Whether the server never announced the size, so that `total` is only the end of a body.
    #[serde(default)]
    pub is_guessed: bool,
    /// Time of the record, by the node's clock.
    #[serde(default)]
    pub at: Option<DateTime<Utc>>,
}

impl SpoolRecord {
    /// Record of a file without any bytes.
    pub fn new(file: Sha256) -> Self {
        Self {
            file,
            synced: 0,
            total: None,
            etag: None,
            attempts: 0,
            furthest: 0,
            resumed_bytes: 0,
            restarts: 0,
            waits: 0,
            was_wrong: false,
            was_shorter: false,
            is_guessed: false,
            at: None,
        }
    }

    /// Reads the record in a folder; `None` if there is none or it is invalid.
    pub fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        let Some(content) = durable::read_file(&folder.join(FILE_NAME))? else {
            return Ok(None);
        };
        match serde_json::from_slice::<Self>(&content) {
            Ok(record) if record.total.is_none_or(|total| record.synced <= total) => {
                Ok(Some(record))
            }
            Ok(_) => {
                tracing::warn!("{FILE_NAME} names more bytes than the file has: it is ignored");
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(%error, "{FILE_NAME} is invalid: it is ignored");
                Ok(None)
            }
        }
    }

    /// Writes the record durably. That syncs the folder and thereby the name of the file.
    pub fn save(&self, folder: &Path) -> Result<(), FileError> {
        // Plain data of known types always serializes.
        let content = serde_json::to_vec(self).unwrap_or_default();
        durable::replace_file(&folder.join(FILE_NAME), &content, 0o600)
    }

    /// Records the number of synced bytes. `is_resumed` says whether the new ones came through a
    /// range request.
    ///
    /// A download from the first byte makes progress only beyond `furthest`. With a range request
    /// each byte counts, even on a connection that breaks every few seconds.
    pub fn record_progress(&mut self, bytes: u64, is_resumed: bool) {
        let added = bytes.saturating_sub(self.synced);
        self.synced = bytes;
        if added > 0 {
            self.waits = 0;
        }
        if is_resumed {
            self.resumed_bytes = self.resumed_bytes.saturating_add(added);
        }
        let is_further = bytes >= self.furthest.saturating_add(MIN_PROGRESS_BYTES);
        if is_further {
            self.restarts = 0;
        }
        if is_further || self.resumed_bytes >= MIN_PROGRESS_BYTES {
            self.attempts = 0;
            self.resumed_bytes = 0;
        }
    }

    /// Counts a failure. A server that breaks off at the same byte each time makes no progress.
    pub fn record_failure(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.furthest = self.furthest.max(self.synced);
    }

    /// Counts a retry time that the server named. Returns whether there were too many in a row.
    pub fn record_wait(&mut self) -> bool {
        self.waits = self.waits.saturating_add(1);
        let is_too_often = self.waits >= MAX_CONSECUTIVE_WAITS;
        if is_too_often {
            self.waits = 0;
        }
        is_too_often
    }

    /// Restarts from the first byte. The file at the server may be another one.
    pub fn restart(&mut self) {
        self.restarts = self.restarts.saturating_add(1);
        self.furthest = self.furthest.max(self.synced);
        self.synced = 0;
        self.total = None;
        self.etag = None;
        self.is_guessed = false;
    }

    /// Resets all counts, so that the next fetch has all attempts.
    pub fn reset_failures(&mut self) {
        self.attempts = 0;
        self.resumed_bytes = 0;
        self.restarts = 0;
        self.waits = 0;
    }

    /// Whether the record is too old; `None` if that is unknown because a clock jumped.
    pub fn is_old(&self, now: DateTime<Utc>) -> Option<bool> {
        let age = now - self.at?;
        let is_plausible = age >= TimeDelta::zero() && age <= MAX_PLAUSIBLE_AGE;
        is_plausible.then_some(age > MAX_IDLE_AGE)
    }

    /// Whether all bytes are synced.
    pub fn is_complete(&self) -> bool {
        self.total == Some(self.synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_and_a_torn_one_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(SpoolRecord::read(folder.path()).unwrap(), None);
        let mut record = SpoolRecord::new(Sha256::hash(b"x"));
        record.record_progress(7, false);
        record.at = Some(DateTime::UNIX_EPOCH);
        record.total = Some(9);
        record.etag = Some("\"a\"".to_owned());
        record.save(folder.path()).unwrap();
        assert_eq!(SpoolRecord::read(folder.path()).unwrap().as_ref(), Some(&record));

        let path = folder.path().join(FILE_NAME);
        let content = std::fs::read(&path).unwrap();
        for end in 0..content.len() {
            std::fs::write(&path, &content[..end]).unwrap();
            assert_eq!(SpoolRecord::read(folder.path()).unwrap(), None, "{end}");
        }
        record.synced = 10;
        record.save(folder.path()).unwrap();
        assert_eq!(SpoolRecord::read(folder.path()).unwrap(), None, "more than all");
    }

    #[test]
    fn a_record_of_an_older_agent_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = Sha256::hash(b"x");
        let text = format!(
            r#"{{"file":"{file}","synced":7,"total":9,"etag":null,"attempts":1,"furthest":3,"was_wrong":false,
            "was_shorter":true}}"#
        );
        std::fs::write(folder.path().join(FILE_NAME), text).unwrap();
        let expected = SpoolRecord {
            synced: 7,
            total: Some(9),
            attempts: 1,
            furthest: 3,
            was_shorter: true,
            ..SpoolRecord::new(file)
        };
        assert_eq!(SpoolRecord::read(folder.path()).unwrap(), Some(expected));
    }

    #[test]
    fn after_a_restart_only_new_progress_resets_failures() {
        let mut record = SpoolRecord::new(Sha256::hash(b"x"));
        record.record_progress(3 * MIN_PROGRESS_BYTES, false);
        record.record_failure();
        record.restart();
        record.record_failure();
        record.record_progress(4 * MIN_PROGRESS_BYTES - 1, false);
        assert_eq!((record.attempts, record.restarts), (2, 1), "as far as before");
        record.record_progress(4 * MIN_PROGRESS_BYTES, false);
        assert_eq!((record.attempts, record.restarts), (0, 0));
    }

    #[test]
    fn a_resumed_download_makes_progress_even_after_a_late_restart() {
        let mut record = SpoolRecord::new(Sha256::hash(b"x"));
        record.record_progress(100 * MIN_PROGRESS_BYTES, false);
        record.record_failure();
        record.restart();
        // The connection breaks after each 900 KiB, and the download resumes there.
        let part = 900 << 10;
        let mut at = 0;
        for number in 0..20 {
            at += part;
            record.record_progress(at, number > 0);
            record.record_failure();
            assert!(record.attempts < 5, "part {number}");
        }
        // Without progress there are failures nevertheless.
        for _ in 0..5 {
            record.record_progress(at, true);
            record.record_failure();
        }
        assert!(record.attempts >= 5);
    }

    #[test]
    fn retry_times_are_accepted_up_to_a_limit_and_progress_resets_the_count() {
        let mut record = SpoolRecord::new(Sha256::hash(b"x"));
        let put_off = |record: &mut SpoolRecord| {
            (1..=MAX_CONSECUTIVE_WAITS).position(|_| record.record_wait())
        };
        let last = usize::try_from(MAX_CONSECUTIVE_WAITS - 1).unwrap();
        assert_eq!(put_off(&mut record), Some(last));
        assert_eq!(put_off(&mut record), Some(last), "counted again");
        record.record_wait();
        record.record_progress(0, true);
        assert_eq!(record.waits, 1);
        record.record_progress(1, true);
        assert_eq!(record.waits, 0);
    }

    #[test]
    fn a_record_is_old_after_a_month_if_the_clock_is_plausible() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let written = |days: i64| SpoolRecord {
            at: Some(now - TimeDelta::days(days)),
            ..SpoolRecord::new(Sha256::hash(b"x"))
        };
        for (days, is_old) in [
            (0, Some(false)),
            (30, Some(false)),
            (31, Some(true)),
            (3_650, Some(true)),
            (20_000, None),
            (-1, None),
        ] {
            assert_eq!(written(days).is_old(now), is_old, "{days} days");
        }
        assert_eq!(SpoolRecord::new(Sha256::hash(b"x")).is_old(now), None);
    }
}
