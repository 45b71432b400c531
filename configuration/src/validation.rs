//! The rules of a document.

mod accounts;
mod actions;
mod error_list;
mod files;
mod packages;
mod read_error;
mod relations;
#[cfg(test)]
mod tests;
mod text;
mod units;

use std::fmt;

use serde::Serialize;

use crate::document::{Bundle, Desired, Document, Entry, SysctlState};

pub(crate) use error_list::{ErrorList, child_path, excerpt, item_path, short};
pub use read_error::ReadError;
pub(crate) use relations::unique_name;
pub(crate) use units::{UNIT_SUFFIXES, is_template};

/// Most entries of a document.
pub const MAX_ENTRIES: usize = 20_000;

/// Most errors that are reported of one document.
pub const MAX_ERRORS: usize = 100;

/// A field that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FieldError {
    /// Path of the field, such as `bundles[0].entries[2].desired.mode`. Empty for the document.
    pub path: String,
    /// What is wrong, and what is accepted.
    pub message: String,
}

impl FieldError {
    /// An error of the field at a path.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

impl std::error::Error for FieldError {}

/// The fields of a document that break a rule: those of single entries in the order of the
/// document, then those that concern several entries. Further errors than [`MAX_ERRORS`] are only
/// counted.
pub fn validate(document: &Document) -> Vec<FieldError> {
    let mut errors = ErrorList::default();
    check_settings(document, &mut errors);
    for (index, bundle) in document.bundles.iter().enumerate() {
        check_bundle(&format!("bundles[{index}]"), bundle, &mut errors);
    }
    relations::check(document, &mut errors);
    errors.into_errors()
}

/// The fields of an entry that break a rule of single entries. Their paths begin in the entry.
pub(crate) fn validate_entry(entry: &Entry) -> Vec<FieldError> {
    let mut errors = ErrorList::default();
    check_entry("", entry, &mut errors);
    errors.into_errors()
}

fn check_settings(document: &Document, errors: &mut ErrorList) {
    for (index, kind) in document.remove_extras.iter().enumerate() {
        if document.remove_extras[..index].contains(kind) {
            errors.add(&format!("removeExtras[{index}]"), "is in the list twice; remove one");
        }
    }
    let count = document.entries().count();
    if count > MAX_ENTRIES {
        let message = format!("{count} entries are too many; at most {MAX_ENTRIES} are accepted");
        errors.add("bundles", message);
    }
}

fn check_bundle(path: &str, bundle: &Bundle, errors: &mut ErrorList) {
    text::check_label(&child_path(path, "name"), &bundle.name, errors);
    for (index, entry) in bundle.entries.iter().enumerate() {
        check_entry(&format!("{path}.entries[{index}]"), entry, errors);
    }
}

fn check_entry(path: &str, entry: &Entry, errors: &mut ErrorList) {
    let name_path = child_path(path, "name");
    let path = child_path(path, "desired");
    match &entry.desired {
        Desired::File(state) => {
            text::check_path(&name_path, &entry.name, errors);
            files::check(&path, state, errors);
        }
        Desired::Unit(state) => units::check(&name_path, &path, (&entry.name, state), errors),
        Desired::Package(state) => {
            packages::check_name(&name_path, &entry.name, errors);
            packages::check_desired_version(&path, &state.version, errors);
        }
        Desired::PackageSource(state) => {
            packages::check_source_id(&name_path, &entry.name, errors);
            packages::check_source(&path, state, errors);
        }
        Desired::Action(action) => {
            text::check_label(&name_path, &entry.name, errors);
            actions::check(&path, action, errors);
        }
        Desired::User(state) => {
            accounts::check_name(&name_path, &entry.name, errors);
            accounts::check_user(&path, state, errors);
        }
        Desired::UserGroup(state) => {
            accounts::check_name(&name_path, &entry.name, errors);
            accounts::check_group(&path, state, errors);
        }
        Desired::Sysctl(state) => {
            check_sysctl_key(&name_path, &entry.name, errors);
            check_sysctl_value(&path, state, errors);
        }
    }
}

/// Key as in sysctl.d(5): words that are separated by dots; or by slashes, if a word has a dot.
fn check_sysctl_key(path: &str, key: &str, errors: &mut ErrorList) {
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let words: Vec<&str> = sysctl_words(key);
    let is_good = words.len() > 1
        && key.len() <= text::MAX_NAME_BYTES
        && !key.starts_with('-')
        && key.chars().all(is_accepted)
        && words.iter().all(|word| !word.is_empty() && !matches!(*word, "." | ".."));
    if !is_good {
        errors.add(
            path,
            "is not a key of a kernel setting; accepted are words of letters, digits, \"_\" and \
             \"-\" that are separated by dots, such as vm.max_map_count; or by slashes, if a word \
             has a dot: net/ipv4/conf/eth0.1/forwarding",
        );
    }
}

/// The words of a key of sysctl.d(5): the first separator is the separator.
fn sysctl_words(key: &str) -> Vec<&str> {
    let separator = key.chars().find(|c| matches!(c, '.' | '/')).unwrap_or('.');
    key.split(separator).collect()
}

fn check_sysctl_value(path: &str, state: &SysctlState, errors: &mut ErrorList) {
    let path = child_path(path, "value");
    if state.value.len() > text::MAX_PATH_BYTES {
        errors.add(&path, format!("is longer than {} bytes", text::MAX_PATH_BYTES));
    }
    if state.value.chars().any(|c| c.is_control() && c != '\t') {
        errors.add(&path, "has a line break or a control character; write one line");
    }
}
