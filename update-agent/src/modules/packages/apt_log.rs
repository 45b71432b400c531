//! apt's own log: the output of dpkg and of package scripts, also of runs that the agent did not observe.
//!
//! apt writes it only if it runs dpkg in a terminal. The agent has no terminal, so it writes the log itself.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use super::parse;
use crate::model::Failure;
use crate::paths::AgentPaths;

/// Path inside the managed root.
const LOG_PATH: &str = "/var/log/apt/term.log";

/// Only this much of the end is read.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// Current length of the log, to read later output with [`read_since`].
pub fn log_length(paths: &AgentPaths) -> u64 {
    fs::metadata(paths.inside(LOG_PATH)).map_or(0, |about| about.len())
}

/// Appends the output of apt. A failure is only logged, because the log is for people.
pub fn append(paths: &AgentPaths, output: &str) {
    let path = paths.inside(LOG_PATH);
    let text = format!(
        "\nLog started: by evenkeel-agent\n{}\nLog ended: by evenkeel-agent\n",
        output.trim_end()
    );
    let file = OpenOptions::new().create(true).append(true).mode(0o640).open(&path);
    if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
        tracing::warn!(%error, path = %path.display(), "cannot write apt's log");
    }
}

/// The output since the log had a length. The whole file if it is shorter than that: then it is a new file.
pub fn read_since(paths: &AgentPaths, length: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(paths.inside(LOG_PATH))?;
        let now = file.metadata()?.len();
        let start = if now < length { 0 } else { length };
        file.seek(SeekFrom::Start(start.max(now.saturating_sub(MAX_LOG_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    parse::clean_output(&String::from_utf8_lossy(&bytes))
}

/// Adds to a failure the lines of apt's log that it does not contain yet.
pub fn add_log(failure: Failure, log: &str) -> Failure {
    let new_lines: Vec<&str> = {
        let old_lines: BTreeSet<&str> = failure.log.lines().map(str::trim_end).collect();
        let is_new = |line: &&str| {
            let line = line.trim_end();
            let frame = line.starts_with("Log started:") || line.starts_with("Log ended:");
            !line.is_empty() && !frame && !old_lines.contains(line)
        };
        log.lines().filter(is_new).collect()
    };
    if new_lines.is_empty() {
        return failure;
    }
    let log_text = format!("{}\n{LOG_PATH}:\n{}\n", failure.log.trim_end(), new_lines.join("\n"));
    Failure::with_log(failure.kind, failure.reason, log_text.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FailureKind;

    #[test]
    fn only_new_output_is_read_and_all_of_a_new_file() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        assert_eq!((log_length(&paths), read_since(&paths, 7).as_str()), (0, ""));
        let log = paths.inside(LOG_PATH);
        fs::create_dir_all(log.parent().unwrap()).unwrap();
        fs::write(&log, "old\n").unwrap();
        let before = log_length(&paths);
        fs::write(&log, "old\nnew\r\n(Reading ... \r(Reading ... done)\n").unwrap();
        assert_eq!(read_since(&paths, before), "new\n(Reading ... done)\n");
        fs::write(&log, "a\n").unwrap();
        assert_eq!(read_since(&paths, before), "a\n");
    }

    #[test]
    fn appended_output_is_read_and_added_to_a_failure_without_its_frame() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        append(&paths, "the folder does not exist\n");
        assert_eq!(log_length(&paths), 0);
        fs::create_dir_all(paths.inside(LOG_PATH).parent().unwrap()).unwrap();
        append(&paths, "Setting up a ...\n");
        let start = log_length(&paths);
        append(&paths, "Setting up x ...\nx: fails on purpose\n");
        let failure = Failure::with_log(FailureKind::Apply, "why", "Setting up x ...\n");
        let extended = add_log(failure, &read_since(&paths, start));
        assert_eq!(extended.log, "Setting up x ...\n/var/log/apt/term.log:\nx: fails on purpose\n");
    }

    #[test]
    fn a_failure_gets_the_missing_log_lines() {
        let failure = Failure::with_log(FailureKind::Apply, "why", "Setting up x ...\n");
        let log = "Log started: 2026-11-22  12:33:52\nSetting up x ...\nx: fails on purpose\n\nLog ended: 2026-11-22  12:33:52\n";
        let extended = add_log(failure.clone(), log);
        assert_eq!(extended.log, "Setting up x ...\n/var/log/apt/term.log:\nx: fails on purpose\n");
        assert_eq!(extended.reason, "why");
        assert_eq!(add_log(failure.clone(), ""), failure);
        let bare = add_log(Failure::new(FailureKind::Apply, "why"), "x\n");
        assert_eq!(bare.log, "/var/log/apt/term.log:\nx\n");
    }
}
