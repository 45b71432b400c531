//! Offline grants, which the server gives ahead for the time when it cannot be reached.
//!
//! A grant is stored on disk, because a node may restart while it is offline. An unreadable grant
//! is not valid, and neither is one that was issued in the future: in that case the clock of the
//! machine cannot tell when a window is open.

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::chain;
use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError};

/// Version of the file format. A file of another version contains no valid grant.
const FORMAT_VERSION: u32 = 1;

/// A grant that differs from the stored one only by a later expiry is written at most this often.
const MIN_REWRITE_INTERVAL: TimeDelta = TimeDelta::hours(1);

/// Permission to change the node once without contacting the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfflineGrant {
    /// Digest of the only target that the grant is valid for.
    pub target_digest: String,
    /// The change must begin in one of these windows.
    pub windows: Vec<GrantWindow>,
    /// The change must begin before this instant.
    pub expires: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantWindow {
    /// First instant in the window.
    pub start: DateTime<Utc>,
    /// First instant after the window.
    pub end: DateTime<Utc>,
}

/// Content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantDocument {
    format: u32,
    /// When the server issued the grant, by the server's clock.
    issued: DateTime<Utc>,
    grant: OfflineGrant,
}

/// Stores the last grant.
#[derive(Debug)]
pub struct GrantFile {
    path: PathBuf,
    stored: Option<GrantDocument>,
    may_exist: bool,
}

impl GrantFile {
    /// Loads the stored grant.
    pub fn load(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            stored: read_grant(path),
            may_exist: !matches!(path.try_exists(), Ok(false)),
        }
    }

    /// The stored grant.
    pub fn get(&self) -> Option<&OfflineGrant> {
        self.stored.as_ref().map(|document| &document.grant)
    }

    /// Replaces the stored grant by the server's latest one, or removes it if there is none. Fails
    /// only if the old grant cannot be removed.
    pub fn store(
        &mut self,
        grant: Option<&OfflineGrant>,
        issued: Option<DateTime<Utc>>,
    ) -> Result<(), FileError> {
        // Without the issue time, a clock that was turned back could not be detected later.
        let (Some(grant), Some(issued)) = (grant, issued) else {
            return self.remove();
        };
        let document = GrantDocument { format: FORMAT_VERSION, issued, grant: grant.clone() };
        if self.stored.as_ref().is_some_and(|stored| stored.covers(&document)) {
            return Ok(());
        }
        let content = serde_json::to_vec(&document).unwrap_or_default();
        self.may_exist = true;
        match durable::replace_file(&self.path, &content, 0o600) {
            Ok(()) => {
                self.stored = Some(document);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot store the offline grant, dropping it");
                // The old grant must not be valid again after a restart.
                self.remove()
            }
        }
    }

    /// Removes the grant for good: it was used or withdrawn.
    pub fn remove(&mut self) -> Result<(), FileError> {
        self.stored = None;
        if self.may_exist {
            durable::remove_file(&self.path)?;
        }
        self.may_exist = false;
        Ok(())
    }

    /// Deadline for starting the change to a target without the server; `None` if it must not start
    /// now.
    pub fn start_deadline(&self, target_digest: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let GrantDocument { issued, grant, .. } = self.stored.as_ref()?;
        if grant.target_digest != target_digest || now < *issued || now >= grant.expires {
            return None;
        }
        let open = |window: &&GrantWindow| window.start <= now && now < window.end;
        let window = grant.windows.iter().find(open)?;
        Some(window.end.min(grant.expires))
    }

    /// When the next window opens in which a change may start without the server.
    pub fn next_window_start(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let starts = self.get()?.windows.iter().map(|window| window.start);
        starts.filter(|start| *start > now).min()
    }
}

impl GrantDocument {
    /// Whether this grant can be kept instead of a newer one: it allows nothing more, and its
    /// expiry is so little earlier that a write to the disk is not worth it.
    fn covers(&self, newer: &Self) -> bool {
        let longer = newer.grant.expires - self.grant.expires;
        self.grant.target_digest == newer.grant.target_digest
            && self.grant.windows == newer.grant.windows
            && (TimeDelta::zero()..MIN_REWRITE_INTERVAL).contains(&longer)
            && self.issued <= newer.issued
    }
}

fn read_grant(path: &Path) -> Option<GrantDocument> {
    let content = match durable::read_file(path) {
        Ok(content) => content?,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "cannot read the offline grant, ignoring it");
            return None;
        }
    };
    let document: Option<GrantDocument> = serde_json::from_slice(&content).ok();
    let document = document.filter(|document| document.format == FORMAT_VERSION);
    if document.is_none() {
        tracing::warn!(file = %path.display(), "the offline grant is invalid, ignoring it");
    }
    document
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn test_time(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn new_grant(windows: &[(i64, i64)], expires: i64) -> OfflineGrant {
        let window = |&(start, end): &(i64, i64)| GrantWindow {
            start: test_time(start),
            end: test_time(end),
        };
        OfflineGrant {
            target_digest: "d".into(),
            windows: windows.iter().map(window).collect(),
            expires: test_time(expires),
        }
    }

    fn test_file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grant.json");
        (folder, path)
    }

    #[test]
    fn a_grant_is_valid_for_its_target_in_its_windows_until_it_expires() {
        let (_folder, path) = test_file();
        let mut grants = GrantFile::load(&path);
        let grant = new_grant(&[(10, 20), (30, 60)], 50);
        grants.store(Some(&grant), Some(test_time(0))).unwrap();
        for (now, before) in [
            (-1, None),
            (0, None),
            (9, None),
            (10, Some(20)),
            (19, Some(20)),
            (20, None),
            (30, Some(50)),
            (49, Some(50)),
            (50, None),
            (59, None),
        ] {
            assert_eq!(
                grants.start_deadline("d", test_time(now)),
                before.map(test_time),
                "at {now}"
            );
            assert_eq!(
                grants.start_deadline("e", test_time(now)),
                None,
                "another target, at {now}"
            );
        }
        assert_eq!(grants.next_window_start(test_time(10)), Some(test_time(30)));
        assert_eq!(grants.next_window_start(test_time(30)), None);
    }

    #[test]
    fn a_clock_before_the_issue_time_opens_no_window() {
        let (_folder, path) = test_file();
        let mut grants = GrantFile::load(&path);
        let grant = new_grant(&[(-100, 100)], 100);
        grants.store(Some(&grant), Some(test_time(0))).unwrap();
        assert_eq!(grants.start_deadline("d", test_time(-1)), None);
        assert_eq!(grants.start_deadline("d", test_time(0)), Some(test_time(100)));
        grants.store(Some(&grant), None).unwrap();
        assert_eq!(grants.start_deadline("d", test_time(0)), None, "the issue time is unknown");
    }

    #[test]
    fn the_servers_last_grant_survives_a_restart() {
        let (_folder, path) = test_file();
        let mut grants = GrantFile::load(&path);
        grants.store(Some(&new_grant(&[(0, 10)], 10)), Some(test_time(0))).unwrap();
        let narrower = new_grant(&[(0, 5)], 10);
        grants.store(Some(&narrower), Some(test_time(1))).unwrap();
        assert_eq!(GrantFile::load(&path).get(), Some(&narrower));
        let shorter = new_grant(&[(0, 5)], 9);
        grants.store(Some(&shorter), Some(test_time(2))).unwrap();
        assert_eq!(GrantFile::load(&path).get(), Some(&shorter));
        grants.store(None, Some(test_time(3))).unwrap();
        assert_eq!(GrantFile::load(&path).get(), None);
        assert!(!path.exists());
    }

    #[test]
    fn a_grant_with_only_a_later_expiry_is_rewritten_hourly() {
        let (_folder, path) = test_file();
        let mut grants = GrantFile::load(&path);
        let day = 86_400;
        for minute in 0..=60 {
            let grant = new_grant(&[(0, 10)], day + minute * 60);
            grants.store(Some(&grant), Some(test_time(minute * 60))).unwrap();
            let stored = GrantFile::load(&path).get().unwrap().expires;
            let expected = if minute < 60 { 0 } else { 3_600 };
            assert_eq!(stored, test_time(day + expected), "in minute {minute}");
        }
    }

    #[test]
    fn a_grant_that_cannot_be_stored_is_dropped_without_error() {
        let path = Path::new("/proc/nowhere/grant.json");
        let mut grants = GrantFile::load(path);
        grants.store(None, None).unwrap();
        let grant = new_grant(&[(0, 10)], 10);
        grants.store(Some(&grant), Some(test_time(0))).unwrap();
        assert_eq!(grants.get(), None);
    }

    #[test]
    fn an_invalid_file_is_no_grant() {
        let (_folder, path) = test_file();
        let mut grants = GrantFile::load(&path);
        let grant = new_grant(&[(0, 10)], 10);
        grants.store(Some(&grant), Some(test_time(0))).unwrap();
        let sound = fs::read_to_string(&path).unwrap();
        for bad in [
            sound.replace("\"format\":1", "\"format\":2"),
            sound[..sound.len() / 2].to_owned(),
            sound.replace("\"expires\"", "\"expired\""),
            "\u{0}".repeat(64),
            String::new(),
        ] {
            fs::write(&path, &bad).unwrap();
            let mut grants = GrantFile::load(&path);
            assert_eq!(grants.get(), None, "{bad}");
            grants.store(None, Some(test_time(1))).unwrap();
            assert!(!path.exists());
        }
        fs::create_dir(&path).unwrap();
        assert_eq!(GrantFile::load(&path).get(), None, "it cannot be read");
    }
}
