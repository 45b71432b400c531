//! Why a document is not read.

use std::fmt;

use super::FieldError;

/// A document that is not read. All readers return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The text does not have the format, or fields break a rule.
    Invalid(Vec<FieldError>),
    /// The document has entries or fields that are not offered. The list may also have fields that
    /// break a rule.
    NotOffered(Vec<FieldError>),
}

impl ReadError {
    /// The fields, in the order of the document.
    pub fn fields(&self) -> &[FieldError] {
        match self {
            Self::Invalid(fields) | Self::NotOffered(fields) => fields,
        }
    }

    /// The fields, in the order of the document.
    pub fn into_fields(self) -> Vec<FieldError> {
        match self {
            Self::Invalid(fields) | Self::NotOffered(fields) => fields,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in self.fields().iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{field}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ReadError {}
