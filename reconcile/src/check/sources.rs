//! Checks package sources by the files that belong to them.
//!
//! A source is `/etc/apt/sources.list.d/evenkeel-source-ID.sources`, and its key is
//! `/etc/apt/keyrings/evenkeel-source-ID.asc`, which the field `Signed-By` names. The sources of
//! update policies are in `evenkeel-update.sources`, so no identifier leads to their name.
//!
//! The file must contain one paragraph with the fields of the entry and `Signed-By`. The order of
//! fields, whitespace, comments, and capital letters in names of fields do not matter. An entry
//! without a key must not have `Signed-By`. Keys are compared without whitespace at the ends of
//! lines.
//!
//! Reports have the digest of a source instead of its text, because addresses may contain
//! passwords.

use std::collections::BTreeMap;
use std::io;

use evenkeel_configuration::document::PackageSourceState;
use serde_json::Value;

use super::read;
use crate::files::RootFolder;
use crate::finding::{Deviation, Difference};
use crate::names::{source_key_path, source_path};

const SIGNED_BY: &str = "signed-by";

/// The content of the file of a source.
pub fn render_source(id: &str, state: &PackageSourceState) -> String {
    let mut text = state.source.trim().to_owned();
    text.push('\n');
    if state.key.is_some() {
        text.push_str("Signed-By: ");
        text.push_str(&source_key_path(id));
        text.push('\n');
    }
    text
}

/// Compares a source and its key with their files.
pub(super) fn check_source(root: &RootFolder, id: &str, state: &PackageSourceState) -> Deviation {
    let mut deviation = Deviation::default();
    let path = source_path(id);
    match read::read_own_text(root, &path) {
        Ok(current) => {
            let desired = render_source(id, state);
            if let Some(reason) = compare_sources(&current, &desired) {
                let value = read::digest_value(&current);
                deviation.add_field(Difference::Content, "source", value, reason);
            }
        }
        Err(error) => add_unread(("source", &path), &error, &mut deviation),
    }
    if let Some(key) = &state.key {
        let path = source_key_path(id);
        match read::read_own_text(root, &path) {
            Ok(current) if has_same_lines(&current, key) => {}
            Ok(current) => {
                let value = read::digest_value(&current);
                let reason = "the key of the source differs";
                deviation.add_field(Difference::Content, "key", value, reason);
            }
            Err(error) => add_unread(("key", &path), &error, &mut deviation),
        }
    }
    deviation
}

fn add_unread((field, path): (&str, &str), error: &io::Error, deviation: &mut Deviation) {
    if error.kind() == io::ErrorKind::NotFound {
        let difference =
            if field == "source" { Difference::Existence } else { Difference::Content };
        let reason = format!("the file {path} is missing");
        deviation.add_field(difference, field, Value::Null, reason);
    } else if read::is_link_error(error) {
        let reason = format!("the file {path} is a symbolic link");
        deviation.add_field(Difference::Content, field, Value::Null, reason);
    } else {
        deviation.add_failure(read::reading_failure(path, error));
    }
}

/// The reason why a file is not the desired source; none if it is.
fn compare_sources(current: &[u8], desired: &str) -> Option<String> {
    let paragraphs = match std::str::from_utf8(current).ok().map(parse_paragraphs) {
        Some(Ok(paragraphs)) => paragraphs,
        Some(Err(line)) => return Some(format!("line {line} of the source is not a field")),
        None => return Some("the file of the source is not UTF-8".to_owned()),
    };
    let [current] = paragraphs.as_slice() else {
        let count = paragraphs.len();
        return Some(format!("the file of the source has {count} paragraphs instead of one"));
    };
    let desired = parse_paragraphs(desired).unwrap_or_default().pop().unwrap_or_default();
    let names = current.keys().chain(desired.keys().filter(|name| !current.contains_key(*name)));
    let names = names.filter(|name| current.get(*name) != desired.get(*name));
    let names: Vec<&str> = names.map(String::as_str).collect();
    match names[..] {
        [] => None,
        [SIGNED_BY] => Some("the source does not name its key in Signed-By".to_owned()),
        [name] => Some(format!("the field {name} of the source differs")),
        _ => Some(format!("the fields {} of the source differ", names.join(", "))),
    }
}

/// The fields of a paragraph by their names in lower case, with single spaces in the values.
type SourceParagraph = BTreeMap<String, String>;

/// Parses paragraphs of deb822(5).
///
/// # Errors
/// The number of a line that is not part of a field, or repeats one.
fn parse_paragraphs(text: &str) -> Result<Vec<SourceParagraph>, usize> {
    let mut paragraphs = Vec::new();
    let mut paragraph = SourceParagraph::new();
    let mut last: Option<String> = None;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            if !paragraph.is_empty() {
                paragraphs.push(std::mem::take(&mut paragraph));
            }
            last = None;
        } else if line.starts_with([' ', '\t']) {
            let value = last.as_ref().and_then(|name| paragraph.get_mut(name));
            add_words(value.ok_or(index + 1)?, line);
        } else {
            let (name, rest) = line.split_once(':').ok_or(index + 1)?;
            let name = name.trim_end().to_ascii_lowercase();
            let mut value = String::new();
            add_words(&mut value, rest);
            if name.is_empty() || paragraph.insert(name.clone(), value).is_some() {
                return Err(index + 1);
            }
            last = Some(name);
        }
    }
    if !paragraph.is_empty() {
        paragraphs.push(paragraph);
    }
    Ok(paragraphs)
}

fn add_words(value: &mut String, text: &str) {
    for word in text.split_whitespace() {
        if !value.is_empty() {
            value.push(' ');
        }
        value.push_str(word);
    }
}

fn has_same_lines(current: &[u8], desired: &str) -> bool {
    let Ok(current) = std::str::from_utf8(current) else { return false };
    let lines = |text: &str| -> Vec<String> {
        text.trim().lines().map(|line| line.trim_end().to_owned()).collect()
    };
    lines(current) == lines(desired)
}

#[cfg(test)]
mod tests;
