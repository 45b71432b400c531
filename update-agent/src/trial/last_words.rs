//! What the machine said last, for the people who have to learn why an image was given up.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::model::{Failure, tail};
use crate::place::Place;
use crate::runner::{Command, RunError, Runner};

/// So many of the last lines are told.
const LINES: usize = 200;

/// The kernel's log is read so often at most: more records than its buffer holds, and an end also where it logs faster
/// than it is read.
const MOST_READS: usize = 100_000;

/// The machine is about to be reset: who does not answer in this time is not heard.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the kernel's last words lie that outlived a reset, and where systemd-pstore.service(8) moves them.
const PSTORE: [&str; 2] = ["/sys/fs/pstore", "/var/lib/systemd/pstore"];

/// What is read of each of them at most, in bytes. A record is far smaller.
const MOST_RECORD: u64 = 256 << 10;

/// The last lines of this boot: of the journal, else of the kernel alone. At most [`Failure::MAX_LOG`] bytes.
pub(super) async fn of_this_boot(place: &Place, runner: &dyn Runner) -> String {
    let lines = LINES.to_string();
    let command = Command::new("journalctl", PATIENCE).with([
        "--boot",
        "--quiet",
        "--no-pager",
        "--output=short-monotonic",
        "--lines",
        &lines,
    ]);
    let said = match runner.run(&command).await {
        Ok(output) if output.succeeded() => output.stdout,
        Err(RunError::Deadline { said, .. }) => said,
        Ok(_) | Err(_) => String::new(),
    };
    let said = if said.trim().is_empty() {
        of_the_kernel(&place.inside("/dev/kmsg"))
    } else {
        said
    };
    tail(&said, Failure::MAX_LOG).to_owned()
}

/// What the kernel wrote down before an end of which nothing else is known, since an instant. At most
/// [`Failure::MAX_LOG`] bytes; empty if there is nothing.
pub fn of_silent_end(place: &Place, since: DateTime<Utc>) -> String {
    let mut records = Vec::new();
    for folder in PSTORE {
        collect(&place.inside(folder), since.into(), 1, &mut records);
    }
    // By time, then by name: a long record has several parts.
    records.sort();
    let mut said = String::new();
    for (_, path) in records {
        let mut bytes = Vec::new();
        let file = File::open(&path);
        let read = file.and_then(|file| file.take(MOST_RECORD).read_to_end(&mut bytes));
        if let Err(error) = read {
            tracing::debug!(%error, path = %path.display(), "a kernel's record cannot be read");
        }
        said.push_str(&String::from_utf8_lossy(&bytes));
        said = tail(&said, Failure::MAX_LOG).to_owned();
    }
    said
}

/// The records in a folder and in those that lie in it, `depth` deep.
fn collect(folder: &Path, since: SystemTime, depth: u32, records: &mut Vec<(SystemTime, PathBuf)>) {
    // Without such a folder there is nothing to be told.
    let Ok(found) = fs::read_dir(folder) else {
        return;
    };
    for entry in found.flatten() {
        let Ok(about) = entry.metadata() else {
            continue;
        };
        if about.is_dir() && depth > 0 {
            collect(&entry.path(), since, depth - 1, records);
        }
        let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if about.is_file() && written >= since {
            records.push((written, entry.path()));
        }
    }
}

/// The kernel's last lines. Reading one record at a time never waits (the kernel's ABI document, dev-kmsg).
fn of_the_kernel(path: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(kmsg) => last_lines(File::from(kmsg)),
        Err(error) => format!("nothing can be learnt of this boot: {error}\n"),
    }
}

/// The last lines of records, one of which is read at a time.
fn last_lines(mut kmsg: impl Read) -> String {
    let mut lines: VecDeque<String> = VecDeque::with_capacity(LINES);
    let mut buffer = [0; 8 << 10];
    for _ in 0..MOST_READS {
        let count = match kmsg.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            // The record was overwritten before it was read, or reading was interrupted: the next one comes.
            Err(error) if is_passing(&error) => continue,
            // There is no more of them for now, or they cannot be read.
            Err(_) => break,
        };
        let records = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
        for line in records.lines() {
            // Lines that begin with a space say more about the record before.
            if let Some((_, text)) = line.split_once(';').filter(|_| !line.starts_with(' ')) {
                if lines.len() == LINES {
                    lines.pop_front();
                }
                lines.push_back(text.to_owned());
            }
        }
    }
    let mut said = String::new();
    for line in lines {
        said.push_str(&line);
        said.push('\n');
    }
    said
}

fn is_passing(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PIPE.raw_os_error())
        || error.kind() == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::hooks::fake::{self, Fake};

    #[tokio::test]
    async fn the_journal_is_told_where_there_is_one() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let runner = Fake::default().says("journalctl", 0, "[1.0] one\n[2.0] two\n");
        let said = of_this_boot(&place, &runner).await;
        assert_eq!(said, "[1.0] one\n[2.0] two\n");
        assert!(runner.asked()[0].ends_with("--lines 200"));
    }

    #[tokio::test(start_paused = true)]
    async fn else_the_kernels_last_lines_are_told() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        fake::folder(root.path(), "/dev");
        let mut records = String::new();
        for number in 0..300 {
            writeln!(records, "6,{number},0,-;line {number}\n A=b;c").unwrap();
        }
        fs::write(root.path().join("dev/kmsg"), records).unwrap();
        for runner in [
            Fake::default(),
            Fake::default().says("journalctl", 1, "No journal files were found.\n"),
            Fake::default().says("journalctl", 0, ""),
        ] {
            let said = of_this_boot(&place, &runner).await;
            assert_eq!(said.lines().count(), LINES);
            assert!(said.starts_with("line 100\n"), "{said}");
            assert!(said.ends_with("line 299\n"), "{said}");
        }
        let said = of_this_boot(&place, &Fake::default().hangs("journalctl")).await;
        assert_eq!(said, "thinking\n", "what was said in time is told");
    }

    #[test]
    fn a_kernel_that_logs_without_end_is_not_heard_without_end() {
        let mut reads = 0;
        let said = last_lines(Endless(&mut reads));
        assert_eq!(reads, MOST_READS);
        assert_eq!(said.lines().count(), LINES);
        assert!(said.ends_with(&format!("line {MOST_READS}\n")), "{said}");
    }

    /// Logs a line whenever it is read.
    struct Endless<'a>(&'a mut usize);

    impl Read for Endless<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            *self.0 += 1;
            let record = format!("6,{0},0,-;line {0}\n", self.0);
            buffer[..record.len()].copy_from_slice(record.as_bytes());
            Ok(record.len())
        }
    }

    #[tokio::test]
    async fn a_machine_without_words_says_so_and_a_long_log_is_cut() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let said = of_this_boot(&place, &Fake::default()).await;
        assert!(said.starts_with("nothing can be learnt"), "{said}");

        let long = format!("{}\nthe end\n", "x".repeat(Failure::MAX_LOG));
        let runner = Fake::default().says("journalctl", 0, &long);
        assert_eq!(of_this_boot(&place, &runner).await, "the end\n");
    }

    #[test]
    fn after_a_silent_end_the_kernels_records_since_then_are_told_in_order() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let since = DateTime::from_timestamp(1_000, 0).unwrap();
        assert_eq!(of_silent_end(&place, since), "");
        fake::folder(root.path(), "/sys/fs/pstore");
        fake::folder(root.path(), "/var/lib/systemd/pstore/100");
        for (path, seconds, text) in [
            ("sys/fs/pstore/dmesg-efi-2", 2_000, "Kernel panic\n"),
            ("var/lib/systemd/pstore/100/dmesg.txt", 1_500, "Oops\n"),
            ("sys/fs/pstore/dmesg-efi-1", 500, "long ago\n"),
        ] {
            let path = root.path().join(path);
            fs::write(&path, text).unwrap();
            let written = UNIX_EPOCH + Duration::from_secs(seconds);
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(written).unwrap();
        }
        assert_eq!(of_silent_end(&place, since), "Oops\nKernel panic\n");
    }
}
