//! The result of a cycle. It has numbers only: profile names of one project must not be shown to other projects.

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::Finding;
use evenkeel_store::os_catalogue::{Artifact, CycleResult};
use serde::Deserialize as _;

use crate::plan::is_remark;

/// Counts of what is missing at the end of a cycle.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Profiles whose tags could not be listed.
    pub profiles: u32,
    /// Error of the first of these profiles.
    pub first_error: Option<String>,
    /// Revisions that cannot be used completely.
    pub revisions: u32,
    /// Attachments that could not be fetched or used.
    pub documents: u32,
    /// Whether the time limit was reached, so that more may be missing.
    pub is_late: bool,
}

impl Tally {
    pub(crate) fn to_result(&self) -> CycleResult {
        let mut messages = Vec::new();
        if self.is_late {
            messages.push("it took too long; the next sync continues".to_owned());
        }
        if self.profiles > 0 {
            let first_error = self.first_error.as_deref().unwrap_or_default();
            messages.push(format!(
                "{} could not be listed: {first_error}",
                pluralize(self.profiles, "profile")
            ));
        }
        for (number, what) in [(self.revisions, "revision"), (self.documents, "document")] {
            if number > 0 {
                messages.push(format!("{} with problems", pluralize(number, what)));
            }
        }
        let outcome = if messages.is_empty() { CycleOutcome::Good } else { CycleOutcome::Partial };
        CycleResult {
            outcome,
            message: evenkeel_domain::text::cut(&messages.join("; "), 1_000),
            not_before: None,
        }
    }
}

fn pluralize(number: u32, what: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {what}{end}")
}

/// Whether something of a revision is missing.
pub(crate) fn is_incomplete(artifact: &Artifact) -> bool {
    let mut findings = artifact.findings.iter();
    findings
        .any(|stored| Finding::deserialize(stored).is_ok_and(|finding| !is_remark(finding.kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_without_problems_is_good() {
        let result = Tally::default().to_result();
        assert_eq!(result.outcome, CycleOutcome::Good);
        assert_eq!(result.message, "");
    }

    #[test]
    fn problems_are_counted_and_not_named() {
        let tally = Tally {
            profiles: 2,
            first_error: Some("the server stopped responding".to_owned()),
            revisions: 1,
            documents: 3,
            is_late: true,
        };
        let result = tally.to_result();
        assert_eq!(result.outcome, CycleOutcome::Partial);
        assert_eq!(
            result.message,
            "it took too long; the next sync continues; 2 profiles could not be listed: the server stopped responding; \
             1 revision with problems; 3 documents with problems"
        );
    }
}
