//! How an attempt went, as its node measured and noted it.

use serde::{Deserialize, Serialize};

use crate::text::{cut, cut_list, storable};

/// The most phases that are kept, and the longest name of one in bytes.
const MAX_PHASES: usize = 50;
const MAX_PHASE: usize = 64;

/// The most remarks that are kept, and the longest one in bytes.
const MAX_REMARKS: usize = 100;
const MAX_REMARK: usize = 1_000;

/// The most files and the most units that are named, and the longest name of one in bytes.
const MAX_NAMES: usize = 200;
const MAX_NAME: usize = 256;

/// The greatest number that every reader of JSON takes as it is.
const MAX_NUMBER: u64 = (1 << 53) - 1;

/// How an attempt went. Empty while it goes on, and for an agent that says nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// How long it took, in the order in which the phases were passed.
    pub phases: Vec<PhaseSpan>,
    /// What went wrong on the way and did not change the end.
    pub remarks: Vec<String>,
    /// Configuration files that a person had changed and that stayed.
    pub kept_conffiles: Vec<String>,
    /// Units that were restarted because they ran what was replaced.
    pub restarted_services: Vec<String>,
    /// Whether the node still waits for a reboot.
    pub reboot_required: bool,
}

/// How long a phase took, and what it fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseSpan {
    /// `plan`, `download`, `apply`, `reboot` or `verify`.
    pub phase: String,
    /// Milliseconds by the node's clock.
    pub millis: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
}

impl Account {
    /// The same account as it can be kept. What is too long is cut and marked, and a list that is too long ends with how
    /// much more there was: an account never costs the outcome that it came with. Of the phases, the first ones are kept.
    #[must_use]
    pub fn bounded(self) -> Self {
        let phases = self.phases.into_iter().take(MAX_PHASES);
        Self {
            phases: phases.map(PhaseSpan::bounded).collect(),
            remarks: cut_list(&self.remarks, MAX_REMARKS, MAX_REMARK),
            kept_conffiles: cut_list(&self.kept_conffiles, MAX_NAMES, MAX_NAME),
            restarted_services: cut_list(&self.restarted_services, MAX_NAMES, MAX_NAME),
            reboot_required: self.reboot_required,
        }
    }
}

impl PhaseSpan {
    fn bounded(self) -> Self {
        Self {
            phase: cut(&storable(&self.phase), MAX_PHASE),
            millis: self.millis.min(MAX_NUMBER),
            bytes: self.bytes.min(MAX_NUMBER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_of_an_account_is_cut_and_marked() {
        let account = Account {
            phases: vec![
                PhaseSpan {
                    phase: "p".repeat(1_000),
                    millis: u64::MAX,
                    bytes: u64::MAX,
                };
                1_000
            ],
            remarks: vec!["r".repeat(10_000); 1_000],
            kept_conffiles: vec!["/etc/\0".into()],
            restarted_services: vec!["s".into(); 501],
            reboot_required: true,
        };
        let kept = account.bounded();
        assert_eq!(kept.phases.len(), 50);
        assert_eq!(kept.phases[0].millis, 9_007_199_254_740_991);
        assert!(kept.phases[0].phase.len() <= 64);
        assert_eq!(kept.remarks.len(), 100);
        assert!(kept.remarks[0].ends_with("[cut]"), "{:?}", kept.remarks[0]);
        assert_eq!(kept.remarks[99], "… and 901 more [cut]");
        assert_eq!(kept.kept_conffiles, ["/etc/\u{fffd}"]);
        assert_eq!(kept.restarted_services[199], "… and 302 more [cut]");
        assert!(kept.reboot_required);
        assert_eq!(kept.clone().bounded(), kept, "once is enough");
    }

    #[test]
    fn a_run_of_an_older_release_has_an_account_that_says_nothing() {
        let read: Account = serde_json::from_str("{}").expect("an account");
        assert_eq!(read, Account::default());
    }
}
