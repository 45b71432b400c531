//! The errors of a document, and the paths of its fields.

use super::{FieldError, MAX_ERRORS};

/// Longest excerpt of a document in a message.
const MAX_EXCERPT_CHARS: usize = 60;

/// Longest message. Only messages with several excerpts or long lists reach it.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Errors of one document. It keeps [`MAX_ERRORS`] and counts the others.
#[derive(Debug, Default)]
pub(crate) struct ErrorList {
    errors: Vec<FieldError>,
    omitted: usize,
}

impl ErrorList {
    pub(crate) fn add(&mut self, path: &str, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
            let message = cut(message.into(), MAX_MESSAGE_CHARS);
            self.errors.push(FieldError::new(path, message));
        } else {
            self.omitted += 1;
        }
    }

    /// All errors; the last one has the number of those that are not kept.
    pub(crate) fn into_errors(mut self) -> Vec<FieldError> {
        if self.omitted > 0 {
            let message = format!("{} further errors are not listed", self.omitted);
            self.errors.push(FieldError::new("", message));
        }
        self.errors
    }
}

/// Path of a field of an object: `bundles[0].name`, or `dropIns["10-a.conf"]` if the name is no
/// word.
pub(crate) fn child_path(parent: &str, name: &str) -> String {
    let is_word = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match (parent.is_empty(), is_word) {
        (true, true) => name.to_owned(),
        (false, true) => format!("{parent}.{name}"),
        (_, false) => format!("{parent}[{}]", excerpt(name)),
    }
}

/// Path of an item of a list.
pub(crate) fn item_path(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

/// A text in quotes, shortened, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(MAX_EXCERPT_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A text without quotes, shortened, for messages.
pub(crate) fn short(text: &str) -> String {
    cut(text.chars().take(MAX_EXCERPT_CHARS + 1).collect(), MAX_EXCERPT_CHARS)
}

fn cut(mut text: String, max_chars: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
        text.push('…');
    }
    text
}
