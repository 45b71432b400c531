//! Facts about the machine, and the end of the log.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use tokio::process::Command;

/// How much of the end of the log is added, in bytes.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// The same in lines, for the journal.
const MAX_JOURNAL_LINES: &str = "5000";

const JOURNAL_TIMEOUT: Duration = Duration::from_secs(20);

/// System, kernel, processors, memory and the disk of the data directory. No name of the machine.
pub(super) fn describe_machine(data_dir: &Path) -> String {
    let mut text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let system = rustix::system::uname();
    let _written = writeln!(
        text,
        "kernel: {} {} {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        system.machine().to_string_lossy()
    );
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let _written = writeln!(text, "processors: {processors}");
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let names = ["MemTotal", "MemAvailable", "SwapTotal", "SwapFree"];
    for line in memory.lines().filter(|line| names.iter().any(|name| line.starts_with(name))) {
        let _written = writeln!(text, "{line}");
    }
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let _written = writeln!(text, "uptime and idle time in seconds: {}", uptime.trim());
    match rustix::fs::statvfs(data_dir) {
        Ok(disk) => {
            let size = disk.f_blocks.saturating_mul(disk.f_frsize);
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let _written = writeln!(text, "data_dir: {free} of {size} bytes are free");
        }
        Err(error) => {
            let _written = writeln!(text, "data_dir: cannot read the size of its disk: {error}");
        }
    }
    text
}

/// The end of the log in a file, or in the journal of the unit `evenkeeld`.
pub(super) async fn read_log_end(file: Option<&Path>) -> anyhow::Result<String> {
    match file {
        Some(file) => {
            read_file_end(file).with_context(|| format!("cannot read {}", file.display()))
        }
        None => read_journal_end().await.context("cannot read the journal; use --log FILE"),
    }
}

fn read_file_end(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[expect(clippy::disallowed_methods, reason = "the journal has no file that others can read")]
async fn read_journal_end() -> anyhow::Result<String> {
    let output = Command::new("journalctl")
        .args(["--unit", "evenkeeld", "--no-pager", "--output", "short-iso"])
        .args(["--no-hostname", "--lines", MAX_JOURNAL_LINES])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(JOURNAL_TIMEOUT, output).await;
    let output = output.context("journalctl does not end")??;
    anyhow::ensure!(output.status.success(), "journalctl ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_long_log_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, format!("first\n{}last\n", "line\n".repeat(300_000))).unwrap();
        let text = read_file_end(&path).unwrap();
        assert_eq!(text.len(), 1 << 20);
        assert!(text.ends_with("last\n") && !text.contains("first"));
    }
}
