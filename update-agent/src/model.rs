//! What the agent knows and does, in its own words. The journal is written in these types; [`crate::link`] turns them
//! into messages and back.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::grants::Grant;

/// What is wanted of the node, and the name of that wish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The same wish has the same digest. Opaque.
    pub digest: String,
    /// The wish itself.
    pub wish: Wish,
}

/// A wish of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// Bring packages to a state.
    Packages(PackageWish),
    /// Something that this agent does not know.
    Unknown,
}

/// Bring packages to a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageWish {
    /// Which state.
    pub mode: PackageMode,
    /// Further sources for this update only, one DEB822 stanza an element.
    pub sources: Vec<String>,
}

/// Which packages, in which versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackageMode {
    /// Every installed package in the newest version that the sources offer.
    Latest,
    /// These packages, and what they need.
    Exactly(Vec<WantedPackage>),
}

/// A package by name; without a version the newest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantedPackage {
    /// Debian's name.
    pub name: String,
    /// Debian's version.
    pub version: Option<String>,
}

/// What the server wants done now, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub act: Act,
    /// For a person.
    pub reason: String,
    /// When the answer may change by time alone.
    pub next: Option<DateTime<Utc>>,
    /// Leave for the time when the server cannot be asked; without it an earlier one is withdrawn.
    pub grant: Option<Grant>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Idle,
    /// Prepare: refresh, plan, download. Change nothing.
    Fetch(Target),
    /// Prepare what is missing, then ask to begin.
    Apply {
        /// What is wanted.
        target: Target,
        /// The end of the window.
        before: Option<DateTime<Utc>>,
    },
    /// Go on with the open attempt.
    Continue,
    /// Give up the open attempt, which has changed nothing yet.
    Cancel {
        /// Why.
        cause: String,
    },
}

/// The whole change, known before anything changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// By name, then architecture.
    pub changes: Vec<Change>,
    /// Bytes to fetch.
    pub download_bytes: u64,
}

/// One package before and after.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version that is there; none if it is not installed.
    pub before: Option<String>,
    /// The version that will be there; none if it is to be removed.
    pub after: Option<String>,
}

/// A package as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageResult {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Empty if it is not installed.
    pub version: String,
    /// dpkg's state; empty if dpkg does not know the package.
    pub state: String,
}

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
}

/// Why something did not work, for a person as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}")]
#[serde(deny_unknown_fields)]
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

/// Something that happened in an attempt. Numbered once, when it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// 1 for the first.
    pub sequence: u32,
    /// By the node's own clock.
    pub at: DateTime<Utc>,
    /// The boot in which it happened.
    pub boot_id: String,
    /// What happened.
    pub news: News,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// Fetching what the plan needs; nothing is changed.
    Downloading(Plan),
    /// All is there and verified.
    Downloaded,
    /// The node is being changed from now on.
    Began,
    /// Looking at what really runs.
    VerifyBegun,
    /// What runs is what was wanted.
    Finished {
        /// Each package of the plan as it is now.
        results: Vec<PackageResult>,
    },
    /// Ended; the node is not as wanted.
    Failed {
        /// Why.
        failure: Failure,
        /// Each package of the plan as it is now.
        results: Vec<PackageResult>,
    },
    /// Going back succeeded.
    Reverted {
        /// Why the node went back.
        failure: Failure,
    },
    /// The node already is as wanted.
    NothingToDo,
    /// Ended before anything was changed.
    Cancelled {
        /// Why.
        cause: String,
    },
}

impl News {
    /// Whether an attempt is over with it.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Downloading(_) | Self::Downloaded | Self::Began | Self::VerifyBegun => false,
            Self::Finished { .. }
            | Self::Failed { .. }
            | Self::Reverted { .. }
            | Self::NothingToDo
            | Self::Cancelled { .. } => true,
        }
    }

    /// Its name, for the log and for `status`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Downloading(_) => "downloading",
            Self::Downloaded => "downloaded",
            Self::Began => "began",
            Self::VerifyBegun => "verify begun",
            Self::Finished { .. } => "finished",
            Self::Failed { .. } => "failed",
            Self::Reverted { .. } => "reverted",
            Self::NothingToDo => "nothing to do",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// Why it did not end well; `None` if it did or has not ended.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure, .. } | Self::Reverted { failure } => Some(failure),
            _ => None,
        }
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
