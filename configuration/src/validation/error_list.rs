//! The errors of a document, and the paths of its fields.

use super::{FieldError, MAX_ERRORS};

/// Errors of one document. It keeps [`MAX_ERRORS`] and counts the others.
#[derive(Debug, Default)]
pub(crate) struct ErrorList {
    errors: Vec<FieldError>,
    omitted: usize,
}

impl ErrorList {
    pub(crate) fn add(&mut self, path: &str, message: impl Into<String>) {
        if self.errors.len() < MAX_ERRORS {
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
        (_, false) => format!("{parent}[{}]", crate::native::excerpt(name)),
    }
}

/// Path of an item of a list.
pub(crate) fn item_path(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}
