//! Facts about the machine below the operating system: its hardware, and when its kernel started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::hardware::Hardware;
use crate::identity;
use crate::os;
use crate::paths::AgentPaths;

/// How often the hardware is read again. An interface that loses its link again and again must not
/// make the node send all its facts with each poll.
const HARDWARE_INTERVAL: Duration = Duration::from_mins(10);

/// By how much the time of the boot may differ without being a new one: the kernel computes it from the
/// clock, which is corrected continuously.
const BOOT_TIME_TOLERANCE: TimeDelta = TimeDelta::minutes(1);

/// The part of the memory by which its size may differ without being reported. A hypervisor changes the
/// memory of a virtual machine all the time (ballooning).
const MEMORY_TOLERANCE_DIVISOR: u64 = 8;

/// Reads the facts about the machine.
#[derive(Debug)]
pub struct MachineReader {
    /// Where `/proc` and `/sys` of the machine are; `None` if its hardware is not reported.
    root: Option<PathBuf>,
    hardware: Option<(Instant, Hardware)>,
    boot_time: Option<DateTime<Utc>>,
}

impl MachineReader {
    /// The hardware is reported if the agent manages the system that it runs on. A container shows the
    /// hardware of its host.
    pub fn new(paths: &AgentPaths) -> Self {
        let has_hardware = paths.is_own_system() && !identity::is_container(paths.root());
        let root = has_hardware.then(|| paths.root().to_owned());
        Self { root, hardware: None, boot_time: None }
    }

    /// Reads the hardware from another root.
    pub fn with_root(self, root: PathBuf) -> Self {
        Self { root: Some(root), ..self }
    }

    /// Reads the time of the boot, and the hardware if it was read long ago.
    pub fn refresh(&mut self) {
        let stat = self.root.as_deref().unwrap_or(Path::new("/")).join("proc/stat");
        if let Some(current) = os::boot_time(&stat) {
            let is_same = |last: DateTime<Utc>| (current - last).abs() <= BOOT_TIME_TOLERANCE;
            self.boot_time = self.boot_time.filter(|last| is_same(*last)).or(Some(current));
        }
        let last = self.hardware.as_ref();
        if last.is_some_and(|(read_at, _)| read_at.elapsed() < HARDWARE_INTERVAL) {
            return;
        }
        if let Some(root) = &self.root {
            let mut hardware = Hardware::read(root, os::machine());
            if let Some((_, last)) = last {
                hardware.memory_bytes = keep_similar(last.memory_bytes, hardware.memory_bytes);
            }
            self.hardware = Some((Instant::now(), hardware));
        }
    }

    /// The hardware as it was last read; `None` if it is not reported.
    pub fn hardware(&self) -> Option<&Hardware> {
        self.hardware.as_ref().map(|(_, hardware)| hardware)
    }

    /// When the kernel started, by the clock of the machine; `None` if it is unknown.
    pub const fn boot_time(&self) -> Option<DateTime<Utc>> {
        self.boot_time
    }
}

/// The reported size of the memory, unless the current one differs by more than the tolerance.
const fn keep_similar(reported: u64, current: u64) -> u64 {
    let is_similar = reported.abs_diff(current) <= reported / MEMORY_TOLERANCE_DIVISOR;
    if is_similar { reported } else { current }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn reader(root: &Path) -> MachineReader {
        fs::create_dir(root.join("proc")).unwrap();
        MachineReader::new(&AgentPaths::new("/srv/node", None)).with_root(root.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn hardware_is_read_again_after_ten_minutes() {
        let root = tempfile::tempdir().unwrap();
        let mut reader = reader(root.path());
        let mut memory = |kilobytes: u64| {
            let text = format!("MemTotal: {kilobytes} kB\n");
            fs::write(root.path().join("proc/meminfo"), text).unwrap();
            reader.refresh();
            reader.hardware().unwrap().memory_bytes
        };
        assert_eq!(memory(1), 1_024);
        assert_eq!(memory(2), 1_024, "not yet");
        tokio::time::advance(HARDWARE_INTERVAL).await;
        assert_eq!(memory(2), 2_048);
    }

    #[test]
    fn the_size_of_the_memory_is_reported_again_if_it_differs_by_more_than_an_eighth() {
        assert_eq!(keep_similar(8_000, 7_000), 8_000);
        assert_eq!(keep_similar(8_000, 9_000), 8_000);
        assert_eq!(keep_similar(8_000, 6_999), 6_999);
        assert_eq!(keep_similar(8_000, 9_001), 9_001);
        assert_eq!(keep_similar(0, 1), 1, "it could not be read before");
    }

    #[test]
    fn a_corrected_clock_changes_the_time_of_the_boot_only_by_more_than_a_minute() {
        let root = tempfile::tempdir().unwrap();
        let mut reader = reader(root.path());
        let mut boot_time = |text: &str| {
            fs::write(root.path().join("proc/stat"), text).unwrap();
            reader.refresh();
            reader.boot_time().map(|time| time.timestamp())
        };
        assert_eq!(boot_time("cpu 1 2 3\n"), None);
        assert_eq!(boot_time("cpu 1 2 3\nbtime 1000\nprocesses 5\n"), Some(1_000));
        assert_eq!(boot_time("btime 1060\n"), Some(1_000));
        assert_eq!(boot_time("btime 1061\n"), Some(1_061), "the machine started without a clock");
        for unreadable in ["", "btime\n", "btime -\n", "btime 99999999999999999999\n"] {
            assert_eq!(boot_time(unreadable), Some(1_061), "{unreadable:?}");
        }
    }

    #[test]
    fn the_hardware_below_another_root_is_not_reported() {
        let root = tempfile::tempdir().unwrap();
        let mut reader = MachineReader::new(&AgentPaths::new(root.path(), None));
        reader.refresh();
        assert_eq!(reader.hardware(), None);
        assert!(reader.boot_time().is_some(), "that of the running kernel");
    }
}
