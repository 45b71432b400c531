//! Orders: what a user requests of one instance, outside the schedules.

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::invalid::Invalid;

named! {
    OrderKind {
        /// Update now: opens a window of its own.
        Now = "now",
        /// Start no update in the windows that are open, and cancel a run that has changed nothing yet.
        Cancel = "cancel",
    }
}

/// An order of a user for an instance. The latest order of an instance replaces the previous one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub kind: OrderKind,
    pub at: Time,
    /// Until when an update may start; ignored for a cancellation.
    pub until: Time,
    /// Reason, for users.
    pub reason: String,
    /// The user who gave it.
    pub by: String,
}

/// Parses the reason of a pause or an order.
///
/// # Errors
/// The text is longer than 500 bytes or has control characters.
pub fn parse_reason(text: &str) -> Result<String, Invalid> {
    if text.len() > 500 {
        return Err(Invalid::new("reason", "longer than 500 bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(Invalid::new("reason", "must be one line, without control characters"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_what_people_write() {
        for good in ["", "the mirror's broken [JIRA-1]", "St\u{f6}rung: 100 %"] {
            assert_eq!(parse_reason(good).as_deref(), Ok(good));
        }
        for bad in ["a\nb", "\0", &"a".repeat(501)] {
            assert!(parse_reason(bad).is_err(), "{bad:?}");
        }
    }
}
