//! The reason why a node itself delays a prepared change: a user is logged in, the disk is full, or
//! its owner's maintenance hours have not started.

use evenkeel_domain::text::{cut, storable};

/// The maximum length of a reason, in bytes.
const MAX_REASON_BYTES: usize = 1_000;

/// Normalizes the reason to one storable line; empty if the node waits for nothing.
pub fn normalize(text: &str) -> String {
    let parts: Vec<&str> = text.split_whitespace().collect();
    cut(&storable(&parts.join(" ")), MAX_REASON_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_becomes_one_storable_line() {
        assert_eq!(normalize(""), "");
        assert_eq!(normalize(" \n"), "");
        assert_eq!(normalize("alice is\nlogged in\0"), "alice is logged in\u{fffd}");
        let long = normalize(&"x".repeat(1 << 20));
        assert!(long.len() <= MAX_REASON_BYTES && long.ends_with("[cut]"), "{long}");
    }
}
