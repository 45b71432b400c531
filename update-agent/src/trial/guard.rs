//! The guard: a separate process that resets a machine on trial at the deadline, whatever happened
//! to the agent.
//!
//! This guard is for systemd-boot. An image for RAUC has a guard of its own, a script that needs no
//! part of the agent (`deploy/image/rauc-trial-guard`).
//!
//! It depends on as little as possible: the loader's variable with the boot counter shows that the
//! machine is on trial, and a file in `/run` shows that the trial has ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{CHECK_INTERVAL, Reset};
use crate::config::TRIAL_GRACE_PERIOD;
use crate::durable::{self, FileError};
use crate::os::first_line;
use crate::paths::AgentPaths;

/// Exists when the trial has ended and the guard must not reset the machine.
const TRIAL_OVER_FILE: &str = "/run/evenkeel/trial-over";

/// Has the seconds in which this agent ends the trial, for the guard of an image for RAUC.
const TRIAL_SECONDS_FILE: &str = "/run/evenkeel/trial-seconds";

/// The loader's variable with the path of the counted entry that it booted; not set for an entry
/// without a counter. See systemd-bless-boot.service(8).
const BOOT_COUNT_VARIABLE: &str =
    "/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Length of a variable's attributes before its value, which is UTF-16 here (efivarfs in the
/// kernel's documentation; Boot Loader Interface).
const ATTRIBUTES_BYTES: usize = 4;

/// Prefix of the names of the agent's own entries, in lower case.
const ENTRY_PREFIX: &str = "evenkeel-";

/// Result of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardOutcome {
    /// The loader did not count this boot: there is no trial, and a reset would lead nowhere else.
    NotCounted,
    /// The trial ended in time.
    TrialEnded,
    /// The reset was requested.
    Reset,
}

/// Waits for the end of the trial. Resets the machine if the trial has not ended one minute after
/// the deadline, which counts from boot. The agent uses that minute to record the reason.
pub async fn run_guard(paths: &AgentPaths, deadline: Duration, reset: &dyn Reset) -> GuardOutcome {
    if !is_counted(paths) {
        return GuardOutcome::NotCounted;
    }
    let before = read_uptime(paths).unwrap_or_default();
    let began = Instant::now();
    loop {
        if paths.inside(TRIAL_OVER_FILE).exists() {
            return GuardOutcome::TrialEnded;
        }
        if before + began.elapsed() >= deadline.saturating_add(TRIAL_GRACE_PERIOD) {
            tracing::error!("the trial did not end in time; resetting");
            reset.reset_machine().await;
            return GuardOutcome::Reset;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

/// Whether the loader counted this boot for an entry of the agent, so that enough resets lead to
/// the other image. The agent does not know the counted entries of others, such as kernels on
/// trial.
fn is_counted(paths: &AgentPaths) -> bool {
    let path = paths.inside(BOOT_COUNT_VARIABLE);
    match fs::read(&path) {
        Ok(variable) => !names_other_entry(&variable),
        // The variable exists but cannot be read. A needless guard resets a few times; a missing
        // one never does.
        Err(_) => path.exists(),
    }
}

/// Whether a variable clearly names an entry that is not the agent's.
fn names_other_entry(variable: &[u8]) -> bool {
    let value = variable.get(ATTRIBUTES_BYTES..).unwrap_or_default();
    let (units, _) = value.as_chunks::<2>();
    let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
    let path = char::decode_utf16(units.take_while(|unit| *unit != 0));
    let Ok(path) = path.collect::<Result<String, _>>() else {
        return false;
    };
    let name = path.rsplit(['\\', '/']).next().unwrap_or_default();
    !name.is_empty() && !name.to_ascii_lowercase().starts_with(ENTRY_PREFIX)
}

/// Whether a boot that does not end its trial must be reset: the loader counted it, and no trial
/// has ended in it.
pub fn is_watched(paths: &AgentPaths) -> bool {
    is_counted(paths) && !paths.inside(TRIAL_OVER_FILE).exists()
}

/// Stops the guard, because the trial has ended. If this fails, the guard resets the machine once,
/// which does no harm.
pub(super) fn stop_guard(paths: &AgentPaths) {
    if let Err(error) = create_mark(paths.inside(TRIAL_OVER_FILE)) {
        tracing::error!(%error, "cannot write for the guard that the trial has ended");
    }
}

/// Tells the guard of an image for RAUC (`deploy/image/rauc-trial-guard`) how long this agent needs
/// to end the trial. The first agent of a boot decides, so that an agent that is restarted again and
/// again does not prolong the trial. If this fails, the time that the old image set applies.
pub(super) fn announce_end(paths: &AgentPaths, remaining: Duration) {
    let path = paths.inside(TRIAL_SECONDS_FILE);
    if path.exists() {
        return;
    }
    let seconds = remaining.as_secs().to_string();
    let written =
        create_parent(&path).and_then(|()| durable::replace_file(&path, seconds.as_bytes(), 0o644));
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write for the guard when the trial ends");
    }
}

/// Creates an empty file below `/run`. It need not survive a power cut.
pub(super) fn create_mark(path: PathBuf) -> Result<(), FileError> {
    create_parent(&path)?;
    fs::write(&path, "").map_err(FileError::while_doing("write", path))
}

fn create_parent(path: &Path) -> Result<(), FileError> {
    path.parent().map_or(Ok(()), |folder| durable::create_folder(folder, 0o755))
}

/// Time since boot, including suspend (`proc_uptime(5)`).
pub(super) fn read_uptime(paths: &AgentPaths) -> Option<Duration> {
    let line = first_line(&paths.inside("/proc/uptime"))?;
    let seconds = line.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_agent_of_a_boot_decides_how_long_the_guard_waits() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        announce_end(&paths, Duration::from_secs(90));
        announce_end(&paths, Duration::from_mins(10));
        let announced = fs::read_to_string(paths.inside(TRIAL_SECONDS_FILE)).unwrap();
        assert_eq!(announced, "90");
    }

    #[test]
    fn a_boot_is_watched_if_an_entry_of_the_agent_counted_it() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        assert!(!is_watched(&paths));
        let variable = paths.inside(BOOT_COUNT_VARIABLE);
        fs::create_dir_all(variable.parent().unwrap()).unwrap();
        for (path, is_ours) in [
            ("\\loader\\entries\\evenkeel-000002+2-1.conf", true),
            ("/loader/entries/EVENKEEL-000002+2-1.conf", true),
            ("\\loader\\entries\\debian-6.1.0+2-1.conf", false),
            ("", true),
        ] {
            let mut bytes = vec![7, 0, 0, 0];
            let units = path.encode_utf16().chain([0]);
            bytes.extend(units.flat_map(u16::to_le_bytes));
            fs::write(&variable, bytes).unwrap();
            assert_eq!(is_watched(&paths), is_ours, "{path}");
        }
        fs::write(&variable, [7]).unwrap();
        assert!(is_watched(&paths), "an unreadable variable is guarded");
        stop_guard(&paths);
        assert!(!is_watched(&paths));
    }
}
