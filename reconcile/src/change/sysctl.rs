//! Sets kernel settings: the text of the file for the next boot, and the running value.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Write as _;

use evenkeel_configuration::Component;
use evenkeel_configuration::document::{Desired, Document};
use rustix::fs::{Mode, OFlags, openat};

use crate::check::{has_running_value, read_stored_settings};
use crate::files::{FaultPoint, FileError, RootFolder, split_parent};
use crate::finding::EntryKey;
use crate::names::{SYSCTL_FOLDER, sysctl_path};

const HEADER: &str = "# Written by evenkeel-agent from the configuration of this node.\n";

/// The text of the file with all settings; `None` if there are none.
///
/// `is_covered` are the entries that the run changes. Other entries of the document, and those that
/// the server could not bind, keep their current lines. All other lines go.
///
/// # Errors
/// A sentence: the current file cannot be read.
pub(crate) fn render_settings(
    root: &RootFolder,
    document: &Document,
    failed_entries: &BTreeSet<EntryKey>,
    is_covered: impl Fn(&str) -> bool,
) -> Result<Option<String>, String> {
    let mut lines: Vec<(&str, Option<&str>)> = Vec::new();
    for (_, entry) in document.entries() {
        if let Desired::Sysctl(state) = &entry.desired {
            let value = is_covered(&entry.name).then_some(state.value.as_str());
            lines.push((&entry.name, value));
        }
    }
    let failed = failed_entries.iter().filter(|key| key.component == Component::Sysctl);
    lines.extend(failed.map(|key| (key.name.as_str(), None)));
    lines.sort_unstable();
    let keys: Vec<&str> = lines.iter().map(|(key, _)| *key).collect();
    let stored = read_stored_settings(root, &keys)?;
    let lines = lines.into_iter().filter_map(|(key, value)| render_line(key, value, &stored));
    let text: String = lines.collect();
    Ok((!text.is_empty()).then(|| format!("{HEADER}{text}")))
}

fn render_line(key: &str, value: Option<&str>, stored: &HashMap<String, String>) -> Option<String> {
    let value = match value {
        Some(value) => value,
        None => stored.get(&sysctl_path(key)?)?,
    };
    Some(format!("{key} = {}\n", value.trim()))
}

/// The value of the running kernel, if it has one that can be read.
pub(crate) fn read_running_value(root: &RootFolder, key: &str) -> Option<String> {
    let path = format!("{SYSCTL_FOLDER}/{}", sysctl_path(key)?);
    crate::check::read_kernel_value(root, &path).ok()
}

/// Sets the value of the running kernel, if it differs. A machine without `/proc/sys` has none.
///
/// # Errors
/// The setting does not exist, or the kernel refuses the value.
pub(crate) fn set_running_value(
    root: &RootFolder,
    faults: &dyn FaultPoint,
    (key, value): (&str, &str),
) -> Result<(), FileError> {
    let path = sysctl_path(key).map(|path| format!("{SYSCTL_FOLDER}/{path}"));
    let path = path.ok_or_else(|| FileError::new("set", key, "it is no kernel setting"))?;
    if root.open_folder(SYSCTL_FOLDER).is_err() || has_running_value(root, &path, value) {
        return Ok(());
    }
    let (parent, name) = split_parent(&path).unwrap_or((SYSCTL_FOLDER, ""));
    let folder = root.open_folder(parent).map_err(|error| error.into_file_error("set", &path))?;
    let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    faults
        .before("set", &path)
        .and_then(|()| openat(&folder.fd, name, flags, Mode::empty()))
        .map_err(|errno| FileError::from_errno("set", &path, errno))
        .and_then(|fd| {
            // The kernel reads the value from one call.
            let text = format!("{value}\n");
            let written = File::from(fd).write_all(text.as_bytes());
            written.map_err(|error| FileError::new("set", &path, error.to_string()))
        })
}
