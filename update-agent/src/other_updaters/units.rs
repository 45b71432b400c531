//! Reads from the unit files whether systemd starts a unit. Unlike `systemctl`, this also works in a
//! root that does not run.

use std::fs;
use std::path::Path;

use crate::paths::AgentPaths;

/// Folders with unit files, in the order of their precedence.
const UNIT_FOLDERS: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitFileState {
    Missing,
    /// Nothing can start the unit.
    Masked,
    Disabled,
    /// Another unit starts it.
    Enabled,
}

pub fn read_unit_file_state(paths: &AgentPaths, unit: &str) -> UnitFileState {
    let mut files = UNIT_FOLDERS.iter().map(|folder| paths.inside(folder).join(unit));
    let Some(file) = files.find(|file| fs::symlink_metadata(file).is_ok()) else {
        return UnitFileState::Missing;
    };
    if is_mask(&file) {
        UnitFileState::Masked
    } else if UNIT_FOLDERS.iter().any(|folder| is_required_in(&paths.inside(folder), unit)) {
        UnitFileState::Enabled
    } else {
        UnitFileState::Disabled
    }
}

/// Whether the file is a link to `/dev/null` or empty.
fn is_mask(file: &Path) -> bool {
    match fs::read_link(file) {
        Ok(target) => target == Path::new("/dev/null"),
        Err(_) => fs::metadata(file).is_ok_and(|metadata| metadata.len() == 0),
    }
}

/// Whether a folder such as `timers.target.wants` contains the unit.
fn is_required_in(folder: &Path, unit: &str) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    entries.filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        let is_dependency_folder =
            path.extension().is_some_and(|kind| kind == "wants" || kind == "requires");
        is_dependency_folder && fs::symlink_metadata(path.join(unit)).is_ok()
    })
}
