//! Whether the package lists of a machine can be used.

use std::fs::{self, Metadata};
use std::path::Path;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use crate::paths::AgentPaths;

/// apt's folder of package lists.
const LISTS_FOLDER: &str = "/var/lib/apt/lists";

/// Its time is that of the last refresh, if the machine has Debian's settings of apt.
const REFRESH_STAMP: &str = "/var/lib/apt/periodic/update-success-stamp";

/// Whether there are package lists that were refreshed in this time before now.
pub(super) fn has_current_lists(paths: &AgentPaths, now: DateTime<Utc>, max_age: Duration) -> bool {
    let folder = paths.inside(LISTS_FOLDER);
    if !has_files(&folder) {
        return false;
    }
    let times = [folder, paths.inside(REFRESH_STAMP)];
    let times = times.iter().filter_map(|path| fs::metadata(path).and_then(modified).ok());
    let age = times.max().and_then(|at| SystemTime::from(now).duration_since(at).ok());
    // With a clock that was wrong, the lists may have any age.
    age.is_some_and(|age| age <= max_age)
}

fn modified(metadata: Metadata) -> std::io::Result<SystemTime> {
    metadata.modified()
}

/// Whether the folder has a list. `lock` is always there.
fn has_files(folder: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(folder) else { return false };
    entries.any(|entry| {
        entry.is_ok_and(|entry| {
            entry.file_name() != "lock" && entry.file_type().is_ok_and(|kind| kind.is_file())
        })
    })
}

#[cfg(test)]
mod tests {
    use evenkeel_kit::{Clock as _, SystemClock};

    use super::*;

    #[test]
    fn lists_are_current_until_they_have_an_age() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let hour = Duration::from_hours(1);
        let has_current_lists =
            |paths: &AgentPaths, max_age| has_current_lists(paths, SystemClock.now(), max_age);
        assert!(!has_current_lists(&paths, hour));
        let folder = paths.inside(LISTS_FOLDER);
        fs::create_dir_all(folder.join("partial")).unwrap();
        fs::write(folder.join("lock"), "").unwrap();
        assert!(!has_current_lists(&paths, hour), "there is no list");
        fs::write(folder.join("deb.example_InRelease"), "").unwrap();
        assert!(has_current_lists(&paths, hour));
        let set_time = |path: &Path, time: SystemTime| {
            fs::File::open(path).unwrap().set_modified(time).unwrap();
        };
        let now = SystemTime::from(SystemClock.now());
        for (time, is_current) in
            [(now - 2 * hour, false), (now - hour / 2, true), (now + 2 * hour, false)]
        {
            set_time(&folder, time);
            assert_eq!(has_current_lists(&paths, hour), is_current);
        }
        // All sources had the same lists as before.
        set_time(&folder, now - 2 * hour);
        let stamp = paths.inside(REFRESH_STAMP);
        fs::create_dir_all(stamp.parent().unwrap()).unwrap();
        fs::write(&stamp, "").unwrap();
        assert!(has_current_lists(&paths, hour));
    }
}
