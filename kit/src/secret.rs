//! Values that must not appear in logs.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

/// A text that must not appear in logs: `Debug` hides it, there is no `Display` and no `Serialize`, and its memory is
/// overwritten when it is dropped.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(SecretString);

impl Secret {
    /// Protects `text` from being shown.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// The text itself. Call this only where the text is used.
    #[must_use]
    pub fn reveal(&self) -> &str {
        self.0.expose_secret()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_by_debug() {
        let secret = Secret::new("open sesame");
        assert_eq!(format!("{:?}", Some(secret)), "Some([secret])");
    }

    #[test]
    fn a_secret_can_be_revealed() {
        assert_eq!(Secret::from("open sesame".to_owned()).reveal(), "open sesame");
    }
}
