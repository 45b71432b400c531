//! Why a node itself does not let a prepared change begin: somebody is logged in, the disk is full, its owner's hours
//! have not come.

use evenkeel_domain::text::{cut, storable};

/// The longest reason that is kept, in bytes.
const MAX_TEXT: usize = 1_000;

/// What a node says that it waits for, on one line; empty if it waits for nothing.
pub fn said(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    cut(&storable(&words.join(" ")), MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_waits_for_is_one_line_that_can_be_kept() {
        assert_eq!(said(""), "");
        assert_eq!(said(" \n"), "");
        assert_eq!(said("alice is\nlogged in\0"), "alice is logged in\u{fffd}");
        let long = said(&"x".repeat(1 << 20));
        assert!(long.len() <= MAX_TEXT && long.ends_with("[cut]"), "{long}");
    }
}
