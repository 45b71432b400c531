//! Collects the last log lines of a failed boot, which show why an image was rejected.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::model::{Failure, tail};
use crate::paths::AgentPaths;
use crate::runner::{Command, RunError, Runner};

/// Number of log lines in a report.
const MAX_LINES: usize = 200;

/// Maximum number of reads of the kernel's log: more than its buffer has records, but finite even
/// if the kernel logs faster than the agent reads.
const MAX_KERNEL_READS: usize = 100_000;

/// Time limit for `journalctl`. The machine is about to be reset.
const JOURNALCTL_TIMEOUT: Duration = Duration::from_secs(20);

/// Folders with kernel records that survived a reset, and where systemd-pstore.service(8) moves
/// them.
const PSTORE_FOLDERS: [&str; 2] = ["/sys/fs/pstore", "/var/lib/systemd/pstore"];

/// Maximum number of bytes that are read of a kernel record, which is far smaller.
const MAX_RECORD_BYTES: u64 = 256 << 10;

/// The last log lines of this boot, from the journal or else from the kernel. At most
/// [`Failure::MAX_LOG`] bytes.
pub(super) async fn collect_boot_log(paths: &AgentPaths, runner: &dyn Runner) -> String {
    let lines = MAX_LINES.to_string();
    let command = Command::new("journalctl", JOURNALCTL_TIMEOUT).with_arguments([
        "--boot",
        "--quiet",
        "--no-pager",
        "--output=short-monotonic",
        "--lines",
        &lines,
    ]);
    let log = match runner.run(&command).await {
        Ok(output) if output.succeeded() => output.stdout,
        Err(RunError::Deadline { output: partial_output, .. }) => partial_output,
        Ok(_) | Err(_) => String::new(),
    };
    let log = if log.trim().is_empty() { read_kernel_log(&paths.inside("/dev/kmsg")) } else { log };
    tail(&log, Failure::MAX_LOG).to_owned()
}

/// Kernel records since an instant, for a boot that ended without a report. At most
/// [`Failure::MAX_LOG`] bytes; empty if there are none.
pub fn collect_kernel_records(paths: &AgentPaths, since: DateTime<Utc>) -> String {
    let mut records = Vec::new();
    for folder in PSTORE_FOLDERS {
        find_records(&paths.inside(folder), since.into(), 1, &mut records);
    }
    // By time, then by name: a long record is split into several files.
    records.sort();
    let mut log = String::new();
    for (_, path) in records {
        let mut bytes = Vec::new();
        let file = File::open(&path);
        let read = file.and_then(|file| file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes));
        if let Err(error) = read {
            tracing::debug!(%error, path = %path.display(), "cannot read a kernel record");
        }
        log.push_str(&String::from_utf8_lossy(&bytes));
        log = tail(&log, Failure::MAX_LOG).to_owned();
    }
    log
}

/// Finds the records in a folder and its subfolders, `depth` levels deep.
fn find_records(
    folder: &Path,
    since: SystemTime,
    depth: u32,
    records: &mut Vec<(SystemTime, PathBuf)>,
) {
    // Without such a folder there are no records.
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(about) = entry.metadata() else {
            continue;
        };
        if about.is_dir() && depth > 0 {
            find_records(&entry.path(), since, depth - 1, records);
        }
        let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if about.is_file() && written >= since {
            records.push((written, entry.path()));
        }
    }
}

/// The kernel's last log lines. Reading one record at a time never blocks (dev-kmsg in the kernel's
/// ABI documentation).
fn read_kernel_log(path: &Path) -> String {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(kmsg) => last_kernel_lines(File::from(kmsg)),
        Err(error) => format!("cannot read the log of this boot: {error}\n"),
    }
}

/// The last log lines. Each read returns one record.
fn last_kernel_lines(mut kmsg: impl Read) -> String {
    let mut lines: VecDeque<String> = VecDeque::with_capacity(MAX_LINES);
    let mut buffer = [0; 8 << 10];
    for _ in 0..MAX_KERNEL_READS {
        let count = match kmsg.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            // The record was overwritten before it was read, or the read was interrupted: continue
            // with the next one.
            Err(error) if is_transient(&error) => continue,
            // There are no more records, or they cannot be read.
            Err(_) => break,
        };
        let records = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
        for line in records.lines() {
            // Lines that begin with a space continue the previous record.
            if let Some((_, text)) = line.split_once(';').filter(|_| !line.starts_with(' ')) {
                if lines.len() == MAX_LINES {
                    lines.pop_front();
                }
                lines.push_back(text.to_owned());
            }
        }
    }
    let mut log = String::new();
    for line in lines {
        log.push_str(&line);
        log.push('\n');
    }
    log
}

fn is_transient(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PIPE.raw_os_error())
        || error.kind() == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::hooks::fake::{self, FakeRunner};

    #[tokio::test]
    async fn the_journal_is_used_if_there_is_one() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let runner = FakeRunner::default().returns("journalctl", 0, "[1.0] one\n[2.0] two\n");
        let log = collect_boot_log(&paths, &runner).await;
        assert_eq!(log, "[1.0] one\n[2.0] two\n");
        assert!(runner.commands()[0].ends_with("--lines 200"));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_journal_the_last_kernel_lines_are_used() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        fake::create_folder(root.path(), "/dev");
        let mut records = String::new();
        for number in 0..300 {
            writeln!(records, "6,{number},0,-;line {number}\n A=b;c").unwrap();
        }
        fs::write(root.path().join("dev/kmsg"), records).unwrap();
        for runner in [
            FakeRunner::default(),
            FakeRunner::default().returns("journalctl", 1, "No journal files were found.\n"),
            FakeRunner::default().returns("journalctl", 0, ""),
        ] {
            let log = collect_boot_log(&paths, &runner).await;
            assert_eq!(log.lines().count(), MAX_LINES);
            assert!(log.starts_with("line 100\n"), "{log}");
            assert!(log.ends_with("line 299\n"), "{log}");
        }
        let log = collect_boot_log(&paths, &FakeRunner::default().hangs("journalctl")).await;
        assert_eq!(log, "thinking\n", "the output before the deadline is used");
    }

    #[test]
    fn reading_an_endless_kernel_log_is_limited() {
        let mut reads = 0;
        let log = last_kernel_lines(EndlessLog(&mut reads));
        assert_eq!(reads, MAX_KERNEL_READS);
        assert_eq!(log.lines().count(), MAX_LINES);
        assert!(log.ends_with(&format!("line {MAX_KERNEL_READS}\n")), "{log}");
    }

    /// Logs a line at each read.
    struct EndlessLog<'a>(&'a mut usize);

    impl Read for EndlessLog<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            *self.0 += 1;
            let record = format!("6,{0},0,-;line {0}\n", self.0);
            buffer[..record.len()].copy_from_slice(record.as_bytes());
            Ok(record.len())
        }
    }

    #[tokio::test]
    async fn a_missing_log_is_reported_and_a_long_log_is_cut() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let log = collect_boot_log(&paths, &FakeRunner::default()).await;
        assert!(log.starts_with("cannot read the log"), "{log}");

        let output = format!("{}\nthe end\n", "x".repeat(Failure::MAX_LOG));
        let runner = FakeRunner::default().returns("journalctl", 0, &output);
        assert_eq!(collect_boot_log(&paths, &runner).await, "the end\n");
    }

    #[test]
    fn kernel_records_since_an_instant_are_collected_in_order() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let since = DateTime::from_timestamp(1_000, 0).unwrap();
        assert_eq!(collect_kernel_records(&paths, since), "");
        fake::create_folder(root.path(), "/sys/fs/pstore");
        fake::create_folder(root.path(), "/var/lib/systemd/pstore/100");
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
        assert_eq!(collect_kernel_records(&paths, since), "Oops\nKernel panic\n");
    }
}
