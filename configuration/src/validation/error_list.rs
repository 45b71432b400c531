//! The errors of a document, and the paths of its fields.

use super::{FieldError, MAX_ERRORS, ReadError};

/// Longest excerpt of a document in a message.
const MAX_EXCERPT_CHARS: usize = 60;

/// Longest text without quotes in a message: most paths fit.
const MAX_SHORT_CHARS: usize = 300;

/// Longest message. Only messages with several excerpts or long lists reach it.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Errors of one document. It keeps [`MAX_ERRORS`], and as many things that are not offered, and
/// counts the others.
#[derive(Debug, Default)]
pub(crate) struct ErrorList {
    errors: Vec<FieldError>,
    omitted: usize,
    /// Number of things that are not offered.
    not_offered: usize,
}

impl ErrorList {
    /// Adds a field that breaks a rule.
    pub(crate) fn add(&mut self, path: &str, message: impl Into<String>) {
        let is_full = self.is_full();
        self.push(path, message, is_full);
    }

    /// Adds a field that is valid in its format and not offered.
    pub(crate) fn add_not_offered(&mut self, path: &str, message: impl Into<String>) {
        let is_full = self.not_offered >= MAX_ERRORS;
        self.not_offered += 1;
        self.push(path, message, is_full);
    }

    fn push(&mut self, path: &str, message: impl Into<String>, is_full: bool) {
        if is_full {
            self.omitted += 1;
        } else {
            let message = cut(message.into(), MAX_MESSAGE_CHARS);
            self.errors.push(FieldError::new(path, message));
        }
    }

    /// Whether further errors are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() - self.not_offered.min(MAX_ERRORS) >= MAX_ERRORS
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// The document if there is no error.
    ///
    /// # Errors
    /// The errors. Something that is not offered is more important than another error: a correction
    /// does not help then.
    pub(crate) fn into_result<T>(self, document: T) -> Result<T, ReadError> {
        let has_not_offered = self.not_offered > 0;
        let errors = self.into_errors();
        if errors.is_empty() {
            Ok(document)
        } else if has_not_offered {
            Err(ReadError::NotOffered(errors))
        } else {
            Err(ReadError::Invalid(errors))
        }
    }

    /// All errors; the last one has the number of those that are not kept.
    pub(crate) fn into_errors(self) -> Vec<FieldError> {
        self.into_list("errors")
    }

    /// The same for a list of warnings.
    pub(crate) fn into_warnings(self) -> Vec<FieldError> {
        self.into_list("warnings")
    }

    fn into_list(mut self, kind: &str) -> Vec<FieldError> {
        if self.omitted > 0 {
            let message = format!("{} further {kind} are not listed", self.omitted);
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

/// A text without quotes, shortened and without control characters, for messages and paths.
pub(crate) fn short(text: &str) -> String {
    let visible = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    cut(visible.take(MAX_SHORT_CHARS + 1).collect(), MAX_SHORT_CHARS)
}

fn cut(mut text: String, max_chars: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
        text.push('…');
    }
    text
}
