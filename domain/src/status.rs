//! Statuses of resources for users: a text, an indication and a time.

use crate::Time;

named! {
    /// How to interpret a status.
    Indication {
        /// Unknown.
        Unspecified = "unspecified",
        /// A user should investigate.
        Error = "error",
        /// Work is in progress.
        InProgress = "in_progress",
        /// Nothing is going on.
        Idle = "idle",
    }
}

impl Indication {
    /// A stored indication; one that this release does not know is unspecified.
    #[must_use]
    pub fn from_stored(name: &str) -> Self {
        Self::from_name(name).unwrap_or(Self::Unspecified)
    }
}

/// One status of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The text, which is EIM's where EIM defines one.
    pub text: String,
    /// How to interpret it.
    pub indication: Indication,
    pub at: Time,
}

impl Status {
    /// A status as the database stores it.
    #[must_use]
    pub fn from_stored(text: String, indication: &str, at: Time) -> Self {
        Self { text, indication: Indication::from_stored(indication), at }
    }

    /// A status that applies from `at` on.
    #[must_use]
    pub fn new(text: &str, indication: Indication, at: Time) -> Self {
        Self { text: text.to_owned(), indication, at }
    }

    /// Keeps the time of the previous status if text and indication are unchanged.
    #[must_use]
    pub fn with_time_of(self, before: Option<&Self>) -> Self {
        match before {
            Some(old) if old.text == self.text && old.indication == self.indication => old.clone(),
            _ => self,
        }
    }
}
