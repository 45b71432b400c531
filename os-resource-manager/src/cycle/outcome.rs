//! How a cycle ended, in numbers: whose profiles they are is nothing for everybody.

use evenkeel_domain::os::catalogue::CycleOutcome;
use evenkeel_registry::Finding;
use evenkeel_store::os_catalogue::{Artifact, Ended};
use serde::Deserialize as _;

use crate::plan::is_remark;

/// What is wanting when a cycle ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Profiles whose tags could not be listed.
    pub profiles: u32,
    /// Why, of the first of them.
    pub why: Option<String>,
    /// Revisions of which something cannot be used.
    pub revisions: u32,
    /// Documents beside them that could not be had, or not be used.
    pub documents: u32,
    /// Whether it took too long, so that there may be more.
    pub is_late: bool,
}

impl Tally {
    /// How the cycle ends.
    pub(crate) fn ended(&self) -> Ended {
        let mut said = Vec::new();
        if self.is_late {
            said.push("it took too long, so what is missing is for the next time".to_owned());
        }
        if self.profiles > 0 {
            let why = self.why.as_deref().unwrap_or_default();
            said.push(format!(
                "{} could not be listed: {why}",
                count(self.profiles, "profile")
            ));
        }
        for (number, what) in [(self.revisions, "revision"), (self.documents, "document")] {
            if number > 0 {
                said.push(format!("something is wrong with {}", count(number, what)));
            }
        }
        let outcome = if said.is_empty() {
            CycleOutcome::Good
        } else {
            CycleOutcome::Partly
        };
        Ended {
            outcome,
            message: evenkeel_domain::text::cut(&said.join("; "), 1_000),
            not_before: None,
        }
    }
}

fn count(number: u32, what: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {what}{end}")
}

/// Whether something is missing of a revision.
pub(crate) fn is_wanting(artifact: &Artifact) -> bool {
    let mut findings = artifact.findings.iter();
    findings.any(|kept| Finding::deserialize(kept).is_ok_and(|finding| !is_remark(finding.kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_in_which_nothing_is_wanting_is_good() {
        let ended = Tally::default().ended();
        assert_eq!(ended.outcome, CycleOutcome::Good);
        assert_eq!(ended.message, "");
    }

    #[test]
    fn what_is_wanting_is_counted_and_not_named() {
        let tally = Tally {
            profiles: 2,
            why: Some("it stopped answering".to_owned()),
            revisions: 1,
            documents: 3,
            is_late: true,
        };
        let ended = tally.ended();
        assert_eq!(ended.outcome, CycleOutcome::Partly);
        assert_eq!(
            ended.message,
            "it took too long, so what is missing is for the next time; 2 profiles could not be listed: it stopped \
             answering; something is wrong with 1 revision; something is wrong with 3 documents"
        );
    }
}
