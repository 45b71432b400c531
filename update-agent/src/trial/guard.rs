//! The guard: a process of its own that resets a machine on trial at the deadline, whatever became of the agent.
//!
//! It knows as little as possible. That the machine is on trial it takes from the loader, which names the counter that
//! it booted by, and that the trial is over from a file that does not outlive the boot.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{BEAT, GRACE, Reset};
use crate::durable::{self, FileError};
use crate::os::first_line;
use crate::place::Place;

/// There once the trial is over, and nobody is to reset the machine for it.
const OVER: &str = "/run/evenkeel/trial-over";

/// The loader's variable that names the entry by whose counter it booted; it sets none for an entry without. See
/// systemd-bless-boot.service(8).
const COUNTED: &str =
    "/sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// The bytes of a variable's attributes, before its value, which is UTF-16 here (kernel's document on efivarfs, Boot
/// Loader Interface).
const ATTRIBUTES: usize = 4;

/// How the names of the agent's own entries begin, in small letters.
const OURS: &str = "evenkeel-";

/// What became of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// The loader did not count this boot: there is nothing to guard, and a reset would lead nowhere else.
    NotCounted,
    /// The trial ended in time.
    Over,
    /// The reset was asked for.
    Reset,
}

/// Watches until the trial is over, and resets the machine if it is not at the deadline, from boot, and the minute
/// after it that the agent has to write down why.
pub async fn guard(place: &Place, deadline: Duration, reset: &dyn Reset) -> Guarded {
    if !is_counted(place) {
        return Guarded::NotCounted;
    }
    let before = since_boot(place).unwrap_or_default();
    let began = Instant::now();
    loop {
        if place.inside(OVER).exists() {
            return Guarded::Over;
        }
        if before + began.elapsed() >= deadline.saturating_add(GRACE) {
            tracing::error!("the trial did not end in time; resetting");
            reset.now().await;
            return Guarded::Reset;
        }
        sleep(BEAT).await;
    }
}

/// Whether the loader booted this system by a counter of the agent's, and so comes to another one if it is reset often
/// enough. Others count their boots as well: of a kernel that a distribution tries the agent knows nothing.
fn is_counted(place: &Place) -> bool {
    let path = place.inside(COUNTED);
    match fs::read(&path) {
        Ok(variable) => !names_another(&variable),
        // It is there and cannot be read. A guard too many resets a few times; one that is missing never does.
        Err(_) => path.exists(),
    }
}

/// Whether a variable plainly names an entry that is not the agent's.
fn names_another(variable: &[u8]) -> bool {
    let value = variable.get(ATTRIBUTES..).unwrap_or_default();
    let (units, _) = value.as_chunks::<2>();
    let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
    let path = char::decode_utf16(units.take_while(|unit| *unit != 0));
    let Ok(path) = path.collect::<Result<String, _>>() else {
        return false;
    };
    let name = path.rsplit(['\\', '/']).next().unwrap_or_default();
    !name.is_empty() && !name.to_ascii_lowercase().starts_with(OURS)
}

/// Whether a reset is what a boot that comes to nothing needs: the loader counted it, and no trial has ended in it.
pub fn is_watched(place: &Place) -> bool {
    is_counted(place) && !place.inside(OVER).exists()
}

/// The trial is over, and there is nothing to guard any more. If that cannot be told, the guard resets the machine
/// once, which does no harm.
pub(super) fn end(place: &Place) {
    if let Err(error) = mark(place.inside(OVER)) {
        tracing::error!(%error, "the guard cannot be told that the trial is over");
    }
}

/// Makes an empty file below `/run`, which no power cut needs to spare.
pub(super) fn mark(path: PathBuf) -> Result<(), FileError> {
    if let Some(folder) = path.parent() {
        durable::make_folder(folder, 0o755)?;
    }
    fs::write(&path, "").map_err(FileError::while_doing("write", path))
}

/// How long ago the machine was booted (`proc_uptime(5)`; sleep counts).
pub(super) fn since_boot(place: &Place) -> Option<Duration> {
    let line = first_line(&place.inside("/proc/uptime"))?;
    let seconds = line.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_watched_if_it_was_counted_by_an_entry_that_may_be_the_agents() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        assert!(!is_watched(&place));
        let variable = place.inside(COUNTED);
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
            assert_eq!(is_watched(&place), is_ours, "{path}");
        }
        fs::write(&variable, [7]).unwrap();
        assert!(is_watched(&place), "what is not understood is guarded");
        end(&place);
        assert!(!is_watched(&place));
    }
}
