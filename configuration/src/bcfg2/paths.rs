//! Reads `Path` elements.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::entry_reader::EntryReader;
use crate::document::{FileContent, FileKind, FileMode, FileState};
use crate::validation::excerpt;

/// Types of a `Path`. None: Bcfg2 has the type, and it is not offered.
const TYPES: &[(&str, Option<FileKind>)] = &[
    ("file", Some(FileKind::File)),
    ("directory", Some(FileKind::Directory)),
    ("symlink", Some(FileKind::Symlink)),
    ("permissions", Some(FileKind::Permissions)),
    ("nonexistent", Some(FileKind::Absent)),
    ("hardlink", None),
    ("device", None),
    ("ignore", None),
    ("vcs", None),
    ("augeas", None),
];

/// How the text of a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextEncoding {
    Literal,
    Base64,
}

const ENCODINGS: &[(&str, TextEncoding)] = &[
    ("ascii", TextEncoding::Literal),
    ("utf-8", TextEncoding::Literal),
    ("UTF-8", TextEncoding::Literal),
    ("base64", TextEncoding::Base64),
];

/// Reads the state of a file. None if there is an error.
pub(super) fn read_path(reader: &mut EntryReader<'_>) -> Option<FileState> {
    refuse_unavailable(reader);
    let kind = read_kind(reader)?;
    let mut state = FileState { kind, ..FileState::default() };
    match kind {
        FileKind::File => {
            read_permissions(reader, &mut state);
            state.content = read_content(reader);
        }
        FileKind::Directory => {
            read_permissions(reader, &mut state);
            state.prune = reader.take_flag("prune");
        }
        FileKind::Permissions => read_permissions(reader, &mut state),
        FileKind::Symlink => state.target = reader.require("to"),
        FileKind::Absent => state.prune = reader.take_flag("recursive"),
    }
    if kind != FileKind::Absent && reader.take_flag("recursive") {
        let message = "the owner, group and mode of files below a directory do not change; \
                       write an entry for each file";
        reader.refuse_at("@recursive", message);
    }
    Some(state)
}

/// Refuses what Bcfg2's server adds to each path, unless it has the value that changes nothing.
fn refuse_unavailable(reader: &mut EntryReader<'_>) {
    if reader.take_flag("important") {
        let message = "the order of entries is fixed: packages, files, units, users; \
                       remove the attribute";
        reader.refuse_at("@important", message);
    }
    // Backups and differences in reports are options of Bcfg2's client.
    reader.take_flag("paranoid");
    reader.take_flag("sensitive");
    if reader.take("secontext").is_some_and(|context| context != "__default__") {
        reader.refuse_at("@secontext", "contexts of SELinux do not change; accepted: __default__");
    }
}

fn read_kind(reader: &mut EntryReader<'_>) -> Option<FileKind> {
    let name = reader.require("type")?;
    let accepted = "accepted: file, directory, symlink, permissions, nonexistent";
    match TYPES.iter().find(|(text, _)| *text == name) {
        Some((_, Some(kind))) => return Some(*kind),
        Some((_, None)) => {
            reader.refuse_at("@type", &format!("{name}; {accepted}"));
        }
        None => {
            let message = format!("{} is not a type of a path; {accepted}", excerpt(&name));
            reader.add_error_at("@type", message);
        }
    }
    None
}

fn read_permissions(reader: &mut EntryReader<'_>, state: &mut FileState) {
    state.owner = reader.require("owner");
    state.group = reader.require("group");
    let Some(text) = reader.require("mode") else {
        return;
    };
    // Bcfg2 reads every mode as octal, with and without a leading zero.
    let is_octal = text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    let mode = u32::from_str_radix(&text, 8).ok().filter(|_| is_octal).map(FileMode);
    state.mode = mode.filter(|mode| mode.0 <= FileMode::MAX.0);
    if state.mode.is_none() {
        let message = format!("{} is not a mode; write octal digits, such as 0644", excerpt(&text));
        reader.add_error_at("@mode", message);
    }
}

/// Reads the content of a file. None for an empty file, or after an error.
fn read_content(reader: &mut EntryReader<'_>) -> Option<FileContent> {
    let encoding = reader.take_choice("encoding", ENCODINGS).unwrap_or(TextEncoding::Literal);
    let is_empty = reader.take_flag("empty");
    let text = reader.take_text();
    if is_empty {
        if !text.trim().is_empty() {
            reader.add_error_at("@empty", "the file has a text; remove the text or the attribute");
        }
        return None;
    }
    if text.is_empty() {
        reader.add_error("the file has no text; write empty=\"true\" for an empty file");
        return None;
    }
    if encoding == TextEncoding::Literal {
        return Some(FileContent { inline: Some(text), ..FileContent::default() });
    }
    let digits: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    match STANDARD.decode(&digits) {
        Ok(bytes) if bytes.is_empty() => None,
        Ok(_) => Some(FileContent { base64: Some(digits), ..FileContent::default() }),
        Err(error) => {
            reader.add_error(format!("the text is not base64: {error}"));
            None
        }
    }
}
