//! Report of a run, as its node measured it.

use serde::{Deserialize, Serialize};

use crate::text::{cut, cut_list, storable};

/// Maximum number of phases that are stored, and maximum length of a phase name in bytes.
const MAX_PHASES: usize = 50;
const MAX_PHASE_NAME_BYTES: usize = 64;

/// Maximum number of remarks that are stored, and maximum length of a remark in bytes.
const MAX_REMARKS: usize = 100;
const MAX_REMARK_BYTES: usize = 1_000;

/// Maximum number of files and of units that are stored, and maximum length of a name in bytes.
const MAX_NAMES: usize = 200;
const MAX_NAME_BYTES: usize = 256;

/// The greatest integer that every JSON reader represents exactly.
const MAX_JSON_INTEGER: u64 = (1 << 53) - 1;

/// Report of a run. Empty while the run is open, and for agents that send none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunReport {
    /// Durations of the phases, in order.
    pub phases: Vec<PhaseSpan>,
    /// Problems on the way that did not change the outcome.
    pub remarks: Vec<String>,
    /// Configuration files that a user had modified and that the update left unchanged.
    pub preserved_conffiles: Vec<String>,
    /// Units that were restarted because they ran replaced files.
    pub restarted_services: Vec<String>,
    /// Whether the node still needs a reboot.
    pub reboot_required: bool,
    /// Why the change needed a reboot.
    pub reboot_reasons: Vec<String>,
    /// Release of the kernel that ran before the change; empty if it is unknown.
    pub kernel_before: String,
    /// Release of the kernel that ran at the end.
    pub kernel_after: String,
}

/// Duration of a phase, and how much it downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseSpan {
    /// `plan`, `download`, `apply`, `reboot` or `verify`.
    pub phase: String,
    /// Milliseconds by the node's clock.
    pub millis: u64,
    /// Bytes that were downloaded.
    pub bytes: u64,
}

impl RunReport {
    /// Limits the report to what can be stored. Long texts are cut and marked. Long lists end with the number of omitted
    /// entries; of the phases, the first are kept. An oversized report never costs the outcome that it came with.
    #[must_use]
    pub fn truncated(self) -> Self {
        let phases = self.phases.into_iter().take(MAX_PHASES);
        Self {
            phases: phases.map(PhaseSpan::truncated).collect(),
            remarks: cut_list(&self.remarks, MAX_REMARKS, MAX_REMARK_BYTES),
            preserved_conffiles: cut_list(&self.preserved_conffiles, MAX_NAMES, MAX_NAME_BYTES),
            restarted_services: cut_list(&self.restarted_services, MAX_NAMES, MAX_NAME_BYTES),
            reboot_required: self.reboot_required,
            reboot_reasons: cut_list(&self.reboot_reasons, MAX_REMARKS, MAX_REMARK_BYTES),
            kernel_before: cut(&storable(&self.kernel_before), MAX_NAME_BYTES),
            kernel_after: cut(&storable(&self.kernel_after), MAX_NAME_BYTES),
        }
    }
}

impl PhaseSpan {
    fn truncated(self) -> Self {
        Self {
            phase: cut(&storable(&self.phase), MAX_PHASE_NAME_BYTES),
            millis: self.millis.min(MAX_JSON_INTEGER),
            bytes: self.bytes.min(MAX_JSON_INTEGER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oversized_report_is_truncated_and_marked() {
        let report = RunReport {
            phases: vec![
                PhaseSpan { phase: "p".repeat(1_000), millis: u64::MAX, bytes: u64::MAX };
                1_000
            ],
            remarks: vec!["r".repeat(10_000); 1_000],
            preserved_conffiles: vec!["/etc/\0".into()],
            restarted_services: vec!["s".into(); 501],
            reboot_required: true,
            reboot_reasons: vec!["r".repeat(10_000); 1_000],
            kernel_before: "k".repeat(1_000),
            kernel_after: "6.1\0".into(),
        };
        let truncated = report.truncated();
        assert_eq!(truncated.phases.len(), 50);
        assert_eq!(truncated.phases[0].millis, 9_007_199_254_740_991);
        assert!(truncated.phases[0].phase.len() <= 64);
        assert_eq!(truncated.remarks.len(), 100);
        assert!(truncated.remarks[0].ends_with("[cut]"), "{:?}", truncated.remarks[0]);
        assert_eq!(truncated.remarks[99], "… and 901 more [cut]");
        assert_eq!(truncated.preserved_conffiles, ["/etc/\u{fffd}"]);
        assert_eq!(truncated.restarted_services[199], "… and 302 more [cut]");
        assert!(truncated.reboot_required);
        assert_eq!(truncated.reboot_reasons.len(), 100);
        assert!(truncated.kernel_before.len() <= 256);
        assert_eq!(truncated.kernel_after, "6.1\u{fffd}");
        assert_eq!(truncated.clone().truncated(), truncated, "truncation is idempotent");
    }

    #[test]
    fn a_run_of_an_older_release_has_an_empty_report() {
        let read: RunReport = serde_json::from_str("{}").expect("a report");
        assert_eq!(read, RunReport::default());
    }
}
