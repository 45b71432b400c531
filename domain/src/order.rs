//! Orders: what a person wants of one instance, outside the plan.

use serde::{Deserialize, Serialize};

use crate::Time;
use crate::invalid::Invalid;
use crate::text;

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
/// It is longer than 500 bytes or has other characters than texts may have.
pub fn reason(text: &str) -> Result<String, Invalid> {
    text::check("reason", text, 500, text::TEXT)?;
    Ok(text.to_owned())
}
