//! Why something did not work, for programs and for people.

use serde::{Deserialize, Serialize};

/// Why an attempt failed, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The lists of packages could not be made current.
    Refresh,
    /// There is no way to the wanted state.
    Plan,
    /// Something could not be fetched.
    Download,
    /// Something is not signed by whom it should be.
    Signature,
    /// The disk is full or does not work.
    Storage,
    /// A package's script or dpkg itself failed.
    Apply,
    /// Applied, but not found as wanted.
    Verify,
    /// The agent was killed and could not finish.
    Interrupted,
    /// The agent does not know how to do what was asked.
    Unsupported,
    /// Changed as wanted, but the reboot that it needs did not come about.
    Reboot,
    /// The machine's owner does not allow it.
    Limits,
}

/// Why something did not work, for a person as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// For programs.
    pub kind: FailureKind,
    /// What a person needs to know, at most [`Failure::MAX_REASON`] bytes.
    pub reason: String,
    /// The last lines of the tool that failed, at most [`Failure::MAX_LOG`] bytes.
    pub log: String,
}

impl Failure {
    /// The most bytes that a reason may have.
    pub const MAX_REASON: usize = 4 << 10;
    /// The most bytes that a log may have.
    pub const MAX_LOG: usize = 32 << 10;
    /// The most bytes of the log that a remark may have.
    pub const MAX_REMARK: usize = 1 << 10;

    /// A failure without a tool's words.
    pub fn new(kind: FailureKind, reason: impl Into<String>) -> Self {
        Self::with_log(kind, reason, "")
    }

    /// A failure with the tool's own words, of which the end is kept.
    pub fn with_log(kind: FailureKind, reason: impl Into<String>, log: &str) -> Self {
        let mut reason = reason.into();
        if reason.len() > Self::MAX_REASON {
            let end = reason.floor_char_boundary(Self::MAX_REASON - 4);
            reason.truncate(end);
            reason.push_str(" …");
        }
        Self {
            kind,
            reason,
            log: tail(log, Self::MAX_LOG).to_owned(),
        }
    }

    /// The same in a few words, for a step that failed and did not matter to the end.
    pub fn remark(&self, step: &str) -> String {
        let words = tail(self.log.trim_end(), Self::MAX_REMARK);
        let colon = if words.is_empty() { "" } else { ":\n" };
        format!("{step}: {}{colon}{words}", self.reason)
    }
}

/// The end of a text, at most `most` bytes, beginning at a line if there is one.
pub fn tail(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = &text[text.ceil_char_boundary(text.len() - most)..];
    match end.split_once('\n') {
        Some((_, whole_lines)) if !whole_lines.is_empty() => whole_lines,
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_last_lines_and_a_reason_its_first_words() {
        let log = "é".repeat(Failure::MAX_LOG) + "\nthe end";
        let failure = Failure::with_log(FailureKind::Apply, "é".repeat(Failure::MAX_REASON), &log);
        assert_eq!(failure.log, "the end");
        assert!(failure.reason.len() <= Failure::MAX_REASON);
        assert!(failure.reason.ends_with(" …"));
    }

    #[test]
    fn a_tail_without_a_line_end_is_cut_between_characters() {
        assert_eq!(tail("aéb", 2), "b");
        assert_eq!(tail("aéb", 3), "éb");
        assert_eq!(tail("one\ntwo\n", 5), "two\n");
    }
}
