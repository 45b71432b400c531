//! What people see at a glance: a text, a colour and since when.

use crate::Time;

named! {
    /// How a status should be taken.
    Indication {
        /// Nothing is known.
        Unspecified = "unspecified",
        /// Somebody should look.
        Error = "error",
        /// Something is going on.
        InProgress = "in_progress",
        /// All is quiet.
        Idle = "idle",
    }
}

/// One status of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The ancestor's words where it has any (northbound section 1.3).
    pub text: String,
    /// How to take it.
    pub indication: Indication,
    /// Since when it holds.
    pub at: Time,
}

impl Status {
    /// A status that holds from now on.
    #[must_use]
    pub fn new(text: &str, indication: Indication, at: Time) -> Self {
        Self {
            text: text.to_owned(),
            indication,
            at,
        }
    }

    /// The same status with the time at which it really began: the old one's if nothing changed.
    #[must_use]
    pub fn since(self, before: Option<&Self>) -> Self {
        match before {
            Some(old) if old.text == self.text && old.indication == self.indication => old.clone(),
            _ => self,
        }
    }
}
