//! apt's own log: what dpkg and the packages' scripts said, also where nobody listened.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};

use super::parse;
use crate::model::Failure;
use crate::place::Place;

/// Where it is, as seen from inside the managed root.
const LOG: &str = "/var/log/apt/term.log";

/// More than this is not read.
const MOST: u64 = 1 << 20;

/// How long it is; what is written from now on comes behind that.
pub fn length(place: &Place) -> u64 {
    fs::metadata(place.inside(LOG)).map_or(0, |about| about.len())
}

/// What was written since it had a length. All of it if it is shorter than that: then it is a new file.
pub fn since(place: &Place, length: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(place.inside(LOG))?;
        let now = file.metadata()?.len();
        let start = if now < length { 0 } else { length };
        file.seek(SeekFrom::Start(start.max(now.saturating_sub(MOST))))?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    parse::words(&String::from_utf8_lossy(&bytes))
}

/// A failure with what apt's log has and its own words do not.
pub fn with_log(failure: Failure, log: &str) -> Failure {
    let news: Vec<&str> = {
        let known: BTreeSet<&str> = failure.log.lines().map(str::trim_end).collect();
        let is_news = |line: &&str| {
            let line = line.trim_end();
            let frame = line.starts_with("Log started:") || line.starts_with("Log ended:");
            !line.is_empty() && !frame && !known.contains(line)
        };
        log.lines().filter(is_news).collect()
    };
    if news.is_empty() {
        return failure;
    }
    let words = format!("{}\n{LOG}:\n{}\n", failure.log.trim_end(), news.join("\n"));
    Failure::with_log(failure.kind, failure.reason, words.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FailureKind;

    #[test]
    fn only_what_was_written_since_is_read_and_all_of_a_new_file() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        assert_eq!((length(&place), since(&place, 7).as_str()), (0, ""));
        let log = place.inside(LOG);
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(&log, "old\n").unwrap();
        let before = length(&place);
        fs::write(&log, "old\nnew\r\n(Reading ... \r(Reading ... done)\n").unwrap();
        assert_eq!(since(&place, before), "new\n(Reading ... done)\n");
        fs::write(&log, "a\n").unwrap();
        assert_eq!(since(&place, before), "a\n");
    }

    #[test]
    fn a_failure_gets_what_it_does_not_say_itself() {
        let failure = Failure::with_log(FailureKind::Apply, "why", "Setting up x ...\n");
        let log = "Log started: 2026-11-22  12:33:52\nSetting up x ...\nx: fails on purpose\n\nLog ended: 2026-11-22  12:33:52\n";
        let told = with_log(failure.clone(), log);
        assert_eq!(
            told.log,
            "Setting up x ...\n/var/log/apt/term.log:\nx: fails on purpose\n"
        );
        assert_eq!(told.reason, "why");
        assert_eq!(with_log(failure.clone(), ""), failure);
        let bare = with_log(Failure::new(FailureKind::Apply, "why"), "x\n");
        assert_eq!(bare.log, "/var/log/apt/term.log:\nx\n");
    }
}
