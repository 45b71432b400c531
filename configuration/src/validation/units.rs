//! Rules of systemd units.

use std::collections::BTreeSet;

use super::text::{MAX_NAME_BYTES, check_path, check_script};
use super::{ErrorList, child_path, excerpt, item_path};
use crate::document::UnitState;

/// Types of units, by their suffix (systemd.unit(5)).
pub(crate) const UNIT_SUFFIXES: [&str; 11] = [
    "service",
    "socket",
    "target",
    "device",
    "mount",
    "automount",
    "swap",
    "timer",
    "path",
    "slice",
    "scope",
];

const DROP_IN_SUFFIX: &str = ".conf";

pub(super) fn check(
    name_path: &str,
    path: &str,
    (name, state): (&str, &UnitState),
    errors: &mut ErrorList,
) {
    if let Err(message) = check_name(name) {
        errors.add(name_path, message);
    } else if is_template(name) && state.command.is_some() {
        errors.add(
            &child_path(path, "command"),
            "a template cannot run; remove the command, or add a unit for an instance, such as \
             name@instance.service",
        );
    }
    if let Some(content) = &state.content {
        check_script(&child_path(path, "content"), content, errors);
    }
    let drop_ins_path = child_path(path, "dropIns");
    for (drop_in, content) in &state.drop_ins {
        let path = child_path(&drop_ins_path, drop_in);
        check_drop_in_name(&path, drop_in, errors);
        check_script(&path, content, errors);
    }
    let paths_path = child_path(path, "filePaths");
    let mut seen = BTreeSet::new();
    for (index, file_path) in state.file_paths.iter().enumerate() {
        let path = item_path(&paths_path, index);
        check_path(&path, file_path, errors);
        if !seen.insert(file_path) {
            errors.add(&path, "is in the list twice; remove one");
        }
    }
}

/// A name as `unit_name_is_valid` of systemd accepts it, without its length.
fn check_name(name: &str) -> Result<(), String> {
    let is_suffix = |suffix: &str| UNIT_SUFFIXES.contains(&suffix);
    let Some((stem, _)) = name.rsplit_once('.').filter(|(_, suffix)| is_suffix(suffix)) else {
        return Err(format!(
            "{} has no suffix of a unit; accepted are .{}",
            excerpt(name),
            UNIT_SUFFIXES.join(", .")
        ));
    };
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("is longer than {MAX_NAME_BYTES} bytes"));
    }
    let prefix = stem.split_once('@').map_or(stem, |(prefix, _)| prefix);
    let is_accepted = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    if prefix.is_empty() || !stem.bytes().all(is_accepted) {
        return Err(format!(
            "{} is not the name of a unit; accepted are letters, digits and :-_.\\ before the \
             suffix, and @ before the instance",
            excerpt(name)
        ));
    }
    Ok(())
}

/// Whether the unit is a template without an instance: `getty@.service`.
pub(crate) fn is_template(name: &str) -> bool {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    stem.split_once('@').is_some_and(|(_, instance)| instance.is_empty())
}

fn check_drop_in_name(path: &str, name: &str, errors: &mut ErrorList) {
    let stem = name.strip_suffix(DROP_IN_SUFFIX).unwrap_or_default();
    let has_bad_character = name.chars().any(|c| c.is_control() || c == '/');
    if stem.is_empty() || stem.starts_with('.') || has_bad_character || name.len() > MAX_NAME_BYTES
    {
        errors.add(
            path,
            format!(
                "is not the name of a drop-in; accepted are file names that end with .conf, such \
                 as 10-limits.conf, of at most {MAX_NAME_BYTES} bytes"
            ),
        );
    }
}
