//! What is said about a value that cannot be.

/// A value that cannot be, with the field it was given for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// The field as the caller knows it.
    pub field: &'static str,
    /// What is wrong with the value, and what would be right.
    pub why: String,
}

impl Invalid {
    /// Says why the value of a field cannot be.
    #[must_use]
    pub fn new(field: &'static str, why: impl Into<String>) -> Self {
        Self {
            field,
            why: why.into(),
        }
    }
}
