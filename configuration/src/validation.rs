//! The rules of a document.

use std::fmt;

use crate::document::Document;

/// A field that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// The fields of a document that break a rule, in the order of the document.
pub fn validate(_document: &Document) -> Vec<FieldError> {
    Vec::new()
}
