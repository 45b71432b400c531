//! The hardware watchdog while an image is on trial: it resets the machine unless it is fed
//! regularly. See "The Linux Watchdog driver API" in the kernel's documentation.
//!
//! If systemd already feeds it (`RuntimeWatchdogSec=`), the device is busy, and the agent leaves it
//! to systemd.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{CHECK_INTERVAL, guard};
use crate::config::WatchdogPolicy as Policy;
use crate::durable;
use crate::os::first_line;
use crate::paths::AgentPaths;

const DEVICE_FILE: &str = "/dev/watchdog0";

/// Attributes of the watchdog, below sysfs (sysfs-class-watchdog in the kernel's ABI
/// documentation).
const CLASS_FOLDER: &str = "class/watchdog/watchdog0";

/// `1` if a started watchdog cannot be stopped.
const NOWAYOUT_FILE: &str = "/sys/class/watchdog/watchdog0/nowayout";

/// A watchdog with a shorter timeout, in seconds, may reset a machine whose agent is only flushing
/// a slow disk.
const SHORT_TIMEOUT_SECONDS: u64 = 15;

/// Exists while a watchdog runs that the agent has started.
const STARTED_MARK: &str = "/run/evenkeel/watchdog";

/// Any byte feeds the watchdog. This one, written last, stops it when the device is closed.
const MAGIC_CLOSE: &[u8] = b"V";
const KEEPALIVE: &[u8] = b".";

/// The hardware watchdog.
#[derive(Debug)]
pub(super) struct WatchdogDevice {
    paths: AgentPaths,
    is_required: bool,
    is_ignored: bool,
    state: Mutex<WatchdogState>,
}

#[derive(Debug)]
enum WatchdogState {
    /// The watchdog is not used, and why.
    None(String),
    /// Another program feeds it.
    External,
    Own(File),
}

impl WatchdogDevice {
    /// Opens the watchdog, which starts it, unless it is to be ignored.
    pub fn new(paths: &AgentPaths, policy: Policy) -> Self {
        let watchdog = Self {
            paths: paths.clone(),
            is_required: matches!(policy, Policy::Require),
            is_ignored: matches!(policy, Policy::Ignore),
            state: Mutex::new(WatchdogState::None("it was not opened".to_owned())),
        };
        watchdog.feed_or_open();
        watchdog
    }

    /// Why a required watchdog is not in use.
    pub fn fault(&self) -> Option<String> {
        match &*self.lock_state() {
            WatchdogState::None(why) if self.is_required => {
                Some(format!("a watchdog is required, but there is none: {why}"))
            }
            WatchdogState::None(_) | WatchdogState::External | WatchdogState::Own(_) => None,
        }
    }

    /// Feeds the watchdog while `work` runs, but not longer than `time`. Its driver may be loaded
    /// after the agent has started, so opening it is tried repeatedly.
    pub async fn feed_during<T>(&self, time: Duration, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let begun = Instant::now();
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = sleep(CHECK_INTERVAL) => {}
            }
            if begun.elapsed() < time {
                self.feed_or_open();
            }
        }
    }

    /// Stops the watchdog, if the agent has started it.
    pub fn stop(&self) {
        let none = WatchdogState::None("it was stopped".to_owned());
        let state = std::mem::replace(&mut *self.lock_state(), none);
        if let WatchdogState::Own(device) = state {
            stop_device(&self.paths, device);
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, WatchdogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds the watchdog if the agent has started it, and tries to open it if there is none.
    fn feed_or_open(&self) {
        let mut state = self.lock_state();
        match &mut *state {
            WatchdogState::Own(device) => {
                if let Err(error) = device.write_all(KEEPALIVE) {
                    tracing::warn!(%error, "cannot feed the watchdog");
                }
            }
            WatchdogState::External => {}
            WatchdogState::None(_) if self.is_ignored => {}
            WatchdogState::None(before) => {
                let opened = self.open_watchdog();
                match &opened {
                    WatchdogState::None(why) if *why == *before => {}
                    WatchdogState::None(why) => tracing::info!(why, "no watchdog"),
                    WatchdogState::External => tracing::info!("another program feeds the watchdog"),
                    WatchdogState::Own(_) => {
                        tracing::info!("the watchdog runs until the trial ends");
                    }
                }
                *state = opened;
            }
        }
    }

    fn open_watchdog(&self) -> WatchdogState {
        // It could not be stopped after the commit and would reset the machine. To use such a
        // watchdog, let systemd feed it.
        if first_line(&self.paths.inside(NOWAYOUT_FILE)).as_deref() == Some("1") {
            if is_fed_by_another(&self.paths.inside("/sys")) {
                return WatchdogState::External;
            }
            return WatchdogState::None(format!("{NOWAYOUT_FILE} says that it cannot be stopped"));
        }
        // The mark comes before the start: if the agent is killed in between, there is a mark too
        // many, but no watchdog that is never stopped.
        if let Err(error) = guard::create_mark(self.paths.inside(STARTED_MARK)) {
            return WatchdogState::None(error.to_string());
        }
        match open_device(&self.paths) {
            Ok(device) => {
                if let Some(seconds) = short_timeout(&self.paths.inside("/sys")) {
                    tracing::warn!(seconds, "the watchdog has a short timeout");
                }
                WatchdogState::Own(device)
            }
            Err(error) => {
                remove_mark(&self.paths);
                if error.kind() == io::ErrorKind::ResourceBusy {
                    return WatchdogState::External;
                }
                WatchdogState::None(format!("{DEVICE_FILE}: {error}"))
            }
        }
    }
}

/// Whether another program, such as systemd, feeds the watchdog. Valid only while the agent does
/// not use it.
pub(crate) fn is_fed_by_another(sys: &Path) -> bool {
    first_line(&sys.join(CLASS_FOLDER).join("state")).as_deref() == Some("active")
}

/// The watchdog's timeout in seconds, if it is short.
fn short_timeout(sys: &Path) -> Option<u64> {
    let seconds = first_line(&sys.join(CLASS_FOLDER).join("timeout"))?;
    seconds.parse().ok().filter(|seconds| *seconds < SHORT_TIMEOUT_SECONDS)
}

/// Stops a watchdog that an earlier process of this boot has started and not stopped.
pub(super) fn stop_left_open(paths: &AgentPaths) {
    if !paths.inside(STARTED_MARK).exists() {
        return;
    }
    match open_device(paths) {
        Ok(device) => stop_device(paths, device),
        Err(error) => {
            tracing::error!(%error, "cannot stop the watchdog; it will reset the machine");
        }
    }
}

fn open_device(paths: &AgentPaths) -> io::Result<File> {
    OpenOptions::new().write(true).open(paths.inside(DEVICE_FILE))
}

fn stop_device(paths: &AgentPaths, mut device: File) {
    if let Err(error) = device.write_all(MAGIC_CLOSE) {
        tracing::error!(%error, "cannot stop the watchdog; it will reset the machine");
        return;
    }
    drop(device);
    remove_mark(paths);
}

fn remove_mark(paths: &AgentPaths) {
    if let Err(error) = durable::remove_file(&paths.inside(STARTED_MARK)) {
        tracing::debug!(%error, "cannot remove the mark of the watchdog");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::hooks::fake;

    fn test_machine() -> (tempfile::TempDir, AgentPaths) {
        let root = tempfile::tempdir().expect("a folder");
        fake::create_folder(root.path(), "/dev");
        fs::write(root.path().join("dev/watchdog0"), "").expect("a device");
        let paths = AgentPaths::new(root.path(), None);
        (root, paths)
    }

    fn written(paths: &AgentPaths) -> String {
        fs::read_to_string(paths.inside(DEVICE_FILE)).expect("the device")
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_fed_for_its_time_and_stopped_by_the_magic_close() {
        let (_root, paths) = test_machine();
        let watchdog = WatchdogDevice::new(&paths, Policy::Use);
        assert!(paths.inside(STARTED_MARK).exists());
        let work = sleep(Duration::from_mins(1));
        watchdog.feed_during(Duration::from_secs(7), work).await;
        assert_eq!(written(&paths), "...", "at 2, 4 and 6 seconds");
        watchdog.stop();
        assert_eq!(written(&paths), "...V");
        assert!(!paths.inside(STARTED_MARK).exists());
    }

    #[test]
    fn a_dropped_watchdog_keeps_running_and_a_later_agent_stops_it() {
        let (_root, paths) = test_machine();
        drop(WatchdogDevice::new(&paths, Policy::Use));
        assert_eq!(written(&paths), "");
        stop_left_open(&paths);
        assert_eq!(written(&paths), "V");
        stop_left_open(&paths);
        assert_eq!(written(&paths), "V", "once");
    }

    #[test]
    fn a_watchdog_that_cannot_be_stopped_is_not_started() {
        let (root, paths) = test_machine();
        fake::create_folder(root.path(), "/sys/class/watchdog/watchdog0");
        fs::write(paths.inside(NOWAYOUT_FILE), "1\n").unwrap();
        let watchdog = WatchdogDevice::new(&paths, Policy::Require);
        let fault = watchdog.fault().unwrap();
        assert!(fault.ends_with("says that it cannot be stopped"), "{fault}");
        assert!(!paths.inside(STARTED_MARK).exists());
        fs::write(paths.inside(NOWAYOUT_FILE), "0\n").unwrap();
        assert_eq!(WatchdogDevice::new(&paths, Policy::Require).fault(), None);
    }

    #[test]
    fn a_watchdog_fed_by_another_program_satisfies_the_requirement() {
        let (root, paths) = test_machine();
        fake::create_folder(root.path(), "/sys/class/watchdog/watchdog0");
        fs::write(paths.inside(NOWAYOUT_FILE), "1\n").unwrap();
        let state = paths.inside("/sys").join(CLASS_FOLDER).join("state");
        fs::write(&state, "inactive\n").unwrap();
        assert!(WatchdogDevice::new(&paths, Policy::Require).fault().is_some());
        fs::write(&state, "active\n").unwrap();
        assert_eq!(WatchdogDevice::new(&paths, Policy::Require).fault(), None);
        assert_eq!(written(&paths), "");
        assert!(!paths.inside(STARTED_MARK).exists());
    }

    #[test]
    fn a_time_below_fifteen_seconds_is_short() {
        let (root, paths) = test_machine();
        let sys = paths.inside("/sys");
        assert_eq!(short_timeout(&sys), None);
        fake::create_folder(root.path(), "/sys/class/watchdog/watchdog0");
        for (text, short) in [("10\n", Some(10)), ("15\n", None), ("soon\n", None)] {
            fs::write(sys.join(CLASS_FOLDER).join("timeout"), text).unwrap();
            assert_eq!(short_timeout(&sys), short);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_watchdog_is_a_fault_only_if_required_and_may_appear_later() {
        let (_root, paths) = test_machine();
        fs::remove_file(paths.inside(DEVICE_FILE)).unwrap();
        assert_eq!(WatchdogDevice::new(&paths, Policy::Use).fault(), None);
        let watchdog = WatchdogDevice::new(&paths, Policy::Require);
        assert!(watchdog.fault().is_some());
        assert!(!paths.inside(STARTED_MARK).exists());
        fs::write(paths.inside(DEVICE_FILE), "").unwrap();
        watchdog.feed_during(CHECK_INTERVAL * 9, sleep(CHECK_INTERVAL * 2)).await;
        assert_eq!(watchdog.fault(), None);
    }

    #[test]
    fn an_ignored_watchdog_is_not_touched() {
        let (_root, paths) = test_machine();
        let watchdog = WatchdogDevice::new(&paths, Policy::Ignore);
        assert_eq!(watchdog.fault(), None);
        watchdog.stop();
        assert_eq!(written(&paths), "");
        assert!(!paths.inside(STARTED_MARK).exists());
    }
}
