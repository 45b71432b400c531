//! Report of a run, as its node measured it.

use serde::{Deserialize, Serialize};

use crate::Time;
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

/// Maximum number of held back packages and of causes that are stored.
const MAX_HELD_BACK: usize = 500;
const MAX_CAUSES: usize = 50;

/// Maximum number of interruptions that are stored.
const MAX_INTERRUPTIONS: usize = 100;

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
    /// The first packages whose newer version the run did not install.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<HeldBackPackage>,
    /// Number of all these packages per cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_back_counts: Vec<HeldBackCount>,
    /// Ends of agent processes while the run changed the node, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interruptions: Vec<Interruption>,
}

/// The end of an agent process while the run changed the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interruption {
    /// Name of the cause: `agent_stopped` or `machine_restarted`. Later releases may add causes.
    pub cause: String,
    /// `apply` or `verify`.
    pub phase: String,
    /// When the agent resumed the run, by the node's clock.
    pub resumed_at: Option<Time>,
    /// The boot in which the agent resumed it.
    pub boot_id: String,
}

/// A package whose newer version a run did not install.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldBackPackage {
    pub name: String,
    pub architecture: String,
    /// Installed version.
    pub installed: String,
    /// Newest version.
    pub available: String,
    /// Name of the cause, for example `too_young`. Later releases may add causes.
    pub cause: String,
}

/// Number of packages that are held back for one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldBackCount {
    /// As [`HeldBackPackage::cause`].
    pub cause: String,
    pub packages: u32,
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
        let held_back = self.held_back.into_iter().take(MAX_HELD_BACK);
        let interruptions = self.interruptions.into_iter().take(MAX_INTERRUPTIONS);
        let counts = self.held_back_counts.into_iter().filter(|count| count.packages > 0);
        Self {
            phases: phases.map(PhaseSpan::truncated).collect(),
            remarks: cut_list(&self.remarks, MAX_REMARKS, MAX_REMARK_BYTES),
            preserved_conffiles: cut_list(&self.preserved_conffiles, MAX_NAMES, MAX_NAME_BYTES),
            restarted_services: cut_list(&self.restarted_services, MAX_NAMES, MAX_NAME_BYTES),
            reboot_required: self.reboot_required,
            reboot_reasons: cut_list(&self.reboot_reasons, MAX_REMARKS, MAX_REMARK_BYTES),
            kernel_before: cut(&storable(&self.kernel_before), MAX_NAME_BYTES),
            kernel_after: cut(&storable(&self.kernel_after), MAX_NAME_BYTES),
            held_back: held_back.map(HeldBackPackage::truncated).collect(),
            held_back_counts: counts.take(MAX_CAUSES).collect(),
            interruptions: interruptions.map(Interruption::truncated).collect(),
        }
    }
}

impl Interruption {
    fn truncated(self) -> Self {
        Self {
            cause: self.cause,
            phase: cut(&storable(&self.phase), MAX_PHASE_NAME_BYTES),
            resumed_at: self.resumed_at,
            boot_id: cut(&storable(&self.boot_id), MAX_PHASE_NAME_BYTES),
        }
    }
}

impl HeldBackPackage {
    fn truncated(self) -> Self {
        let name = |text: String| cut(&storable(&text), MAX_NAME_BYTES);
        Self {
            name: name(self.name),
            architecture: name(self.architecture),
            installed: name(self.installed),
            available: name(self.available),
            cause: self.cause,
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
            held_back: vec![
                HeldBackPackage {
                    name: "n".repeat(1_000),
                    ..HeldBackPackage::default()
                };
                1_000
            ],
            held_back_counts: vec![HeldBackCount { cause: "hold".into(), packages: 1 }; 1_000],
            interruptions: vec![Interruption::default(); 1_000],
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
        assert_eq!((truncated.held_back.len(), truncated.held_back_counts.len()), (500, 50));
        assert_eq!(truncated.interruptions.len(), 100);
        assert!(truncated.held_back[0].name.len() <= 256);
        assert_eq!(truncated.clone().truncated(), truncated, "truncation is idempotent");
    }

    #[test]
    fn a_run_of_an_older_release_has_an_empty_report() {
        let read: RunReport = serde_json::from_str("{}").expect("a report");
        assert_eq!(read, RunReport::default());
    }
}
