//! Errors about invalid values.

/// An invalid value and the field that it was given for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Invalid {
    /// Name of the field in the API.
    pub field: &'static str,
    /// What is wrong with the value, and what is accepted.
    pub why: String,
}

impl Invalid {
    /// Rejects the value of a field.
    #[must_use]
    pub fn new(field: &'static str, why: impl Into<String>) -> Self {
        Self { field, why: why.into() }
    }
}
