//! Leave that the server gave ahead, for the time when it cannot be reached.
//!
//! Kept on disk, because a node may be started again far from its server. A grant that cannot be read is no grant, and
//! so is one that seems to have been given in the future: then this machine's clock cannot tell when a window is open.

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::chain;
use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError};

/// The form of the file. A file of another form is no grant.
const FORMAT: u32 = 1;

/// A grant that only lives longer than the one that is kept is written so often and not with every answer.
const RENEWAL: TimeDelta = TimeDelta::hours(1);

/// Leave to change the node without asking, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Digest of the one target that it is for.
    pub target_digest: String,
    /// The change begins inside one of these.
    pub windows: Vec<Window>,
    /// What has not begun by then must not begin.
    pub expires: DateTime<Utc>,
}

/// A stretch of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The first instant in it.
    pub start: DateTime<Utc>,
    /// The first instant after it.
    pub end: DateTime<Utc>,
}

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    format: u32,
    /// When the server gave it, by the server's clock.
    issued: DateTime<Utc>,
    grant: Grant,
}

/// Keeps the last grant.
#[derive(Debug)]
pub struct GrantFile {
    path: PathBuf,
    kept: Option<Page>,
    /// Whether there may be a file.
    there: bool,
}

impl GrantFile {
    /// Goes on with the grant that is there.
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            kept: read(path),
            there: !matches!(path.try_exists(), Ok(false)),
        }
    }

    /// The grant that is kept.
    pub fn get(&self) -> Option<&Grant> {
        self.kept.as_ref().map(|page| &page.grant)
    }

    /// What the server said last replaces what it said before; without a grant there is none any more. It fails only if
    /// an earlier grant cannot be taken away.
    pub fn hear(
        &mut self,
        grant: Option<&Grant>,
        issued: Option<DateTime<Utc>>,
    ) -> Result<(), FileError> {
        // Without the time of its issue nobody can tell later whether the clock was turned back.
        let (Some(grant), Some(issued)) = (grant, issued) else {
            return self.forget();
        };
        let page = Page {
            format: FORMAT,
            issued,
            grant: grant.clone(),
        };
        if self
            .kept
            .as_ref()
            .is_some_and(|kept| kept.stands_for(&page))
        {
            return Ok(());
        }
        let content = serde_json::to_vec(&page).unwrap_or_default();
        self.there = true;
        match durable::replace(&self.path, &content, 0o600) {
            Ok(()) => {
                self.kept = Some(page);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the grant cannot be kept, so there is none");
                // The earlier one is not to come back after a restart.
                self.forget()
            }
        }
    }

    /// Takes the leave away, for good: it was used or withdrawn.
    pub fn forget(&mut self) -> Result<(), FileError> {
        self.kept = None;
        if self.there {
            durable::remove(&self.path)?;
        }
        self.there = false;
        Ok(())
    }

    /// Until when the change to a target may begin without asking; `None` if it may not begin now.
    pub fn before(&self, target_digest: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let Page { issued, grant, .. } = self.kept.as_ref()?;
        if grant.target_digest != target_digest || now < *issued || now >= grant.expires {
            return None;
        }
        let open = |window: &&Window| window.start <= now && now < window.end;
        let window = grant.windows.iter().find(open)?;
        Some(window.end.min(grant.expires))
    }

    /// When the next window opens in which a change may begin without asking.
    pub fn next_window(&self, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let starts = self.get()?.windows.iter().map(|window| window.start);
        starts.filter(|start| *start > now).min()
    }
}

impl Page {
    /// Whether this may stay in the place of a newer one: it allows nothing that the newer one does not, and it ends so
    /// little sooner that a write to the disk is not worth it.
    fn stands_for(&self, newer: &Self) -> bool {
        let longer = newer.grant.expires - self.grant.expires;
        self.grant.target_digest == newer.grant.target_digest
            && self.grant.windows == newer.grant.windows
            && (TimeDelta::zero()..RENEWAL).contains(&longer)
            && self.issued <= newer.issued
    }
}

fn read(path: &Path) -> Option<Page> {
    let content = match durable::read(path) {
        Ok(content) => content?,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "the grant cannot be read, so there is none");
            return None;
        }
    };
    let page: Option<Page> = serde_json::from_slice(&content).ok();
    let page = page.filter(|page| page.format == FORMAT);
    if page.is_none() {
        tracing::warn!(file = %path.display(), "the grant makes no sense, so there is none");
    }
    page
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn grant(windows: &[(i64, i64)], expires: i64) -> Grant {
        let window = |&(start, end): &(i64, i64)| Window {
            start: at(start),
            end: at(end),
        };
        Grant {
            target_digest: "d".into(),
            windows: windows.iter().map(window).collect(),
            expires: at(expires),
        }
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("grant.json");
        (folder, path)
    }

    #[test]
    fn leave_holds_inside_the_windows_for_its_target_until_it_ends() {
        let (_folder, path) = file();
        let mut grants = GrantFile::open(&path);
        let given = grant(&[(10, 20), (30, 60)], 50);
        grants.hear(Some(&given), Some(at(0))).unwrap();
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
            assert_eq!(grants.before("d", at(now)), before.map(at), "at {now}");
            assert_eq!(grants.before("e", at(now)), None, "for another, at {now}");
        }
        assert_eq!(grants.next_window(at(10)), Some(at(30)));
        assert_eq!(grants.next_window(at(30)), None);
    }

    #[test]
    fn a_clock_that_stands_before_the_issue_opens_no_window() {
        let (_folder, path) = file();
        let mut grants = GrantFile::open(&path);
        let given = grant(&[(-100, 100)], 100);
        grants.hear(Some(&given), Some(at(0))).unwrap();
        assert_eq!(grants.before("d", at(-1)), None);
        assert_eq!(grants.before("d", at(0)), Some(at(100)));
        grants.hear(Some(&given), None).unwrap();
        assert_eq!(grants.before("d", at(0)), None, "nobody knows its issue");
    }

    #[test]
    fn the_last_word_of_the_server_outlives_the_agent() {
        let (_folder, path) = file();
        let mut grants = GrantFile::open(&path);
        grants
            .hear(Some(&grant(&[(0, 10)], 10)), Some(at(0)))
            .unwrap();
        let narrower = grant(&[(0, 5)], 10);
        grants.hear(Some(&narrower), Some(at(1))).unwrap();
        assert_eq!(GrantFile::open(&path).get(), Some(&narrower));
        let shorter = grant(&[(0, 5)], 9);
        grants.hear(Some(&shorter), Some(at(2))).unwrap();
        assert_eq!(GrantFile::open(&path).get(), Some(&shorter));
        grants.hear(None, Some(at(3))).unwrap();
        assert_eq!(GrantFile::open(&path).get(), None);
        assert!(!path.exists());
    }

    #[test]
    fn a_grant_that_only_lives_longer_is_written_now_and_then() {
        let (_folder, path) = file();
        let mut grants = GrantFile::open(&path);
        let day = 86_400;
        for minute in 0..=60 {
            let given = grant(&[(0, 10)], day + minute * 60);
            grants.hear(Some(&given), Some(at(minute * 60))).unwrap();
            let kept = GrantFile::open(&path).get().unwrap().expires;
            let expected = if minute < 60 { 0 } else { 3_600 };
            assert_eq!(kept, at(day + expected), "in minute {minute}");
        }
    }

    #[test]
    fn a_grant_that_cannot_be_kept_is_none_and_is_no_error() {
        let path = Path::new("/proc/nowhere/grant.json");
        let mut grants = GrantFile::open(path);
        grants.hear(None, None).unwrap();
        let given = grant(&[(0, 10)], 10);
        grants.hear(Some(&given), Some(at(0))).unwrap();
        assert_eq!(grants.get(), None);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_no_grant() {
        let (_folder, path) = file();
        let mut grants = GrantFile::open(&path);
        let given = grant(&[(0, 10)], 10);
        grants.hear(Some(&given), Some(at(0))).unwrap();
        let sound = fs::read_to_string(&path).unwrap();
        for bad in [
            sound.replace("\"format\":1", "\"format\":2"),
            sound[..sound.len() / 2].to_owned(),
            sound.replace("\"expires\"", "\"expired\""),
            "\u{0}".repeat(64),
            String::new(),
        ] {
            fs::write(&path, &bad).unwrap();
            let mut grants = GrantFile::open(&path);
            assert_eq!(grants.get(), None, "{bad}");
            grants.hear(None, Some(at(1))).unwrap();
            assert!(!path.exists());
        }
        fs::create_dir(&path).unwrap();
        assert_eq!(GrantFile::open(&path).get(), None, "it cannot be read");
    }
}
