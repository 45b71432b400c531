//! Failures, with a kind for programs and a reason for people.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The package lists could not be refreshed.
    Refresh,
    /// No plan leads to the desired state.
    Plan,
    /// A download failed.
    Download,
    /// A signature is missing or invalid.
    Signature,
    /// The disk is full or does not work.
    Storage,
    /// A package script or dpkg failed.
    Apply,
    /// The change was applied, but the node is not as desired.
    Verify,
    /// The agent was killed and could not finish.
    Interrupted,
    /// The agent does not support this kind of update.
    Unsupported,
    /// The change was applied, but the reboot that it needs did not happen.
    Reboot,
    /// The machine's owner does not allow it.
    Limits,
}

/// A failure with its reason and the log of the failed tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
pub struct Failure {
    /// For programs.
    pub kind: FailureKind,
    /// Reason for a person, at most [`Failure::MAX_REASON`] bytes.
    pub reason: String,
    /// Last lines of the failed tool's output, at most [`Failure::MAX_LOG`] bytes.
    pub log: String,
    /// Whether the cause passes by itself, such as another program's lock. While nothing has begun,
    /// a temporary failure does not end an attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_temporary: bool,
}

impl Failure {
    /// Longest reason in bytes.
    pub const MAX_REASON: usize = 4 << 10;
    /// Longest log in bytes.
    pub const MAX_LOG: usize = 32 << 10;
    /// Longest part of the log in a remark, in bytes.
    pub const MAX_REMARK: usize = 1 << 10;

    /// A failure without a log.
    pub fn new(kind: FailureKind, reason: impl Into<String>) -> Self {
        Self::with_log(kind, reason, "")
    }

    /// A failure with a tool's output, of which only the end is stored.
    pub fn with_log(kind: FailureKind, reason: impl Into<String>, log: &str) -> Self {
        let mut reason = reason.into();
        if reason.len() > Self::MAX_REASON {
            let end = reason.floor_char_boundary(Self::MAX_REASON - 4);
            reason.truncate(end);
            reason.push_str(" …");
        }
        Self { kind, reason, log: tail(log, Self::MAX_LOG).to_owned(), is_temporary: false }
    }

    /// The same failure, with a cause that passes by itself.
    #[must_use]
    pub fn into_temporary(self) -> Self {
        Self { is_temporary: true, ..self }
    }

    /// A short text for a step that failed without changing the outcome.
    pub fn remark(&self, step: &str) -> String {
        let log_tail = tail(self.log.trim_end(), Self::MAX_REMARK);
        let colon = if log_tail.is_empty() { "" } else { ":\n" };
        format!("{step}: {}{colon}{log_tail}", self.reason)
    }
}

/// The end of a text, at most `most` bytes. Begins at a line start if possible.
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
    fn a_log_keeps_its_last_lines_and_a_reason_its_beginning() {
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
