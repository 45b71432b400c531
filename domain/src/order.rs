//! Orders: what a person wants of one instance, outside the plan.

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::invalid::Invalid;

named! {
    /// What is ordered.
    OrderKind {
        /// Update now: a window of its own.
        Now = "now",
        /// Do not update in the windows that are open, and give up what has changed nothing yet.
        Cancel = "cancel",
    }
}

/// What a person ordered for an instance. The latest order of an instance replaces the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// What.
    pub kind: OrderKind,
    /// When it was given.
    pub at: Time,
    /// Until when an update may begin; without meaning for a cancellation.
    pub until: Time,
    /// Why, for people.
    pub reason: String,
    /// Who said so.
    pub by: String,
}

/// Why something was paused or ordered: what a person wrote.
///
/// # Errors
/// It is longer than 500 bytes or has control characters.
pub fn reason(text: &str) -> Result<String, Invalid> {
    if text.len() > 500 {
        return Err(Invalid::new("reason", "longer than 500 bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(Invalid::new(
            "reason",
            "one line, without control characters",
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_what_people_write() {
        for good in ["", "the mirror's broken [JIRA-1]", "St\u{f6}rung: 100 %"] {
            assert_eq!(reason(good).as_deref(), Ok(good));
        }
        for bad in ["a\nb", "\0", &"a".repeat(501)] {
            assert!(reason(bad).is_err(), "{bad:?}");
        }
    }
}
