//! Checks settings of the kernel.
//!
//! All settings of a document are in [`SYSCTL_FILE`], which sets them at boot. An entry is good if
//! this file has its value and the running kernel has it, below `/proc/sys`. Whitespace between
//! numbers does not matter: the kernel writes tabs. If the machine has no `/proc/sys`, as in an
//! image, only the file is compared. A setting that the kernel does not have is bad.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read};

use evenkeel_configuration::document::SysctlState;
use serde_json::Value;

use super::read;
use crate::files::{LineReader, RootFolder};
use crate::finding::{Deviation, Difference};
use crate::names::{SYSCTL_FILE, SYSCTL_FOLDER, sysctl_path};

/// Longest value of a running kernel that is read.
const MAX_VALUE_BYTES: u64 = 64 << 10;

/// The settings in the file that a document has.
#[derive(Debug, Default)]
pub(super) struct SysctlSettings {
    /// Values by the path below `/proc/sys`.
    values: HashMap<String, String>,
    /// Whether the running kernel can be compared.
    has_kernel: bool,
}

impl SysctlSettings {
    /// Reads the file, if a document has settings.
    ///
    /// # Errors
    /// A sentence: the file cannot be read.
    pub fn read(root: &RootFolder, keys: &[&str]) -> Result<Self, String> {
        if keys.is_empty() {
            return Ok(Self::default());
        }
        // A link is replaced by a file, so its settings do not count.
        let values = match read::open_own_file(root, SYSCTL_FILE) {
            Ok(file) => parse_settings(LineReader::new(BufReader::new(file)), keys),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(HashMap::new()),
            Err(error) if read::is_link_error(&error) => Ok(HashMap::new()),
            Err(error) => Err(error),
        };
        let values = values.map_err(|error| read::reading_failure(SYSCTL_FILE, &error))?;
        Ok(Self { values, has_kernel: read::is_folder(root, SYSCTL_FOLDER) })
    }
}

/// The values in the file, by the path below `/proc/sys`.
///
/// # Errors
/// A sentence: the file cannot be read.
pub(crate) fn read_stored_settings(
    root: &RootFolder,
    keys: &[&str],
) -> Result<HashMap<String, String>, String> {
    SysctlSettings::read(root, keys).map(|settings| settings.values)
}

/// Whether the running kernel has a value. `file` is the path of the setting in `/proc/sys`.
pub(crate) fn has_running_value(root: &RootFolder, file: &str, desired: &str) -> bool {
    read_kernel_value(root, file).is_ok_and(|value| has_same_words(&value, desired))
}

/// Parses lines of sysctl.d(5). The last line of a setting counts.
fn parse_settings<R: BufRead>(
    mut lines: LineReader<R>,
    keys: &[&str],
) -> io::Result<HashMap<String, String>> {
    let paths: HashSet<String> = keys.iter().filter_map(|key| sysctl_path(key)).collect();
    let mut values = HashMap::new();
    while let Some(line) = lines.next_line()? {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = key.trim();
        let Some(path) = sysctl_path(key.strip_prefix('-').unwrap_or(key)) else { continue };
        if paths.contains(&path) {
            values.insert(path, value.trim().to_owned());
        }
    }
    Ok(values)
}

/// Compares a setting with the file and the running kernel.
pub(super) fn check_sysctl(
    root: &RootFolder,
    key: &str,
    state: &SysctlState,
    settings: &Result<SysctlSettings, String>,
) -> Deviation {
    let settings = match settings {
        Ok(settings) => settings,
        Err(reason) => return Deviation::from_failure(reason),
    };
    let Some(path) = sysctl_path(key) else {
        return Deviation::from_failure("the name is not a key of a kernel setting");
    };
    let mut deviation = Deviation::default();
    if settings.has_kernel {
        compare_running(root, &path, &state.value, &mut deviation);
    }
    let stored = settings.values.get(&path);
    if !stored.is_some_and(|stored| has_same_words(stored, &state.value)) {
        let reason = match stored {
            Some(stored) => format!("{SYSCTL_FILE} has the value {stored}"),
            None => format!("{SYSCTL_FILE} does not have the setting"),
        };
        if settings.has_kernel {
            deviation.add_difference(Difference::Content, reason);
        } else {
            let stored = stored.map_or(Value::Null, |stored| Value::String(stored.clone()));
            deviation.add_field(Difference::Content, "value", stored, reason);
        }
    }
    deviation
}

fn compare_running(root: &RootFolder, path: &str, desired: &str, deviation: &mut Deviation) {
    let file = format!("{SYSCTL_FOLDER}/{path}");
    match read_kernel_value(root, &file) {
        Ok(value) if has_same_words(&value, desired) => {}
        Ok(value) => {
            let reason = format!("the kernel has the value {value}");
            deviation.add_field(Difference::Content, "value", value, reason);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            deviation.add_failure("the running kernel does not have this setting");
        }
        Err(error) => deviation.add_failure(read::reading_failure(&file, &error)),
    }
}

/// Reads the value of a file below `/proc/sys`.
///
/// # Errors
/// It does not exist, or cannot be read.
pub(crate) fn read_kernel_value(root: &RootFolder, file: &str) -> io::Result<String> {
    let mut value = Vec::new();
    read::open_file(root, file)?.take(MAX_VALUE_BYTES).read_to_end(&mut value)?;
    Ok(String::from_utf8_lossy(&value).trim().to_owned())
}

fn has_same_words(current: &str, desired: &str) -> bool {
    current.split_whitespace().eq(desired.split_whitespace())
}

#[cfg(test)]
mod tests;
