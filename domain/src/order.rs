//! Orders: what a user requests of one instance, outside the schedules.

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::id::InstanceId;
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

impl Order {
    /// The order, if it replaces another one: a repeated order to update now does not shorten the window of the one before.
    #[must_use]
    pub fn replacing(self, previous: Option<&Self>) -> Self {
        let is_repeated =
            |previous: &&Self| self.kind == OrderKind::Now && previous.kind == self.kind;
        let until = previous
            .filter(is_repeated)
            .map_or(self.until, |previous| self.until.max(previous.until));
        Self { until, ..self }
    }

    /// A name of the order that no other order in its project has.
    #[must_use]
    pub fn unique_name(&self, instance: InstanceId) -> String {
        format!("order {instance} {}", self.at.timestamp_micros())
    }
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
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn a_repeated_order_does_not_shorten_the_window() {
        let order = |kind, from, to| Order {
            kind,
            at: Time::UNIX_EPOCH + TimeDelta::hours(from),
            until: Time::UNIX_EPOCH + TimeDelta::hours(to),
            reason: String::new(),
            by: "ada".to_owned(),
        };
        let (long, short) = (order(OrderKind::Now, 0, 5), order(OrderKind::Now, 1, 2));
        let repeated = short.clone().replacing(Some(&long));
        assert_eq!((repeated.at, repeated.until), (short.at, long.until));
        let later = order(OrderKind::Now, 4, 6);
        assert_eq!(later.clone().replacing(Some(&long)), later, "it extends the window");
        assert_eq!(short.clone().replacing(None), short);
        let cancelled = order(OrderKind::Cancel, 0, 5);
        assert_eq!(short.clone().replacing(Some(&cancelled)), short);
        assert_eq!(cancelled.clone().replacing(Some(&long)), cancelled);
    }

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
