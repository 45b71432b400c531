//! What is written down about the file that is being fetched: `spool.json`, beside it.

use std::path::Path;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError};
use crate::model::Sha256;

/// Its name in the spool's folder.
pub const NAME: &str = "spool.json";

/// So many bytes more show that the way is good: what failed before no longer counts.
const PROGRESS: u64 = 1 << 20;

/// A server that names a time to come again, and so often in a row, serves nobody: that counts as a failure.
const MOST_WAITS: u32 = 20;

/// What nobody went on with for so long is not kept.
const LONGEST_KEPT: TimeDelta = TimeDelta::days(30);

/// What seems to be older was written down, or is looked at, by a clock that is wrong.
const OLDEST: TimeDelta = TimeDelta::days(10 * 365);

/// How far a download has come. What it says of bytes was flushed before it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// What the file must be, and its name.
    pub file: Sha256,
    /// So many of its bytes are on the disk. A longer file lies: after a power cut it may end in what never came.
    pub synced: u64,
    /// Its size at the server, if that is known.
    pub total: Option<u64>,
    /// Its strong entity tag at the server, if it has one.
    pub etag: Option<String>,
    /// So often it failed in a row.
    pub attempts: u32,
    /// The furthest that a download had come when it failed or began anew.
    pub furthest: u64,
    /// So many bytes came behind what was there already, since failures were last forgotten.
    #[serde(default)]
    pub resumed: u64,
    /// So often it began anew since it last came further than ever before.
    #[serde(default)]
    pub begun: u32,
    /// So often in a row the server named a time to come again.
    #[serde(default)]
    pub waits: u32,
    /// Whether it was there once, whole and wrong.
    pub was_wrong: bool,
    /// Whether the server once had less of it than was there.
    pub was_past: bool,
    /// Whether the server never said the size, so that it is only where a body ended.
    #[serde(default)]
    pub is_guessed: bool,
    /// When this was written down, by the node's clock.
    #[serde(default)]
    pub at: Option<DateTime<Utc>>,
}

impl Record {
    /// Of a file of which nothing is there.
    pub fn new(file: Sha256) -> Self {
        Self {
            file,
            synced: 0,
            total: None,
            etag: None,
            attempts: 0,
            furthest: 0,
            resumed: 0,
            begun: 0,
            waits: 0,
            was_wrong: false,
            was_past: false,
            is_guessed: false,
            at: None,
        }
    }

    /// What is written in a folder; `None` if nothing is, or nothing that makes sense.
    pub fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        let Some(content) = durable::read(&folder.join(NAME))? else {
            return Ok(None);
        };
        match serde_json::from_slice::<Self>(&content) {
            Ok(record) if record.total.is_none_or(|total| record.synced <= total) => {
                Ok(Some(record))
            }
            Ok(_) => {
                tracing::warn!("{NAME} says that more was fetched than there is");
                Ok(None)
            }
            Err(error) => {
                tracing::warn!(%error, "{NAME} makes no sense");
                Ok(None)
            }
        }
    }

    /// Writes it down so that it survives a power cut. That flushes the folder, and with it the file's name.
    pub fn save(&self, folder: &Path) -> Result<(), FileError> {
        // Plain data of known types always becomes JSON.
        let content = serde_json::to_vec(self).unwrap_or_default();
        durable::replace(&folder.join(NAME), &content, 0o600)
    }

    /// So many bytes are on the disk now. What is new came on a line that began behind what was there, or at the first
    /// byte.
    ///
    /// Who begins at the first byte makes progress where nobody was before. Else each byte counts, also on a line that
    /// breaks off every few seconds.
    pub fn reached(&mut self, bytes: u64, is_resumed: bool) {
        let came = bytes.saturating_sub(self.synced);
        self.synced = bytes;
        if came > 0 {
            self.waits = 0;
        }
        if is_resumed {
            self.resumed = self.resumed.saturating_add(came);
        }
        let is_further = bytes >= self.furthest.saturating_add(PROGRESS);
        if is_further {
            self.begun = 0;
        }
        if is_further || self.resumed >= PROGRESS {
            self.attempts = 0;
            self.resumed = 0;
        }
    }

    /// It failed. A server that breaks off at the same place again and again makes no progress.
    pub fn failed(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.furthest = self.furthest.max(self.synced);
    }

    /// The server names a time to come again. Whether it did so too often.
    pub fn waited(&mut self) -> bool {
        self.waits = self.waits.saturating_add(1);
        let is_too_often = self.waits >= MOST_WAITS;
        if is_too_often {
            self.waits = 0;
        }
        is_too_often
    }

    /// From the first byte, and perhaps another file.
    pub fn anew(&mut self) {
        self.begun = self.begun.saturating_add(1);
        self.furthest = self.furthest.max(self.synced);
        self.synced = 0;
        self.total = None;
        self.etag = None;
        self.is_guessed = false;
    }

    /// Nothing that failed counts any more, so that who tries again has all attempts.
    pub fn forgive(&mut self) {
        self.attempts = 0;
        self.resumed = 0;
        self.begun = 0;
        self.waits = 0;
    }

    /// Whether nobody went on with it for too long; none if that cannot be told, because a clock jumped meanwhile.
    pub fn is_old(&self, now: DateTime<Utc>) -> Option<bool> {
        let age = now - self.at?;
        let can_be = age >= TimeDelta::zero() && age <= OLDEST;
        can_be.then_some(age > LONGEST_KEPT)
    }

    /// Whether nothing of the file is missing.
    pub fn is_whole(&self) -> bool {
        self.total == Some(self.synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_torn_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(folder.path()).unwrap(), None);
        let mut record = Record::new(Sha256::of(b"x"));
        record.reached(7, false);
        record.at = Some(DateTime::UNIX_EPOCH);
        record.total = Some(9);
        record.etag = Some("\"a\"".to_owned());
        record.save(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()).unwrap().as_ref(), Some(&record));

        let path = folder.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(Record::read(folder.path()).unwrap(), None, "{end}");
        }
        record.synced = 10;
        record.save(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()).unwrap(), None, "more than all");
    }

    #[test]
    fn what_an_agent_wrote_that_knew_less_is_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let file = Sha256::of(b"x");
        let text = format!(
            r#"{{"file":"{file}","synced":7,"total":9,"etag":null,"attempts":1,"furthest":3,"was_wrong":false,
            "was_past":true}}"#
        );
        std::fs::write(folder.path().join(NAME), text).unwrap();
        let expected = Record {
            synced: 7,
            total: Some(9),
            attempts: 1,
            furthest: 3,
            was_past: true,
            ..Record::new(file)
        };
        assert_eq!(Record::read(folder.path()).unwrap(), Some(expected));
    }

    #[test]
    fn from_the_first_byte_only_what_never_came_before_makes_failures_forgotten() {
        let mut record = Record::new(Sha256::of(b"x"));
        record.reached(3 * PROGRESS, false);
        record.failed();
        record.anew();
        record.failed();
        record.reached(4 * PROGRESS - 1, false);
        assert_eq!((record.attempts, record.begun), (2, 1), "as far as before");
        record.reached(4 * PROGRESS, false);
        assert_eq!((record.attempts, record.begun), (0, 0));
    }

    #[test]
    fn a_download_that_goes_on_makes_progress_also_after_it_began_anew_far_in() {
        let mut record = Record::new(Sha256::of(b"x"));
        record.reached(100 * PROGRESS, false);
        record.failed();
        record.anew();
        // It breaks off after each 900 KiB, and goes on there.
        let part = 900 << 10;
        let mut at = 0;
        for number in 0..20 {
            at += part;
            record.reached(at, number > 0);
            record.failed();
            assert!(record.attempts < 5, "part {number}");
        }
        // What does not move on is a failure all the same.
        for _ in 0..5 {
            record.reached(at, true);
            record.failed();
        }
        assert!(record.attempts >= 5);
    }

    #[test]
    fn a_server_may_put_off_the_agent_so_often_and_a_byte_makes_up_for_it() {
        let mut record = Record::new(Sha256::of(b"x"));
        let put_off = |record: &mut Record| (1..=MOST_WAITS).position(|_| record.waited());
        let last = usize::try_from(MOST_WAITS - 1).unwrap();
        assert_eq!(put_off(&mut record), Some(last));
        assert_eq!(put_off(&mut record), Some(last), "counted anew");
        record.waited();
        record.reached(0, true);
        assert_eq!(record.waits, 1);
        record.reached(1, true);
        assert_eq!(record.waits, 0);
    }

    #[test]
    fn what_nobody_went_on_with_is_old_after_a_month_if_the_clock_can_be_believed() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let written = |days: i64| Record {
            at: Some(now - TimeDelta::days(days)),
            ..Record::new(Sha256::of(b"x"))
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
        assert_eq!(Record::new(Sha256::of(b"x")).is_old(now), None);
    }
}
